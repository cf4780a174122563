//! Task of a run in a simulated gateway: the stages of `RunExecutor`, over the real machines.

use std::collections::VecDeque;
use std::sync::Arc;

use domain::run::{Failure, Run};
use store::{Appended, Dispatch, LeaseFilter, RejectedResults, StoreError};

use super::network::TaskKey;
use super::runner::PostAnswer;
use crate::dispatch::resuming::LostConnection;
use crate::ledger::commit::{CommitMachine, RetryWindow};
use crate::live::{CommittedFrames, LiveRun};
use crate::relay::RelayMachine;
use crate::relay::source::{AppendCursor, SourceRead};

pub(super) struct Task {
    pub(super) key: TaskKey,
    pub(super) live: Arc<LiveRun>,
    pub(super) run: Run,
    pub(super) stage: Stage,
    /// Number of the connection to the runner.
    pub(super) connection: u64,
    /// Set while the task attaches to a runner again.
    pub(super) resumption: Option<Resumption>,
    pub(super) lost: Option<LostConnection>,
}

/// The ledger of a run whose connection was lost.
#[derive(Clone)]
pub(super) struct Resumption {
    pub(super) lines: Vec<String>,
    pub(super) rejected: RejectedResults,
    /// Number of the last stored result.
    pub(super) after: u64,
    /// Last event that the checkpoint of the run includes.
    pub(super) checkpoint: u64,
    /// Set while the run starts again: number of the deltas that stay.
    pub(super) start: Option<usize>,
}

pub(super) enum Stage {
    /// Reads the row.
    Prepare,
    /// Reads the row and the ledger.
    Restore(Retry),
    Claim(Box<ClaimStage>),
    /// Renews the lease of a slow claim.
    Extend {
        attempt: u32,
        requested_at: u64,
    },
    Post {
        attempt: u32,
        first_byte_until: u64,
        answer: Option<PostAnswer>,
    },
    Backoff {
        attempt: u32,
        until: u64,
    },
    /// Writes that the run is async.
    Defer(Retry),
    Relay(Box<RelayStage>),
    Finish(Box<FinishStage>),
    /// Commits the event of a new start.
    Restart(Box<FinishStage>),
    /// Takes a run that no task drives, to end it.
    Own {
        leases: LeaseFilter,
        failure: Failure,
    },
    Release,
    Done,
}

pub(super) struct ClaimStage {
    pub(super) dispatch: Dispatch,
    pub(super) requested_at: u64,
    pub(super) retry: Retry,
}

/// An operation that is repeated after errors.
pub(super) struct Retry {
    pub(super) window: RetryWindow,
    pub(super) at: Option<u64>,
}

/// Commit in flight, with its state between two tries.
pub(super) struct CommitStage {
    pub(super) machine: CommitMachine,
    pub(super) token: Option<u64>,
    pub(super) retry_at: Option<u64>,
}

pub(super) struct FinishStage {
    pub(super) commit: CommitStage,
    pub(super) frames: CommittedFrames,
}

/// Lookup that the machine waits for.
pub(super) struct Lookup {
    pub(super) token: u64,
    pub(super) retry: Retry,
    /// A close of appends; otherwise a read of the row.
    pub(super) closes: bool,
}

pub(super) enum Source {
    Stream,
    Appends {
        cursor: AppendCursor,
        /// The read in flight, or the close that follows it.
        token: Option<u64>,
        look_at: u64,
    },
}

#[derive(Default)]
pub(super) struct Watches {
    pub(super) interrupts: bool,
    pub(super) grace: bool,
    pub(super) release: bool,
    pub(super) silence_at: Option<u64>,
}

pub(super) struct RelayStage {
    pub(super) machine: RelayMachine<'static>,
    pub(super) source: Source,
    pub(super) reads: VecDeque<SourceRead>,
    pub(super) commit: Option<CommitStage>,
    pub(super) committed: Option<Result<Appended, StoreError>>,
    pub(super) lookup: Option<Lookup>,
    pub(super) watches: Watches,
}
