//! Runner's bytes → events → ledger → clients (runs §3).
//!
//! The commit before is the batching window: while it runs, the next events gather in the book. A
//! full book stops the reading of the runner's socket. Nobody sees an event that is not committed.

use std::collections::VecDeque;
use std::sync::Arc;

use domain::normalize::{Judge, Tally};
use domain::run::{Failure, FailureCode, Run};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use store::{Appended as Written, ResumePoint, StoreError};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::Inner;
use crate::book::{Book, relayed};
use crate::bus::Ring;
use crate::dispatch::interruption;
use crate::doorbell::Bell;
use crate::live::{Frames, LiveRun};
use crate::prepare::Prepared;
use crate::settle::{Ending, commit};
use judging::Numbers;
use rare::{Rare, RareThings, graced, handed_on, lost, quiet_until, told_to_end};
use reader::{Item, ResultReader};
use runner_client::Answer;
use source::{Appended, Read, Source, end_of_input};

mod judging;
mod rare;
pub mod reader;
mod source;

/// Reads after which a commit, a cancel or a lost lease is looked for, even if more has come.
const READS_IN_A_ROW: u32 = 32;

/// What a relay leaves: everything that settling needs.
pub(super) struct Relayed {
    pub(super) book: Book,
    pub(super) tally: Tally,
    pub(super) ending: Ending,
}

/// Where the results of a run begin.
pub(super) enum Origin {
    /// With what its runner has answered.
    Answer(Answer),
    /// Where the gateway before has left off.
    ResumePoint(ResumePoint),
}

/// Why a relay leaves nothing to settle.
pub(super) enum Stopped {
    /// The run is somebody else's now.
    Lost,
    /// It shall be, and nothing of it is on its way here any more.
    HandedOn,
    /// The ledger cannot be written: nothing that could not be committed was shown.
    Unwritable(StoreError),
}

/// Relays the results of a started run until it ends.
pub(super) async fn relay(
    inner: &Arc<Inner>,
    live: &LiveRun,
    prepared: &Prepared,
    run: &Run,
    origin: Origin,
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
        appended: None,
        in_flight: None,
        items: Vec::new(),
        waiting: VecDeque::new(),
        input_ended: None,
        interrupted: None,
        has_noted_repair: false,
        aside: None,
    };
    let bell = || Bell::of(inner, run.id);
    let source = match origin {
        Origin::Answer(Answer::Started(started)) => {
            let reader = ResultReader::new(started.format, inner.limits.line_bytes, results);
            Source::Stream {
                results: started.into_results(),
                reader: Box::new(reader),
            }
        }
        Origin::Answer(Answer::Deferred(aside)) => {
            // The run waits for none of it.
            let reading = inner.tasks.spawn(aside.read_out());
            relay.aside = Some(AbortOnDropHandle::new(reading));
            relay.appended = Some(Numbers::default());
            Source::Appended(Appended::new(inner, run, bell()))
        }
        Origin::ResumePoint(left_off) => {
            relay.book = Book::new(run).behind_rejections(left_off.rejections);
            let appended = Appended::new(inner, run, bell());
            let appended = appended.catching_up_to(left_off.accepted_through);
            relay.appended = Some(Numbers::of(left_off));
            Source::Appended(appended)
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
    /// For a runner that appends its results.
    appended: Option<Numbers>,
    in_flight: Option<InFlight<'a>>,
    /// What the last chunk held; empty between two reads.
    items: Vec<Item>,
    /// Results that have come and are not judged yet.
    waiting: VecDeque<Vec<u8>>,
    /// Why no more will come.
    input_ended: Option<Failure>,
    /// Why the run ends once what was accepted of it by then is judged.
    interrupted: Option<Failure>,
    /// The ledger says that characters were replaced.
    has_noted_repair: bool,
    /// Reads what a `202` says beside its head until the run is over.
    aside: Option<AbortOnDropHandle<()>>,
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
        let mut rare = RareThings::new();
        rare.push(lost(live));
        if !source.catches_up() {
            rare.push(told_to_end(inner, live, run));
        }
        if source.is_stream() {
            rare.push(quiet_until(heard_at + limits.silence));
        } else {
            rare.push(handed_on(inner));
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
                    if !matches!(read, Read::CaughtUp) {
                        self.take(read, &mut source);
                    } else if let Some(failure) = self.interrupted.take() {
                        return Ok(self.ended_by_gateway(failure));
                    } else {
                        rare.push(told_to_end(inner, live, run));
                    }
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
                    Rare::HandOn => return Err(self.release().await),
                    Rare::Interrupted => {
                        let failure = interruption(inner, live);
                        if !cancelling && failure.code == FailureCode::Cancelled {
                            cancelling = true;
                            rare.push(graced(inner, live, prepared, run));
                        } else if let Source::Appended(appended) = &mut source {
                            self.end_behind(appended, failure).await?;
                        } else {
                            return Ok(self.ended_by_gateway(failure));
                        }
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

    /// Ends the run once what is accepted by now is judged, though nobody has looked at it yet: its runner was told that
    /// it is stored. No more is.
    async fn end_behind(
        &mut self,
        appended: &mut Appended<'_>,
        failure: Failure,
    ) -> Result<(), Stopped> {
        self.interrupted = Some(failure);
        tokio::select! {
            biased;
            () = self.live.lost.cancelled() => Err(Stopped::Lost),
            // In a box of its own: every run would keep its room, and few append.
            closed = Box::pin(appended.close()) => match closed {
                Ok(true) => Ok(()),
                Ok(false) => Err(Stopped::Lost),
                Err(error) => Err(Stopped::Unwritable(error)),
            },
        }
    }

    /// What is not on its way yet, the next owner judges.
    async fn release(&mut self) -> Stopped {
        if self.in_flight.is_some() {
            let outcome = committed(&mut self.in_flight).await;
            if let Err(stopped) = self.show(outcome) {
                return stopped;
            }
        }
        Stopped::HandedOn
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
                let pushed = reader.push(&chunk, &mut items);
                self.note_deviations(reader);
                pushed.err().map(|error| self.over_limit(error, &chunk))
            }
            (Read::End, Source::Stream { reader, .. }) => {
                reader.finish(&mut items);
                self.note_deviations(reader);
                let mut failure = end_of_input(&Read::End);
                if let Some(fault) = reader.fault() {
                    failure.message = format!("{}: {fault}", failure.message);
                }
                Some(failure)
            }
            (read @ (Read::Broken | Read::Silent), Source::Stream { reader, .. }) => {
                reader.finish_broken(&mut items);
                if !items.is_empty() {
                    self.note_deviations(reader);
                }
                Some(end_of_input(&read))
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
