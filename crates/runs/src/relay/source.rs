//! Sources of results: the answer to the POST, or later appends of the runner.
//!
//! A source is the first step of the relay: bytes → results → events → ledger → viewers. The relay drives one run in
//! one task, from the start of its runner to the cause of its end. `RelayMachine` decides without I/O or clock;
//! `RelayShell` executes. The simulation (`tests/simulation`) drives the same machine.
//!
//! # Sequence
//!
//! 1. `ResultInput::next` reads a chunk of the runner's response, or appends of an async run: calls of this process
//!    from memory (`AppendInbox`), those that another replica has accepted from their table.
//! 2. `ResultReader` finds JSON documents in the bytes, whatever the framing. `RelayMachine::take` queues them.
//! 3. `validate_waiting` validates each one (`ResultValidator`). An accepted result gets the next sequence in the
//!    `EventBuffer`; a rejected one becomes a stored rejection; a terminal ends the loop.
//! 4. `start_commit` drains the buffer into one `Append`. At most one commit per run is in flight.
//! 5. `RelayShell::publish` shows the frames after the commit: to `RunLog` for clients of this process, and as a
//!    notification for other replicas, whose clients read the table.
//! 6. After the end, `Finisher` commits the rest of the buffer and the terminal event in one transaction.
//!
//! # Batching and backpressure
//!
//! The commit in flight is the batching window: further events gather in the buffer. Without a commit in flight, the
//! task yields once, so that data in the socket joins the commit. After `READS_IN_A_ROW` reads of a steady stream a
//! commit starts if none is in flight, and signals are polled.
//!
//! A full buffer stops validation and reads. The socket fills, TCP slows the runner down, and memory stays bounded. The
//! writer's queue has the same effect: the commit waits in it. A slow client has no effect on the run. It falls out of
//! `RunLog` and reads pages of the table.
//!
//! # Invariants
//!
//! * Clients see committed events only, in the order of their sequences.
//! * An append names the fencing token and the last sequence; it changes no row after a take-over or an end.
//! * The terminal event follows all accepted results of the buffer, and nothing follows it.
//! * An appended result was confirmed to its runner, so it is validated before a gateway failure ends the run
//!   (`RelayOutput::CloseAppends`). A terminal result drops the results after it.
//!
//! # End and late results
//!
//! After a terminal, the results of the same read are validated too; rejected ones are stored, and none becomes an
//! event. The relay then reads no more, and the drop of the response closes the socket. A cancel leaves
//! the runner its grace period; silence or a closed stream within it ends the run as cancelled.
//!
//! # Faults
//!
//! | fault | consequence |
//! |---|---|
//! | response ends or breaks without a terminal | `runner.stream_truncated`; a complete terminal still counts |
//! | the same, of a resumable runner | the run's task attaches again (`RelayStop::Disconnected`) |
//! | no bytes for `limits.silence_seconds` | `runner.idle_timeout`; time with a full buffer does not count |
//! | no append or heartbeat for the append lease | appends are closed, the rest is read, then `runner.orphaned` |
//! | limit of bytes exceeded | `runner.output_limit`, and a rejection with the reason |
//! | database away | `LedgerWriter` retries for one lease; then `RelayStop::Unwritable`, and recovery takes over |
//! | commit reply lost | the next try matches no row; fencing token and sequence of the row prove the commit |
//! | lease lost | `RelayStop::Lost`: no terminal, nothing shown of the commit that matched no row |
//! | another replica accepts the same results first | nothing is written; the run is released and resumed |
//! | gateway stops | async and resumable runs are released after their commit in flight; the next owner resumes them |
//!
//! # Bounds
//!
//! * `EventBuffer`: `MAX_BYTES`, `MAX_EVENTS`, `MAX_REJECTIONS`, checked before each result. A commit in flight holds a
//!   second buffer. A run stores `MAX_STORED_REJECTIONS`; further rejections are counted.
//! * `ResultReader`: `limits.line_bytes`, `limits.event_bytes`, `DOCUMENT_BYTES`; bytes that are no result are limited
//!   to `OTHER_BYTES_RATIO` times `limits.run_bytes`.
//! * Results that wait for validation come from one read: a chunk, or `CALLS_PER_READ` append calls.
//! * `RunLog`: `BUFFER_BYTES` of the newest frames, shared by all clients of the run.
//!
//! # Rejected alternatives
//!
//! * A timer per event for silence is expensive. The timer is armed again only after it has expired.
//! * `select!` over all signals would poll each of them for every chunk, so `RunSignals` is a set of its own.
//! * A timeout around a ledger write leaves the write in the queue, and it would commit unseen.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::run::{Failure, FailureCode, Run};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use protocol::id::RunId;
use store::{AppendResults, AppendsClosed, CloseAppends, StoreError};
use tokio::sync::futures::OwnedNotified;

use crate::deps::RunDeps;
use crate::ending::internal_failure;
use crate::live::LiveRun;
use crate::notifier::RunWaiter;
use runner_client::Results;

/// Result of a read from a source.
pub(crate) enum SourceRead {
    Chunk(Bytes),
    /// Appended results in the form in which they were sent.
    Appended(Vec<Vec<u8>>),
    /// An append call that the next commit accepts.
    Call(Arc<AppendResults>),
    End,
    Broken,
    Silent,
    /// The backlog was read: the appends before a take-over, or before the end.
    CaughtUp,
    /// An appended result is corrupt.
    Unreadable,
    /// The runner was silent for the full lease.
    Orphaned,
}

/// A source of results.
pub(super) enum ResultInput<'a> {
    /// The body of the runner's response.
    Stream(Results),
    /// Later appends of the runner.
    Appended(AppendedSource<'a>),
}

impl ResultInput<'_> {
    /// The next read. It is cancel-safe.
    pub(super) async fn next(&mut self) -> SourceRead {
        match self {
            Self::Stream(results) => match results.next().await {
                Some(Ok(chunk)) => SourceRead::Chunk(chunk),
                None => SourceRead::End,
                Some(Err(_)) => SourceRead::Broken,
            },
            // Boxed: the future is large, and most runs stream.
            Self::Appended(appended) => Box::pin(appended.next()).await,
        }
    }
}

/// Margin for leases that end between two milliseconds.
const MOMENT: Duration = Duration::from_millis(5);

enum AppendRead {
    Found(SourceRead),
    Nothing { heartbeat_remaining: Duration },
}

/// Reading position in the appended results of a run. No I/O.
pub(crate) struct AppendCursor {
    /// Number of the last result that was read.
    read_through: u64,
    /// End of the backlog, which must be read first: results before a take-over, or the last ones before the
    /// end.
    backlog_end: Option<u64>,
}

impl AppendCursor {
    /// Starts at the first result. `backlog_end`: see the field.
    pub(crate) fn new(backlog_end: Option<u64>) -> Self {
        Self {
            read_through: 0,
            backlog_end,
        }
    }

    pub(crate) fn read_through(&self) -> u64 {
        self.read_through
    }

    /// True once, when the backlog was read.
    pub(crate) fn take_caught_up(&mut self) -> bool {
        let is_caught_up = self.backlog_end.is_some_and(|end| self.read_through >= end);
        if is_caught_up {
            self.backlog_end = None;
        }
        is_caught_up
    }

    /// Advances to the result `last`.
    pub(crate) fn advance(&mut self, last: u64, results: Vec<String>) -> SourceRead {
        self.read_through = last;
        SourceRead::Appended(results.into_iter().map(String::into_bytes).collect())
    }

    /// Makes the rest the backlog after a close. False: another process owns the run.
    pub(crate) fn on_closed(&mut self, closed: AppendsClosed) -> bool {
        if let AppendsClosed::Behind(through) = closed {
            self.backlog_end = Some(through);
        }
        closed != AppendsClosed::Lost
    }

    /// Takes the result of a close after the heartbeat lease has expired. `Err`: pause before the next look; `None`
    /// for the usual one.
    pub(crate) fn on_expired(&self, closed: AppendsClosed) -> Result<SourceRead, Option<Duration>> {
        match closed {
            AppendsClosed::Behind(through) if through <= self.read_through => {
                Ok(SourceRead::Orphaned)
            }
            // Appends of the meantime are read first.
            AppendsClosed::Behind(_) | AppendsClosed::Heartbeating => Err(Some(Duration::ZERO)),
            // The lost lease is signalled elsewhere.
            AppendsClosed::Lost => Err(None),
        }
    }
}

/// Rows of a look for appended results.
struct AppendedRows {
    /// Number of the result after which they were read.
    after: u64,
    heartbeat_millis: Option<u64>,
    /// Number of the last result, and the results.
    results: Option<(u64, Vec<String>)>,
}

/// Reads what was appended after the result `after`.
async fn read_rows(
    deps: &RunDeps,
    run: RunId,
    attempt: u32,
    after: u64,
) -> Result<AppendedRows, StoreError> {
    let leases = deps.store.leases();
    // Read first: results from before the end of the lease are read after it.
    let heartbeat_millis = leases.heartbeat_remaining(run, attempt).await?;
    let results = leases.appended_results(run, after).await?;
    Ok(AppendedRows {
        after,
        heartbeat_millis,
        results,
    })
}

/// Results that a runner appends through any replica.
pub(super) struct AppendedSource<'a> {
    deps: &'a RunDeps,
    live: &'a LiveRun,
    run: RunId,
    attempt: u32,
    epoch: i64,
    waiter: RunWaiter,
    /// Notification after the begin of the newest look.
    notified: Pin<Box<OwnedNotified>>,
    /// A look in flight. A dropped query would cost its database connection.
    look: Option<BoxFuture<'a, Result<AppendedRows, StoreError>>>,
    cursor: AppendCursor,
    /// Bytes of the results up to the cursor.
    bytes: u64,
    /// Calls in memory are taken once the backlog was read.
    opens_after_backlog: bool,
}

impl<'a> AppendedSource<'a> {
    pub(super) fn new(deps: &'a RunDeps, live: &'a LiveRun, run: &Run) -> Self {
        let waiter = RunWaiter::of(&deps.notifier, run.id);
        Self {
            deps,
            live,
            run: run.id,
            attempt: run.attempt,
            epoch: run.fencing_token,
            notified: Box::pin(waiter.next_notification()),
            waiter,
            look: None,
            cursor: AppendCursor::new(None),
            bytes: 0,
            opens_after_backlog: true,
        }
    }

    /// From now on, calls in memory are taken. Those that overtook the 202 are repeated.
    fn open_inbox(&mut self) {
        self.opens_after_backlog = false;
        self.live.inbox.open();
        self.deps.notifier.wake(self.run);
    }

    /// The same after results up to this number.
    pub(super) fn after(mut self, through: u64) -> Self {
        self.cursor.read_through = through;
        self
    }

    /// The same for a run that was taken over. It reports when the backlog was read.
    pub(super) fn with_backlog(mut self, accepted_through: u64) -> Self {
        self.cursor.backlog_end = Some(accepted_through);
        self
    }

    /// Accepts no more appends, and makes the rest the backlog. False: another process owns the run.
    pub(super) async fn close(&mut self) -> Result<bool, StoreError> {
        self.opens_after_backlog = false;
        self.live.inbox.stop();
        let closed = self.close_appends(false).await?;
        Ok(self.cursor.on_closed(closed))
    }

    async fn close_appends(&mut self, only_if_expired: bool) -> Result<AppendsClosed, StoreError> {
        let close = CloseAppends {
            run_id: self.run,
            attempt: self.attempt,
            epoch: self.epoch,
            only_if_expired,
        };
        let deps = self.deps;
        deps.ledger
            .retry_within_lease(self.run, || deps.store.write(close))
            .await
    }

    async fn next(&mut self) -> SourceRead {
        loop {
            let is_caught_up = self.cursor.take_caught_up();
            if self.opens_after_backlog && self.cursor.backlog_end.is_none() {
                self.open_inbox();
            }
            if is_caught_up {
                return SourceRead::CaughtUp;
            }
            if let Some(call) = self.next_call() {
                return SourceRead::Call(call);
            }
            let poll = self.deps.limits.poll;
            let pause = match self.look().await {
                Ok(AppendRead::Found(read)) => return read,
                // Without a notification, the end of the heartbeat lease must be noticed.
                Ok(AppendRead::Nothing {
                    heartbeat_remaining,
                }) => poll.min(heartbeat_remaining + MOMENT),
                Err(error) if !error.is_transient() => {
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(run.id = %self.run, error, "cannot read new events of run {}", self.run);
                    return SourceRead::Unreadable;
                }
                // The lease of the run limits how long this lasts.
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(run.id = %self.run, error, "cannot read new events of run {}, trying again", self.run);
                    poll
                }
            };
            tokio::select! {
                // Subscribed again before the next look, so that no append is missed.
                () = &mut self.notified => self.notified.set(self.waiter.next_notification()),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// The next call in memory.
    fn next_call(&mut self) -> Option<Arc<AppendResults>> {
        let read_through = self.cursor.read_through();
        let inbox = &self.live.inbox;
        let call = inbox.take(self.attempt, read_through, self.bytes)?;
        for (number, raw) in &call.results {
            self.cursor.read_through = *number;
            self.bytes += raw.len() as u64;
        }
        Some(call)
    }

    /// The rows after the cursor.
    async fn rows(&mut self) -> Result<AppendedRows, StoreError> {
        loop {
            let after = self.cursor.read_through();
            let (deps, run, attempt) = (self.deps, self.run, self.attempt);
            let begin = || read_rows(deps, run, attempt, after).boxed();
            let read = self.look.get_or_insert_with(begin).await;
            self.look = None;
            match read {
                // Calls in memory have moved the cursor since.
                Ok(rows) if rows.after != after => {}
                read => return read,
            }
        }
    }

    async fn look(&mut self) -> Result<AppendRead, StoreError> {
        let AppendedRows {
            heartbeat_millis,
            results,
            ..
        } = self.rows().await?;
        if let Some((last, results)) = results {
            self.bytes += results.iter().map(|raw| raw.len() as u64).sum::<u64>();
            return Ok(AppendRead::Found(self.cursor.advance(last, results)));
        }
        if let Some(millis) = heartbeat_millis {
            let heartbeat_remaining = Duration::from_millis(millis);
            return Ok(AppendRead::Nothing {
                heartbeat_remaining,
            });
        }
        // No more are accepted. Only if still expired: a heartbeat since the look keeps the run alive.
        let closed = self.close_appends(true).await?;
        Ok(match self.cursor.on_expired(closed) {
            Ok(read) => AppendRead::Found(read),
            Err(pause) => AppendRead::Nothing {
                heartbeat_remaining: pause.unwrap_or(self.deps.limits.poll),
            },
        })
    }
}

/// Failure for the end of this input.
pub(super) fn end_of_input(read: &SourceRead) -> Failure {
    let (code, message) = match read {
        SourceRead::Silent => (
            FailureCode::RunnerIdleTimeout,
            "the runner sent nothing for limits.silence_seconds",
        ),
        SourceRead::Unreadable => return internal_failure(),
        SourceRead::Orphaned => (
            FailureCode::RunnerOrphaned,
            "the runner sent nothing for runs.append_lease_seconds: it must append results or \
             send heartbeats",
        ),
        SourceRead::End => (
            FailureCode::RunnerStreamTruncated,
            "the runner's answer ended without run.completed or run.failed",
        ),
        SourceRead::Chunk(_)
        | SourceRead::Appended(_)
        | SourceRead::Call(_)
        | SourceRead::CaughtUp
        | SourceRead::Broken => (
            FailureCode::RunnerStreamTruncated,
            "the connection to the runner broke before the run ended",
        ),
    };
    Failure::new(code, message)
}
