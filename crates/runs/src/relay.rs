//! Relay: runner's bytes → events → ledger → clients.
//!
//! The commit in flight is the batching window: the next events gather in the buffer meanwhile. A full buffer
//! stops reads from the runner's socket. Clients see committed events only. The design is in `source`.

use std::sync::Arc;

use domain::authorization::{has_amendable_tools, has_granted_actions};
use domain::normalize::ResultCounts;
use domain::run::Run;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use store::{Append, Appended, ResumePoint, RunWaits, StoreError};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::bus::Notification;
use crate::deps::RunDeps;
use crate::ending::EndCause;
use crate::event_buffer::{EventBuffer, relayed};
use crate::inputs::PreparedDispatch;
use crate::interrupts::Interrupts;
use crate::live::{CommittedFrames, LiveRun};
use reader::ResultReader;
use runner_client::Answer;
use signals::{
    AnnouncedRows, RunSignal, RunSignals, find_amendments, grace_over, interrupted, lost, released,
    silence_at, unannounced_rows,
};
use source::{AppendedSource, ResultInput};

use machine::is_silent;
pub(crate) use machine::{RelayMachine, after_stored, resumable};
#[cfg(test)]
pub(crate) use restored::{ReplayedLine, Restart};
pub(crate) use restored::{RestoredRun, StoredLine};
pub(crate) use steps::{RelayFacts, RelayInput, RelayOutput, RelaySource, RelayWait};

mod judging;
mod machine;
pub mod reader;
mod restored;
mod signals;
pub(crate) mod source;
mod steps;

/// Result of a relay, from which the end is written.
pub(super) struct Relayed {
    pub(super) buffer: EventBuffer,
    pub(super) tally: ResultCounts,
    pub(super) ending: EndCause,
}

/// Origin of a run's results.
pub(super) enum ResultOrigin {
    /// The runner's response to a run or a resume.
    Answer(Answer),
    /// The state that the former gateway has left.
    ResumePoint(ResumePoint),
}

/// Cause of a relay that stops without an end of the run.
pub(super) enum RelayStop {
    /// Another process owns the run.
    Lost,
    /// The run is to be resumed by another process, and nothing of it is in flight.
    Released,
    /// The connection to a resumable runner was lost, and nothing of the run is in flight.
    Disconnected,
    /// The ledger cannot be written. Uncommitted events were not shown.
    Unwritable(StoreError),
}

/// Relays the results of live runs into their ledgers.
pub(super) struct Relayer {
    pub(super) deps: Arc<RunDeps>,
    pub(super) interrupts: Interrupts,
}

impl Relayer {
    /// Relays the results of a started run until it ends. `restored` has the results of its ledger.
    pub(super) async fn relay<'a>(
        &self,
        live: &LiveRun,
        prepared: &'a PreparedDispatch,
        run: &Run,
        origin: ResultOrigin,
        restored: RestoredRun<'a>,
    ) -> Result<Relayed, RelayStop> {
        let limits = &self.deps.limits;
        let RestoredRun {
            validator, stored, ..
        } = restored;
        let appends = || AppendedSource::new(&self.deps, live, run).after(stored.through);
        let mut trailing_body = None;
        let (mut input, source) = match origin {
            ResultOrigin::Answer(Answer::Started(started)) => {
                let format = started.format;
                let reader = ResultReader::new(format, limits.line_bytes, limits.results);
                let input = ResultInput::Stream(started.into_results());
                (input, RelaySource::Stream(Box::new(reader)))
            }
            ResultOrigin::Answer(Answer::Deferred(body)) => {
                // The run does not wait for the rest of the body; its end aborts the read.
                let reading = self.deps.lifecycle.tasks.spawn(body.discard());
                trailing_body = Some(AbortOnDropHandle::new(reading));
                (ResultInput::Appended(appends()), RelaySource::Appends)
            }
            ResultOrigin::ResumePoint(resume_point) => {
                let appended = appends().with_backlog(resume_point.accepted_through);
                let source = RelaySource::Backlog(resume_point);
                (ResultInput::Appended(appended), source)
            }
        };
        let mut shell = RelayShell {
            parts: self,
            live,
            prepared,
            run,
            signals: RunSignals::new(),
            waits: RunWaits {
                deadline_at: run.deadline_at,
                is_waiting: false,
            },
            in_flight: None,
            _trailing_body: trailing_body,
        };
        let silence = limits.silence;
        let mut machine = RelayMachine::new(run, validator, source, silence, Instant::now());
        machine = after_stored(machine, &stored);
        if prepared.resume_window.is_some() {
            machine = resumable(machine);
        }
        // By reference: a future would hold these values twice, as arguments and while it is awaited.
        let cause = shell.drive(&mut machine, &mut input).await?;
        Ok(machine.into_relayed(cause))
    }
}

/// Executes the outputs of a [`RelayMachine`].
struct RelayShell<'a> {
    parts: &'a Relayer,
    live: &'a LiveRun,
    prepared: &'a PreparedDispatch,
    run: &'a Run,
    signals: RunSignals<'a>,
    /// Waits for budgets at the last look.
    waits: RunWaits,
    in_flight: Option<BoxFuture<'a, Result<Appended, StoreError>>>,
    /// Reads the rest of a `202` answer until the run ends.
    _trailing_body: Option<AbortOnDropHandle<()>>,
}

impl RelayShell<'_> {
    /// Drives the machine to the cause of the run's end.
    async fn drive(
        &mut self,
        machine: &mut RelayMachine<'_>,
        source: &mut ResultInput<'_>,
    ) -> Result<EndCause, RelayStop> {
        let (parts, live, run) = (self.parts, self.live, self.run);
        self.signals.push(lost(live));
        let prepared = self.prepared;
        let snapshot = &*prepared.snapshot;
        let may_amend = has_amendable_tools(snapshot);
        if may_amend || has_granted_actions(snapshot) {
            // Other runs need no looks at the database.
            let none = AnnouncedRows::default();
            let rows = unannounced_rows(&parts.deps, run, snapshot, none);
            self.signals.push(rows);
        }
        loop {
            let input = match machine.step(self.facts()) {
                RelayOutput::Wait(wait) => match self.wait(wait, source).await {
                    // The gateway itself holds a call of the runner back.
                    RelayInput::Silent
                        if is_silent(machine, Instant::now())
                            && self.has_waited_for_budget().await =>
                    {
                        let again_at = Instant::now() + parts.deps.limits.silence;
                        self.signals.push(silence_at(again_at));
                        continue;
                    }
                    input => input,
                },
                RelayOutput::AwaitCommit => {
                    RelayInput::Committed(committed(&mut self.in_flight).await)
                }
                RelayOutput::Commit(append) => {
                    self.in_flight = Some(Box::pin(commit(&parts.deps, live, append)));
                    continue;
                }
                RelayOutput::Publish(frames, read_at) => {
                    self.publish(frames, read_at);
                    continue;
                }
                // Boxed: few results need these steps, and the futures would enlarge every run.
                RelayOutput::FindArtifact(id) => {
                    Box::pin(find_artifact(parts, live, run, id)).await
                }
                RelayOutput::FindCancel => {
                    let found = parts.interrupts.was_cancelled_elsewhere(live, run);
                    RelayInput::CancelFound(Box::pin(found).await)
                }
                RelayOutput::CloseAppends => Box::pin(close_appends(live, source)).await,
                RelayOutput::WatchInterrupts => {
                    self.signals.push(interrupted(&parts.interrupts, live, run));
                    continue;
                }
                RelayOutput::WatchGrace => {
                    let over = grace_over(&parts.interrupts, live, self.prepared, run);
                    self.signals.push(over);
                    continue;
                }
                RelayOutput::WatchRelease => {
                    self.signals.push(released(&parts.deps.lifecycle));
                    continue;
                }
                RelayOutput::WatchSilence(at) => {
                    self.signals.push(silence_at(at));
                    continue;
                }
                RelayOutput::End(cause) => {
                    if may_amend {
                        // The terminal event is the last one, so an amendment gets its event before it.
                        let rows = Box::pin(find_amendments(&parts.deps, run)).await;
                        machine.on(RelayInput::UnannouncedFound(rows), self.facts());
                    }
                    return Ok(cause);
                }
                RelayOutput::Stop(stop) => return Err(stop),
            };
            machine.on(input, self.facts());
        }
    }

    fn facts(&self) -> RelayFacts {
        RelayFacts {
            now: Instant::now(),
            epoch_ms: self.parts.deps.clock.now_ms(),
            is_cancelled: self.live.cancel.is_cancelled(),
        }
    }

    /// The next input: most frequent ones first.
    async fn wait(&mut self, wait: RelayWait, source: &mut ResultInput<'_>) -> RelayInput {
        tokio::select! {
            biased;
            read = source.next(), if wait.for_reads => RelayInput::Read(read),
            outcome = committed(&mut self.in_flight) => RelayInput::Committed(outcome),
            Some(signal) = self.signals.next() => match signal {
                RunSignal::Lost => RelayInput::Lost,
                RunSignal::Release => RelayInput::Released,
                RunSignal::Interrupted => {
                    RelayInput::Interrupted(self.parts.interrupts.interruption(self.live))
                }
                RunSignal::Silent => RelayInput::Silent,
                RunSignal::Unannounced(mut rows) => {
                    let found = std::mem::take(&mut rows.found);
                    let (deps, snapshot) = (&self.parts.deps, &*self.prepared.snapshot);
                    let next = unannounced_rows(deps, self.run, snapshot, rows);
                    self.signals.push(next);
                    RelayInput::UnannouncedFound(found)
                }
            },
            // Data that is already in the socket joins the same commit.
            () = tokio::task::yield_now(), if wait.for_pause => RelayInput::Paused,
            () = std::future::ready(()), if wait.for_poll => RelayInput::Polled,
        }
    }

    /// True if a call of the run waits for a raise of a budget, or has waited since the last look.
    async fn has_waited_for_budget(&mut self) -> bool {
        let Some(waits) = Box::pin(self.parts.deps.waits_of(self.run.id)).await else {
            return false;
        };
        // After a wait, the runner has the full time again.
        let has_waited = waits.has_waited_since(&self.waits);
        self.waits = waits;
        waits.is_waiting || has_waited
    }

    fn publish(&self, frames: CommittedFrames, read_at: Option<Instant>) {
        self.live.log.publish(frames);
        let advanced = Notification::Advanced(self.run.id);
        self.parts.deps.notifier.notify(advanced);
        relayed(read_at);
    }
}

/// Commits an append, and answers the append calls whose results it has written.
async fn commit(
    deps: &RunDeps,
    live: &LiveRun,
    append: Arc<Append>,
) -> Result<Appended, StoreError> {
    let judged_through = append.judged_through;
    let appended = deps.ledger.commit(append).await?;
    if let (Appended::Written { .. }, Some(through)) = (&appended, judged_through) {
        live.inbox.note_judged(through);
    }
    Ok(appended)
}

/// Looks for an uploaded artifact of the run.
async fn find_artifact(parts: &Relayer, live: &LiveRun, run: &Run, id: Uuid) -> RelayInput {
    let ask = || {
        let artifacts = parts.deps.store.artifacts();
        artifacts.is_artifact_of(&run.workspace, run.id, id)
    };
    tokio::select! {
        found = parts.deps.ledger.retry_within_lease(run.id, ask) => RelayInput::ArtifactFound(found),
        () = live.lost.cancelled() => RelayInput::Lost,
    }
}

/// Accepts no more appends. A stream has none.
async fn close_appends(live: &LiveRun, source: &mut ResultInput<'_>) -> RelayInput {
    let ResultInput::Appended(appended) = source else {
        return RelayInput::AppendsClosed(Ok(true));
    };
    tokio::select! {
        biased;
        () = live.lost.cancelled() => RelayInput::Lost,
        closed = appended.close() => RelayInput::AppendsClosed(closed),
    }
}

/// Outcome of the commit in flight; pending for ever without one.
async fn committed(
    in_flight: &mut Option<BoxFuture<'_, Result<Appended, StoreError>>>,
) -> Result<Appended, StoreError> {
    match in_flight {
        Some(commit) => {
            let outcome = commit.await;
            *in_flight = None;
            outcome
        }
        None => std::future::pending().await,
    }
}
