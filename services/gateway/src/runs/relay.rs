//! Runner's bytes → events → ledger → clients (runs §3).
//!
//! The commit before is the batching window: while it runs, the next events gather in the book. A
//! full book stops the reading of the runner's socket. Nobody sees an event that is not committed.

use std::collections::VecDeque;
use std::sync::Arc;

use domain::normalize::{Effect, Judge, Reason, Rejection, Tally, Verdict, announced_artifact};
use domain::run::{Failure, FailureCode, Run};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use protocol::sse::SseError;
use store::{Appended as Written, AuditEntry, StoreError};
use tokio::time::Instant;
use uuid::Uuid;

use crate::bus::Ring;
use crate::outbound::runner::Answer;
use crate::runs::Inner;
use crate::runs::book::{Book, relayed};
use crate::runs::dispatch::interruption;
use crate::runs::doorbell::Bell;
use crate::runs::live::{Frames, LiveRun};
use crate::runs::prepare::Prepared;
use crate::runs::settle::{Ending, commit, surely};
use rare::{Rare, grace, quiet_until, rare_things};
use reader::{Item, ResultReader};
use source::{Appended, Read, Source, end_of_input};

mod rare;
pub(crate) mod reader;
mod source;

/// Reads after which a commit, a cancel or a lost lease is looked for, even if more has come.
const READS_IN_A_ROW: u32 = 32;

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
        items: Vec::new(),
        waiting: VecDeque::new(),
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
    if relay.in_flight.is_some() {
        let outcome = committed(&mut relay.in_flight).await;
        relay.show(outcome)?;
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
    /// What the last chunk held; empty between two reads.
    items: Vec<Item>,
    /// Results that have come and are not judged yet.
    waiting: VecDeque<Vec<u8>>,
    /// Why no more will come.
    input_ended: Option<Failure>,
}

impl Relay<'_> {
    async fn read(
        &mut self,
        prepared: &Prepared,
        mut source: Source<'_>,
    ) -> Result<Ending, Stopped> {
        let limits = &self.inner.limits;
        let mut heard_at = Instant::now();
        let (inner, live, run) = (self.inner, self.live, self.run);
        let mut rare = rare_things(inner, live, run);
        if source.is_stream() {
            rare.push(quiet_until(heard_at + limits.silence));
        }
        let mut cancelling = false;
        let (mut reads_in_a_row, mut paused) = (0, false);
        loop {
            if let Some(ending) = self.judge_waiting(cancelling).await? {
                return Ok(ending);
            }
            let full = self.book.is_full();
            let may_commit = self.in_flight.is_none() && !self.book.is_empty();
            if may_commit && (full || paused || reads_in_a_row == READS_IN_A_ROW) {
                self.start_commit();
                paused = false;
                continue;
            }
            // First what comes most often.
            tokio::select! {
                biased;
                read = source.next(), if !full && reads_in_a_row < READS_IN_A_ROW => {
                    self.take(read, &mut source);
                    heard_at = Instant::now();
                    reads_in_a_row += 1;
                    paused = false;
                }
                outcome = committed(&mut self.in_flight) => {
                    self.show(outcome)?;
                    if full {
                        heard_at = Instant::now();
                    }
                }
                Some(happened) = rare.next() => match happened {
                    Rare::Lost => return Err(Stopped::Lost),
                    Rare::Interrupted => {
                        let failure = interruption(inner, live);
                        if cancelling || failure.code != FailureCode::Cancelled {
                            return Ok(self.ended_by_gateway(failure));
                        }
                        cancelling = true;
                        rare.push(Box::pin(grace(inner, prepared, run)));
                    }
                    // Set again only when it is over: each event would cost a timer.
                    Rare::Quiet => {
                        let (silent_at, now) = (heard_at + limits.silence, Instant::now());
                        if full {
                            rare.push(quiet_until(now + limits.silence));
                        } else if now < silent_at {
                            rare.push(quiet_until(silent_at));
                        } else {
                            self.take(Read::Silent, &mut source);
                        }
                    }
                },
                // What has reached the socket, and only has to be handed on, goes into the same commit.
                () = tokio::task::yield_now(), if may_commit => paused = true,
                () = std::future::ready(()), if reads_in_a_row == READS_IN_A_ROW => {
                    reads_in_a_row = 0;
                }
            }
        }
    }

    fn start_commit(&mut self) {
        let read_at = self.book.take_read_at();
        let (append, frames) = self.book.take(None, self.inner.clock.now_ms());
        let commit = Box::pin(commit(self.inner, append));
        self.in_flight = Some(InFlight {
            frames,
            read_at,
            commit,
        });
    }

    /// After a commit: clients may see its frames, unless it was not ours to make.
    fn show(&mut self, outcome: Result<Written, StoreError>) -> Result<(), Stopped> {
        let Some(done) = self.in_flight.take() else {
            return Ok(());
        };
        match outcome {
            Ok(Written::Written { .. }) => {
                self.live.log.publish(done.frames);
                self.inner.doorbell.ring(Ring::Advanced(self.run.id));
                relayed(done.read_at);
                Ok(())
            }
            Ok(Written::Lost) => Err(Stopped::Lost),
            Err(error) => Err(Stopped::Unwritable(error)),
        }
    }

    /// Takes in what was read, to be judged as far as the book has room.
    fn take(&mut self, read: Read, source: &mut Source<'_>) {
        let mut items = std::mem::take(&mut self.items);
        self.book.begin();
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
        let results = items.drain(..).filter_map(|item| match item {
            Item::Result(raw) => Some(raw),
            Item::Life => None,
        });
        self.waiting.extend(results);
        self.items = items;
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
        let (store, run) = (&self.inner.store, self.run);
        let ask = || store.is_artifact_of(&run.workspace, run.id, id);
        let found = tokio::select! {
            found = surely(self.inner, run.id, ask) => found.map_err(Stopped::Unwritable)?,
            () = self.live.lost.cancelled() => return Err(Stopped::Lost),
        };
        if found {
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
        let now = self.inner.clock.now_seconds();
        match self.judge.judge(raw, now) {
            Verdict::Accept(accepted) => {
                self.book.accept(&accepted, now);
                match accepted.effect {
                    Effect::End(end) => Some(Ending::Runner(*end)),
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
            action: "result",
            resource: "run".to_owned(),
            operation: "append",
            allowed: false,
            rule: "a result named another run".into(),
            bytes: 0,
            at: self.inner.clock.now_ms(),
        }
    }
}

/// A commit on its way, and the frames that may be shown after it.
struct InFlight<'a> {
    frames: Frames,
    read_at: Option<Instant>,
    commit: BoxFuture<'a, Result<Written, StoreError>>,
}

/// The outcome of the commit on its way; waits for ever when there is none.
async fn committed(in_flight: &mut Option<InFlight<'_>>) -> Result<Written, StoreError> {
    match in_flight {
        Some(in_flight) => (&mut in_flight.commit).await,
        None => std::future::pending().await,
    }
}
