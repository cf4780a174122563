//! Sources of results: the answer to the POST, or later appends of the runner.

use std::time::Duration;

use bytes::Bytes;
use domain::run::{Failure, FailureCode, Run};
use futures_util::StreamExt as _;
use protocol::id::RunId;
use store::{AppendsClosed, CloseAppends, Store, StoreError};

use crate::ending::internal_failure;
use crate::ledger::LedgerWriter;
use crate::notifier::RunWaiter;
use crate::relay::reader::ResultReader;
use runner_client::Results;

/// Result of a read from a source.
pub(super) enum SourceRead {
    Chunk(Bytes),
    /// Appended results in the form in which they were sent.
    Appended(Vec<Vec<u8>>),
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
    Stream {
        results: Results,
        reader: Box<ResultReader>,
    },
    Appended(AppendedSource<'a>),
}

impl ResultInput<'_> {
    /// The next read. It is cancel-safe.
    pub(super) async fn next(&mut self) -> SourceRead {
        match self {
            Self::Stream { results, .. } => match results.next().await {
                Some(Ok(chunk)) => SourceRead::Chunk(chunk),
                None => SourceRead::End,
                Some(Err(_)) => SourceRead::Broken,
            },
            // Boxed: the future is large, and most runs stream.
            Self::Appended(appended) => Box::pin(appended.next()).await,
        }
    }

    /// True when the time between two reads measures the silence.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self, Self::Stream { .. })
    }

    /// True when a backlog must be read before any signal is handled.
    pub(super) fn has_backlog(&self) -> bool {
        matches!(self, Self::Appended(appended) if appended.backlog_end.is_some())
    }
}

/// Margin for leases that end between two milliseconds.
const MOMENT: Duration = Duration::from_millis(5);

enum AppendRead {
    Found(SourceRead),
    Nothing { heartbeat_remaining: Duration },
}

/// Results that a runner appends through any replica.
pub(super) struct AppendedSource<'a> {
    store: &'a Store,
    ledger: &'a LedgerWriter,
    poll: Duration,
    run: RunId,
    attempt: u32,
    epoch: i64,
    waiter: RunWaiter,
    /// Number of the last result that was read.
    read_through: u64,
    /// End of the backlog, which must be read first: results before a take-over, or the last ones before the
    /// end.
    backlog_end: Option<u64>,
}

impl<'a> AppendedSource<'a> {
    pub(super) fn new(
        (store, ledger): (&'a Store, &'a LedgerWriter),
        poll: Duration,
        run: &Run,
        waiter: RunWaiter,
    ) -> Self {
        Self {
            store,
            ledger,
            poll,
            run: run.id,
            attempt: run.attempt,
            epoch: run.fencing_token,
            waiter,
            read_through: 0,
            backlog_end: None,
        }
    }

    /// The same for a run that was taken over. It reports when the backlog was read.
    pub(super) fn with_backlog(mut self, accepted_through: u64) -> Self {
        self.backlog_end = Some(accepted_through);
        self
    }

    /// Accepts no more appends, and makes the rest the backlog. False: another process owns the run.
    pub(super) async fn close(&mut self) -> Result<bool, StoreError> {
        let closed = self.close_appends(false).await?;
        if let AppendsClosed::Behind(through) = closed {
            self.backlog_end = Some(through);
        }
        Ok(closed != AppendsClosed::Lost)
    }

    async fn close_appends(&self, only_if_expired: bool) -> Result<AppendsClosed, StoreError> {
        let close = CloseAppends {
            run_id: self.run,
            attempt: self.attempt,
            epoch: self.epoch,
            only_if_expired,
        };
        self.ledger
            .retry_within_lease(self.run, || self.store.write(close))
            .await
    }

    async fn next(&mut self) -> SourceRead {
        loop {
            if self.backlog_end.is_some_and(|end| self.read_through >= end) {
                self.backlog_end = None;
                return SourceRead::CaughtUp;
            }
            // Subscribe first, then look, so that no append is missed.
            let notifications = self.waiter.notifications();
            let notified = notifications.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            let poll = self.poll;
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
                () = notified => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn look(&mut self) -> Result<AppendRead, StoreError> {
        // Read first: results from before the end of the lease are read after it.
        let heartbeat_millis = self
            .store
            .leases()
            .heartbeat_remaining(self.run, self.attempt)
            .await?;
        let appended = self
            .store
            .leases()
            .appended_results(self.run, self.read_through)
            .await?;
        if let Some((last, results)) = appended {
            self.read_through = last;
            let results = results.into_iter().map(String::into_bytes);
            return Ok(AppendRead::Found(SourceRead::Appended(results.collect())));
        }
        if let Some(millis) = heartbeat_millis {
            let heartbeat_remaining = Duration::from_millis(millis);
            return Ok(AppendRead::Nothing {
                heartbeat_remaining,
            });
        }
        // Appends of the meantime are read first; no more are accepted.
        // Only if still expired: a heartbeat since the look keeps the run alive.
        Ok(match self.close_appends(true).await? {
            AppendsClosed::Behind(through) if through <= self.read_through => {
                AppendRead::Found(SourceRead::Orphaned)
            }
            AppendsClosed::Behind(_) | AppendsClosed::Heartbeating => AppendRead::Nothing {
                heartbeat_remaining: Duration::ZERO,
            },
            // The lost lease is signalled elsewhere.
            AppendsClosed::Lost => AppendRead::Nothing {
                heartbeat_remaining: self.poll,
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
        | SourceRead::CaughtUp
        | SourceRead::Broken => (
            FailureCode::RunnerStreamTruncated,
            "the connection to the runner broke before the run ended",
        ),
    };
    Failure::new(code, message)
}
