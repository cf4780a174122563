//! Relay: runner's bytes → events → ledger → clients.
//!
//! The commit in flight is the batching window: the next events gather in the buffer meanwhile. A full buffer
//! stops reads from the runner's socket. Clients see committed events only. The design is in `source`.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use domain::normalize::{ResultCounts, ResultValidator};
use domain::run::{Failure, FailureCode, Run};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use store::{Appended as Written, ResumePoint, Store, StoreError};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::bus::Notification;
use crate::ending::EndCause;
use crate::event_buffer::{EventBuffer, relayed};
use crate::inputs::PreparedDispatch;
use crate::interrupts::Interrupts;
use crate::ledger::LedgerWriter;
use crate::lifecycle::Lifecycle;
use crate::limits::RunLimits;
use crate::live::{CommittedFrames, LiveRun};
use crate::notifier::{Notifier, RunWaiter};
use clock::Clock;
use judging::JudgedNumbers;
use reader::{ReaderItem, ResultReader};
use runner_client::Answer;
use signals::{RunSignal, RunSignals, grace_over, interrupted, lost, released, silence_at};
use source::{AppendedSource, ResultInput, SourceRead, end_of_input};

mod judging;
pub mod reader;
mod signals;
mod source;

/// Consecutive reads after which commits and signals are polled.
const READS_IN_A_ROW: u32 = 32;

/// Result of a relay, from which the end is written.
pub(super) struct Relayed {
    pub(super) buffer: EventBuffer,
    pub(super) tally: ResultCounts,
    pub(super) ending: EndCause,
}

/// Origin of a run's results.
pub(super) enum ResultOrigin {
    /// The runner's response to the POST, of a run that this process dispatched.
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
    /// The ledger cannot be written. Uncommitted events were not shown.
    Unwritable(StoreError),
}

/// Relays the results of live runs into their ledgers.
pub(super) struct Relayer {
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) limits: Arc<RunLimits>,
    pub(super) notifier: Arc<Notifier>,
    pub(super) lifecycle: Lifecycle,
    pub(super) ledger: Arc<LedgerWriter>,
    pub(super) interrupts: Arc<Interrupts>,
}

impl Relayer {
    /// Relays the results of a started run until it ends.
    pub(super) async fn relay(
        &self,
        live: &LiveRun,
        prepared: &PreparedDispatch,
        run: &Run,
        origin: ResultOrigin,
    ) -> Result<Relayed, RelayStop> {
        let results = self.limits.results;
        let validator = ResultValidator::new(
            &prepared.snapshot,
            results,
            prepared.delta_mode,
            prepared.expects_message,
        )
        .with_uploaded_artifacts();
        let mut relay = RelayState {
            parts: self,
            live,
            run,
            validator,
            buffer: EventBuffer::new(run),
            appended: None,
            in_flight: None,
            items: Vec::new(),
            waiting: VecDeque::new(),
            input_ended: None,
            interrupted: None,
            has_noted_repair: false,
            unknown_types: HashSet::new(),
            trailing_body: None,
        };
        let waiter = || RunWaiter::of(&self.notifier, run.id);
        let source = match origin {
            ResultOrigin::Answer(Answer::Started(started)) => {
                let reader = ResultReader::new(started.format, self.limits.line_bytes, results);
                ResultInput::Stream {
                    results: started.into_results(),
                    reader: Box::new(reader),
                }
            }
            ResultOrigin::Answer(Answer::Deferred(trailing_body)) => {
                // The run does not wait for the rest of the body; its end aborts the read.
                let reading = self.lifecycle.tasks.spawn(trailing_body.discard());
                relay.trailing_body = Some(AbortOnDropHandle::new(reading));
                relay.appended = Some(JudgedNumbers::default());
                ResultInput::Appended(AppendedSource::new(
                    (&self.store, &self.ledger),
                    self.limits.poll,
                    run,
                    waiter(),
                ))
            }
            ResultOrigin::ResumePoint(resume_point) => {
                relay.buffer = EventBuffer::new(run).after_rejections(resume_point.rejections);
                let appended = AppendedSource::new(
                    (&self.store, &self.ledger),
                    self.limits.poll,
                    run,
                    waiter(),
                );
                let appended = appended.with_backlog(resume_point.accepted_through);
                relay.appended = Some(JudgedNumbers::of(resume_point));
                ResultInput::Appended(appended)
            }
        };
        let ending = relay.read(prepared, source).await?;
        if relay.in_flight.is_some() {
            let outcome = committed(&mut relay.in_flight).await;
            // The terminal's append continues at this commit's sequence.
            relay.show(outcome)?;
        }
        Ok(Relayed {
            tally: relay.validator.tally(),
            buffer: relay.buffer,
            ending,
        })
    }
}

struct RelayState<'a> {
    parts: &'a Relayer,
    live: &'a LiveRun,
    run: &'a Run,
    validator: ResultValidator<'a>,
    buffer: EventBuffer,
    /// Set for a runner that appends its results.
    appended: Option<JudgedNumbers>,
    in_flight: Option<CommitInFlight<'a>>,
    /// Items of the last chunk; empty between two reads.
    items: Vec<ReaderItem>,
    /// Received results that are not validated yet.
    waiting: VecDeque<Vec<u8>>,
    /// Failure of the input, after which no more results come.
    input_ended: Option<Failure>,
    /// Failure with which the run ends once all accepted results are validated.
    interrupted: Option<Failure>,
    /// The ledger has a note that characters were replaced.
    has_noted_repair: bool,
    /// Unknown types that the ledger notes.
    unknown_types: HashSet<String>,
    /// Reads the rest of a `202` answer until the run ends.
    trailing_body: Option<AbortOnDropHandle<()>>,
}

impl RelayState<'_> {
    async fn read(
        &mut self,
        prepared: &PreparedDispatch,
        mut source: ResultInput<'_>,
    ) -> Result<EndCause, RelayStop> {
        let limits = &self.parts.limits;
        let mut last_read_at = Instant::now();
        let (parts, live, run) = (self.parts, self.live, self.run);
        let interrupts = &parts.interrupts;
        let mut signals = RunSignals::new();
        signals.push(lost(live));
        if !source.has_backlog() {
            signals.push(interrupted(interrupts, live, run));
        }
        if source.is_stream() {
            signals.push(silence_at(last_read_at + limits.silence));
        } else {
            signals.push(released(&parts.lifecycle));
        }
        let mut cancelling = false;
        let (mut reads_in_a_row, mut paused) = (0, false);
        loop {
            if let Some(ending) = self.validate_waiting(cancelling).await? {
                return Ok(ending);
            }
            let full = self.buffer.is_full();
            let may_commit = self.in_flight.is_none() && !self.buffer.is_empty();
            if may_commit && (full || paused || reads_in_a_row == READS_IN_A_ROW) {
                self.start_commit();
                paused = false;
                continue;
            }
            // Most frequent events first.
            tokio::select! {
                biased;
                read = source.next(), if !full && reads_in_a_row < READS_IN_A_ROW => {
                    if !matches!(read, SourceRead::CaughtUp) {
                        self.take(read, &mut source);
                    } else if let Some(failure) = self.interrupted.take() {
                        return Ok(self.ended_by_gateway(failure));
                    } else {
                        signals.push(interrupted(interrupts, live, run));
                    }
                    last_read_at = Instant::now();
                    reads_in_a_row += 1;
                    paused = false;
                }
                outcome = committed(&mut self.in_flight) => {
                    self.show(outcome)?;
                    if full {
                        last_read_at = Instant::now();
                    }
                }
                Some(happened) = signals.next() => match happened {
                    RunSignal::Lost => return Err(RelayStop::Lost),
                    RunSignal::Release => return Err(self.finish_commit().await),
                    RunSignal::Interrupted => {
                        let failure = interrupts.interruption(live);
                        if !cancelling && failure.code == FailureCode::Cancelled {
                            cancelling = true;
                            signals.push(grace_over(interrupts, live, prepared, run));
                        } else if let ResultInput::Appended(appended) = &mut source {
                            self.end_after_backlog(appended, failure).await?;
                        } else {
                            return Ok(self.ended_by_gateway(failure));
                        }
                    }
                    // Armed again only after it has expired: a timer for each event would be expensive.
                    RunSignal::Silent => {
                        let (silent_at, now) = (last_read_at + limits.silence, Instant::now());
                        if full {
                            signals.push(silence_at(now + limits.silence));
                        } else if now < silent_at {
                            signals.push(silence_at(silent_at));
                        } else {
                            self.take(SourceRead::Silent, &mut source);
                        }
                    }
                },
                // Data that is already in the socket joins the same commit.
                () = tokio::task::yield_now(), if may_commit => paused = true,
                () = std::future::ready(()), if reads_in_a_row == READS_IN_A_ROW => {
                    reads_in_a_row = 0;
                }
            }
        }
    }

    /// Ends the run once all accepted results are validated. No further ones are accepted.
    async fn end_after_backlog(
        &mut self,
        appended: &mut AppendedSource<'_>,
        failure: Failure,
    ) -> Result<(), RelayStop> {
        // The runner has a confirmation for the accepted results, so they must reach the ledger.
        self.interrupted = Some(failure);
        tokio::select! {
            biased;
            () = self.live.lost.cancelled() => Err(RelayStop::Lost),
            // Boxed: the future would enlarge every run, and few append.
            closed = Box::pin(appended.close()) => match closed {
                Ok(true) => Ok(()),
                Ok(false) => Err(RelayStop::Lost),
                Err(error) => Err(RelayStop::Unwritable(error)),
            },
        }
    }

    /// Waits for the commit in flight. The next owner validates the remaining results.
    async fn finish_commit(&mut self) -> RelayStop {
        if self.in_flight.is_some() {
            let outcome = committed(&mut self.in_flight).await;
            if let Err(stopped) = self.show(outcome) {
                return stopped;
            }
        }
        RelayStop::Released
    }

    fn start_commit(&mut self) {
        let read_at = self.buffer.take_read_at();
        let (append, frames) = self.buffer.take(None, self.parts.clock.now_ms());
        let commit = Box::pin(self.parts.ledger.commit(append));
        self.in_flight = Some(CommitInFlight {
            frames,
            read_at,
            commit,
        });
    }

    /// Publishes the frames of a commit, unless another process owned the run.
    fn show(&mut self, outcome: Result<Written, StoreError>) -> Result<(), RelayStop> {
        let Some(done) = self.in_flight.take() else {
            return Ok(());
        };
        match outcome {
            Ok(Written::Written { .. }) => {
                self.live.log.publish(done.frames);
                self.parts
                    .notifier
                    .notify(Notification::Advanced(self.run.id));
                relayed(done.read_at);
                Ok(())
            }
            Ok(Written::Lost) => Err(RelayStop::Lost),
            Err(error) => Err(RelayStop::Unwritable(error)),
        }
    }

    /// Queues received results for validation.
    fn take(&mut self, read: SourceRead, source: &mut ResultInput<'_>) {
        let mut items = std::mem::take(&mut self.items);
        self.buffer.begin();
        self.input_ended = match (read, source) {
            (SourceRead::Chunk(chunk), ResultInput::Stream { reader, .. }) => {
                let pushed = reader.push(&chunk, &mut items);
                self.note_deviations(reader);
                pushed.err().map(|error| self.over_limit(error, &chunk))
            }
            (SourceRead::End, ResultInput::Stream { reader, .. }) => {
                reader.finish(&mut items);
                self.note_deviations(reader);
                let mut failure = end_of_input(&SourceRead::End);
                if let Some(fault) = reader.fault() {
                    failure.message = format!("{}: {fault}", failure.message);
                }
                Some(failure)
            }
            (
                read @ (SourceRead::Broken | SourceRead::Silent),
                ResultInput::Stream { reader, .. },
            ) => {
                reader.finish_broken(&mut items);
                if !items.is_empty() {
                    self.note_deviations(reader);
                }
                Some(end_of_input(&read))
            }
            (SourceRead::Appended(results), _) => {
                self.waiting.extend(results);
                None
            }
            (read, _) => Some(end_of_input(&read)),
        };
        let results = items.drain(..).filter_map(|item| match item {
            ReaderItem::Result(raw) => Some(raw),
            ReaderItem::Heartbeat => None,
        });
        self.waiting.extend(results);
        self.items = items;
    }
}

/// A commit in flight, with the frames to publish after it.
struct CommitInFlight<'a> {
    frames: CommittedFrames,
    read_at: Option<Instant>,
    commit: BoxFuture<'a, Result<Written, StoreError>>,
}

/// Outcome of the commit in flight; pending for ever without one.
async fn committed(in_flight: &mut Option<CommitInFlight<'_>>) -> Result<Written, StoreError> {
    match in_flight {
        Some(in_flight) => (&mut in_flight.commit).await,
        None => std::future::pending().await,
    }
}
