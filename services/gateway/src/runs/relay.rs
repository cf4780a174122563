//! Runner's bytes → events → ledger → clients (runs §3).
//!
//! The commit before is the batching window: while it runs, the next events gather in the book. A
//! full book stops the reading of the runner's socket. Nobody sees an event that is not committed.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use domain::normalize::{Effect, Judge, Reason, Rejection, Tally, Verdict, announced_artifact};
use domain::run::{Failure, FailureCode, Run};
use futures_util::future::BoxFuture;
use protocol::id::RunId;
use protocol::sse::SseError;
use store::{Appended as Written, AuditEntry, StoreError};
use tokio::time::Instant;
use uuid::Uuid;

use crate::bus::Ring;
use crate::outbound::runner::Answer;
use crate::runs::Inner;
use crate::runs::book::Book;
use crate::runs::dispatch::{interrupted, interruption, tell_runner};
use crate::runs::doorbell::Bell;
use crate::runs::live::{Frames, LiveRun};
use crate::runs::prepare::Prepared;
use crate::runs::settle::{Ending, commit};
use crate::telemetry::metrics;
use reader::{Item, ResultReader};
use source::{Appended, Read, Source, end_of_input};

pub(crate) mod reader;
mod source;

/// What a relay leaves: everything that settling needs.
pub(super) struct Relayed {
    pub(super) book: Book,
    pub(super) tally: Tally,
    pub(super) ending: Ending,
}

/// Why a relay leaves nothing to settle.
pub(super) enum Stopped {
    /// The run is somebody else's now.
    Lost,
    /// The ledger cannot be written: nothing that could not be committed was shown.
    Unwritable(StoreError),
}

/// Relays the results of a started run until it ends.
pub(super) async fn relay(
    inner: &Arc<Inner>,
    live: &LiveRun,
    prepared: &Prepared,
    run: &Run,
    answer: Answer,
) -> Result<Relayed, Stopped> {
    let results = inner.limits.results;
    let judge = Judge::new(
        &prepared.snapshot,
        results,
        prepared.delta_mode,
        prepared.expects_message,
    )
    .knowing_artifacts();
    let mut relay = Relay {
        inner,
        live,
        run,
        judge,
        book: Book::new(run),
        in_flight: None,
        waiting: VecDeque::new(),
        read_at: None,
        input_ended: None,
    };
    let source = match answer {
        Answer::Started(started) => {
            let reader = ResultReader::new(started.format, inner.limits.line_bytes, results);
            Source::Stream {
                results: started.into_results(),
                reader: Box::new(reader),
            }
        }
        Answer::Deferred => {
            let bell = Bell::of(inner, run.id);
            Source::Appended(Appended::new(inner, run.id, run.attempt, bell))
        }
    };
    let ending = relay.read(prepared, source).await?;
    if let Some(in_flight) = relay.in_flight.take() {
        let read_at = in_flight.read_at;
        let (frames, outcome) = in_flight.finish().await;
        shown(inner, (live, run.id), frames, outcome)?;
        told(read_at);
    }
    Ok(Relayed {
        tally: relay.judge.tally(),
        book: relay.book,
        ending,
    })
}

struct Relay<'a> {
    inner: &'a Inner,
    live: &'a LiveRun,
    run: &'a Run,
    judge: Judge<'a>,
    book: Book,
    in_flight: Option<InFlight<'a>>,
    /// Results that have come and are not judged yet.
    waiting: VecDeque<Vec<u8>>,
    /// When the oldest bytes were read that are not on their way yet.
    read_at: Option<Instant>,
    /// Why no more will come.
    input_ended: Option<Failure>,
}

/// A commit on its way, and the frames that may be shown after it.
struct InFlight<'a> {
    frames: Frames,
    read_at: Option<Instant>,
    commit: BoxFuture<'a, Result<Written, StoreError>>,
}

impl InFlight<'_> {
    async fn finish(self) -> (Frames, Result<Written, StoreError>) {
        let outcome = self.commit.await;
        (self.frames, outcome)
    }
}

impl Relay<'_> {
    async fn read(
        &mut self,
        prepared: &Prepared,
        mut source: Source<'_>,
    ) -> Result<Ending, Stopped> {
        let limits = &self.inner.limits;
        let is_stream = source.is_stream();
        let mut heard_at = Instant::now();
        let silence = tokio::time::sleep_until(heard_at + limits.silence);
        tokio::pin!(silence);
        let (inner, live, run) = (self.inner, self.live, self.run);
        let mut interrupt: Pin<Box<dyn Future<Output = ()> + Send + '_>> =
            Box::pin(interrupted(inner, live, run));
        let lost = live.lost.cancelled();
        tokio::pin!(lost);
        let mut cancelling = false;
        loop {
            if let Some(ending) = self.judge_waiting(cancelling).await? {
                return Ok(ending);
            }
            self.start_commit();
            if !self.waiting.is_empty() && !self.book.is_full() {
                continue;
            }
            let full = self.book.is_full();
            tokio::select! {
                biased;
                outcome = committed(&mut self.in_flight) => {
                    let done = self.in_flight.take().map(|done| (done.frames, done.read_at));
                    let (frames, read_at) = done.unwrap_or_default();
                    shown(inner, (live, run.id), frames, outcome)?;
                    told(read_at);
                    if full {
                        heard_at = Instant::now();
                    }
                }
                () = &mut lost => return Err(Stopped::Lost),
                () = &mut interrupt => {
                    let failure = interruption(inner, live);
                    if cancelling || failure.code != FailureCode::Cancelled {
                        return Ok(self.ended_by_gateway(failure));
                    }
                    cancelling = true;
                    interrupt = Box::pin(grace(inner, prepared, run));
                }
                read = source.next(), if !full => {
                    self.take(read, &mut source);
                    heard_at = Instant::now();
                }
                // Set again only when it is over: each event would cost a timer.
                () = &mut silence, if !full && is_stream => {
                    let silent_at = heard_at + limits.silence;
                    if Instant::now() >= silent_at {
                        self.take(Read::Silent, &mut source);
                    }
                    silence.as_mut().reset(silent_at.max(Instant::now()));
                }
            }
        }
    }

    fn start_commit(&mut self) {
        if self.in_flight.is_some() || self.book.is_empty() {
            return;
        }
        let (append, frames) = self.book.take(None, self.inner.clock.now_ms());
        let commit = Box::pin(commit(self.inner, append));
        let read_at = self.read_at.take();
        self.in_flight = Some(InFlight {
            frames,
            read_at,
            commit,
        });
    }

    /// Takes in what was read, to be judged as far as the book has room.
    fn take(&mut self, read: Read, source: &mut Source<'_>) {
        let mut items = Vec::new();
        self.read_at.get_or_insert_with(Instant::now);
        self.input_ended = match (read, source) {
            (Read::Chunk(chunk), Source::Stream { reader, .. }) => {
                match reader.push(&chunk, &mut items) {
                    Ok(()) => None,
                    Err(error) => Some(self.over_limit(error, &chunk)),
                }
            }
            (Read::End, Source::Stream { reader, .. }) => {
                reader.finish(&mut items);
                Some(end_of_input(&Read::End))
            }
            (Read::Appended(results), _) => {
                self.waiting.extend(results);
                None
            }
            (read, _) => Some(end_of_input(&read)),
        };
        let results = items.into_iter().filter_map(|item| match item {
            Item::Result(raw) => Some(raw),
            Item::Life => None,
        });
        self.waiting.extend(results);
    }

    /// Judges what waits while the book has room; gives the ending when there is one.
    async fn judge_waiting(&mut self, cancelling: bool) -> Result<Option<Ending>, Stopped> {
        while !self.book.is_full() {
            let Some(raw) = self.waiting.pop_front() else {
                let ended = self.input_ended.take();
                return Ok(ended.map(|failure| self.ended_early(failure, cancelling)));
            };
            self.look_for_artifact(&raw).await?;
            if let Some(ending) = self.judge_result(&raw) {
                // What came behind the end in the same breath is counted, and no more is read.
                for raw in std::mem::take(&mut self.waiting) {
                    if let Verdict::Reject(rejection) =
                        self.judge.judge(&raw, self.inner.clock.now_seconds())
                    {
                        self.book.reject(rejection);
                    }
                }
                return Ok(Some(ending));
            }
        }
        Ok(None)
    }

    /// Tells the judge of the artifact that a result announces, if the run has uploaded it.
    async fn look_for_artifact(&mut self, raw: &[u8]) -> Result<(), Stopped> {
        let Some(id) = announced_artifact(raw) else {
            return Ok(());
        };
        let store = &self.inner.store;
        let found = store.is_artifact_of(&self.run.workspace, self.run.id, id);
        if found.await.map_err(Stopped::Unwritable)? {
            self.judge.know_artifact(id);
        }
        Ok(())
    }

    fn ended_early(&self, failure: Failure, cancelling: bool) -> Ending {
        // A runner that hangs up after a cancel has done what it was asked to.
        let cancelled = cancelling && failure.code == FailureCode::RunnerStreamTruncated;
        let failure = if cancelled {
            interruption(self.inner, self.live)
        } else {
            failure
        };
        self.ended_by_gateway(failure)
    }

    fn over_limit(&mut self, error: SseError, chunk: &[u8]) -> Failure {
        let (reason, message) = match error {
            SseError::LineTooLong => (
                Reason::LineTooLong,
                "a line is longer than limits.line_bytes",
            ),
            SseError::EventTooLarge => (
                Reason::EventTooLarge,
                "an event is larger than limits.event_bytes",
            ),
        };
        self.book.reject(Rejection::new(reason, None, chunk));
        Failure::new(FailureCode::RunnerOutputLimit, message)
    }

    /// Judges one result; gives the ending when it was that.
    fn judge_result(&mut self, raw: &[u8]) -> Option<Ending> {
        match self.judge.judge(raw, self.inner.clock.now_seconds()) {
            Verdict::Accept(accepted) => {
                self.book.accept(&accepted, self.inner.clock.now_seconds());
                match accepted.effect {
                    Effect::End(end) => Some(Ending::Runner(end)),
                    Effect::None
                    | Effect::SetState(_)
                    | Effect::BindArtifact(_)
                    | Effect::Ask(_) => None,
                }
            }
            Verdict::Duplicate => None,
            Verdict::Reject(rejection) => {
                self.book.reject(rejection);
                None
            }
            Verdict::Fail(rejection, failure) => {
                if rejection.reason == Reason::WrongRunId {
                    let audit = self.security_audit();
                    self.book.audit(audit);
                }
                self.book.reject(rejection);
                Some(self.ended_by_gateway(failure))
            }
        }
    }

    fn ended_by_gateway(&self, failure: Failure) -> Ending {
        Ending::Gateway {
            failure,
            message: self.judge.last_message(),
        }
    }

    fn security_audit(&self) -> AuditEntry {
        AuditEntry {
            id: Uuid::now_v7(),
            workspace: self.run.workspace.clone(),
            run_id: self.run.id,
            action: "result".to_owned(),
            resource: "run".to_owned(),
            operation: "append".to_owned(),
            allowed: false,
            rule: "a result named another run".to_owned(),
            bytes: 0,
            at: self.inner.clock.now_ms(),
        }
    }
}

/// After a commit: clients may see the frames, unless the commit was not ours to make.
fn shown(
    inner: &Inner,
    (live, run): (&LiveRun, RunId),
    frames: Frames,
    outcome: Result<Written, StoreError>,
) -> Result<(), Stopped> {
    match outcome {
        Ok(Written::Written { .. }) => {
            live.log.publish(frames);
            inner.doorbell.ring(Ring::Advanced(run));
            Ok(())
        }
        Ok(Written::Lost) => Err(Stopped::Lost),
        Err(error) => Err(Stopped::Unwritable(error)),
    }
}

/// Clients may see what was read then.
fn told(read_at: Option<Instant>) {
    if let Some(read_at) = read_at {
        metrics::relayed(read_at.elapsed());
    }
}

/// The outcome of the commit on its way; waits for ever when there is none.
async fn committed(in_flight: &mut Option<InFlight<'_>>) -> Result<Written, StoreError> {
    match in_flight {
        Some(in_flight) => (&mut in_flight.commit).await,
        None => std::future::pending().await,
    }
}

/// Tells the runner of the cancel and gives it the grace to end by itself.
async fn grace(inner: &Inner, prepared: &Prepared, run: &Run) {
    let grace: Duration = inner.limits.cancel_grace;
    tokio::join!(tell_runner(inner, prepared, run), tokio::time::sleep(grace));
}
