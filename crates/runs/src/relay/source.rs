//! Where the results of a run come from: the answer to its POST, or what its runner appends later.

use std::time::Duration;

use bytes::Bytes;
use domain::run::{Failure, FailureCode, Run};
use futures_util::StreamExt as _;
use protocol::id::RunId;
use store::{AppendsClosed, CloseAppends, StoreError};

use crate::Inner;
use crate::doorbell::Bell;
use crate::relay::reader::ResultReader;
use crate::settle::{internal, surely};
use runner_client::Results;

/// What a source gave.
pub(super) enum Read {
    Chunk(Bytes),
    /// Results that were appended, as they were sent.
    Appended(Vec<Vec<u8>>),
    End,
    Broken,
    Silent,
    /// All has been read that was appended before this process had the run, or before it ends it.
    CaughtUp,
    /// What was appended is not what was written.
    Unreadable,
    /// Nobody has been heard of within the lease.
    Orphaned,
}

/// A source of results.
pub(super) enum Source<'a> {
    Stream {
        results: Results,
        reader: Box<ResultReader>,
    },
    Appended(Appended<'a>),
}

impl Source<'_> {
    /// What comes next. May be given up at any moment and asked again.
    pub(super) async fn next(&mut self) -> Read {
        match self {
            Self::Stream { results, .. } => match results.next().await {
                Some(Ok(chunk)) => Read::Chunk(chunk),
                None => Read::End,
                Some(Err(_)) => Read::Broken,
            },
            // In a box of its own: it is large, and most runs stream.
            Self::Appended(appended) => Box::pin(appended.next()).await,
        }
    }

    /// Whether its silence is told by the time between two reads.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self, Self::Stream { .. })
    }

    /// Whether there is something to be read before anything else happens to the run.
    pub(super) fn catches_up(&self) -> bool {
        matches!(self, Self::Appended(appended) if appended.catches_up_to.is_some())
    }
}

/// Leases end between two milliseconds.
const MOMENT: Duration = Duration::from_millis(5);

enum Look {
    Found(Read),
    Nothing { heartbeat_remaining: Duration },
}

/// What a runner appends, through any replica: it stands in the table.
pub(super) struct Appended<'a> {
    inner: &'a Inner,
    run: RunId,
    attempt: u32,
    epoch: i64,
    bell: Bell,
    /// The last number that was read.
    read_through: u64,
    /// What must be read before anything else happens: up to this number. Others have been owners before and left it, or
    /// it is the last that is read.
    catches_up_to: Option<u64>,
}

impl<'a> Appended<'a> {
    pub(super) fn new(inner: &'a Inner, run: &Run, bell: Bell) -> Self {
        Self {
            inner,
            run: run.id,
            attempt: run.attempt,
            epoch: run.lease_epoch,
            bell,
            read_through: 0,
            catches_up_to: None,
        }
    }

    /// The same, for a run that was taken over: says when it has read what was accepted before.
    pub(super) fn catching_up_to(mut self, accepted_through: u64) -> Self {
        self.catches_up_to = Some(accepted_through);
        self
    }

    /// Has no more accepted, and says when it has read what was. False: the run is not ours.
    pub(super) async fn close(&mut self) -> Result<bool, StoreError> {
        let closed = self.close_appends(false).await?;
        if let AppendsClosed::Behind(through) = closed {
            self.catches_up_to = Some(through);
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
        surely(self.inner, self.run, || self.inner.store.write(close)).await
    }

    async fn next(&mut self) -> Read {
        loop {
            if self
                .catches_up_to
                .is_some_and(|end| self.read_through >= end)
            {
                self.catches_up_to = None;
                return Read::CaughtUp;
            }
            // First listen, then look: nothing falls between.
            let ring = self.bell.ring();
            let rung = ring.notified();
            tokio::pin!(rung);
            rung.as_mut().enable();
            let poll = self.inner.limits.poll;
            let pause = match self.look().await {
                Ok(Look::Found(read)) => return read,
                // Heard of until then: nobody rings when that is over.
                Ok(Look::Nothing {
                    heartbeat_remaining,
                }) => poll.min(heartbeat_remaining + MOMENT),
                Err(error) if !error.is_transient() => {
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(run.id = %self.run, error, "what was appended to run {} cannot be read", self.run);
                    return Read::Unreadable;
                }
                // The lease of the run itself says when that has lasted too long.
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(run.id = %self.run, error, "what was appended to run {} cannot be read, trying again", self.run);
                    poll
                }
            };
            tokio::select! {
                () = rung => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn look(&mut self) -> Result<Look, StoreError> {
        // First whether it is alive: what came before the end of its lease is read after it.
        let heard = self
            .inner
            .store
            .leases()
            .heartbeat_remaining(self.run, self.attempt)
            .await?;
        let appended = self
            .inner
            .store
            .leases()
            .appended_results(self.run, self.read_through)
            .await?;
        if let Some((last, results)) = appended {
            self.read_through = last;
            let results = results.into_iter().map(String::into_bytes);
            return Ok(Look::Found(Read::Appended(results.collect())));
        }
        if let Some(millis) = heard {
            let heartbeat_remaining = Duration::from_millis(millis);
            return Ok(Look::Nothing {
                heartbeat_remaining,
            });
        }
        // What has come since is read first, and nothing comes after it.
        Ok(match self.close_appends(true).await? {
            AppendsClosed::Behind(through) if through <= self.read_through => {
                Look::Found(Read::Orphaned)
            }
            AppendsClosed::Behind(_) | AppendsClosed::Heartbeating => Look::Nothing {
                heartbeat_remaining: Duration::ZERO,
            },
            // That it is lost is told elsewhere.
            AppendsClosed::Lost => Look::Nothing {
                heartbeat_remaining: self.inner.limits.poll,
            },
        })
    }
}

/// Why nothing more comes after this.
pub(super) fn end_of_input(read: &Read) -> Failure {
    let (code, message) = match read {
        Read::Silent => (
            FailureCode::RunnerIdleTimeout,
            "the runner sent nothing for limits.silence_seconds",
        ),
        Read::Unreadable => return internal(),
        Read::Orphaned => (
            FailureCode::RunnerOrphaned,
            "nothing was heard of the runner for runs.append_lease_seconds: it must append results or \
             send heartbeats",
        ),
        Read::End => (
            FailureCode::RunnerStreamTruncated,
            "the runner's answer ended without run.completed or run.failed",
        ),
        Read::Chunk(_) | Read::Appended(_) | Read::CaughtUp | Read::Broken => (
            FailureCode::RunnerStreamTruncated,
            "the connection to the runner broke before the run ended",
        ),
    };
    Failure::new(code, message)
}
