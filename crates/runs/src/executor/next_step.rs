//! Decisions of a run's task: what follows each part of it. Pure.

use domain::run::Failure;
use protocol::run::RunStatus;
use store::{LeaseFilter, StoreError};

use crate::ending::internal_failure;
use crate::relay::{RelayStop, Relayed};

/// Step of the task of a run.
pub(crate) enum TaskStep {
    /// Write the end.
    Finish(Box<Relayed>),
    /// Stop without a terminal: another process owns the run.
    Leave,
    /// Give the lease to the next owner.
    Release,
    /// Attach to the runner again.
    Resume,
    /// Stop: the ledger cannot be written.
    Stop(StoreError),
}

/// Step after a relay.
pub(crate) fn after_relay(outcome: Result<Relayed, RelayStop>) -> TaskStep {
    match outcome {
        Ok(relayed) => TaskStep::Finish(Box::new(relayed)),
        Err(RelayStop::Lost) => TaskStep::Leave,
        // Only its runner has to be waited for, so the stop need not end the run.
        Err(RelayStop::Released) => TaskStep::Release,
        Err(RelayStop::Disconnected) => TaskStep::Resume,
        Err(RelayStop::Unwritable(error)) => TaskStep::Stop(error),
    }
}

/// Failure with which a task ends its run after an error. `None`: recovery takes it over when the lease expires.
pub(crate) fn failure_after(error: &StoreError) -> Option<Failure> {
    // After a lasting error the next owner would fail in the same way.
    (!error.is_transient()).then(internal_failure)
}

/// Way to the ownership of a run that no process drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrphanClaim {
    /// Take the lease over, if it is among these.
    TakeOver(LeaseFilter),
    /// Take the run as a dispatch does: it has no lease yet.
    Begin,
}

/// Way to own a run of this status. `None`: it has ended.
pub(crate) fn claim_of(status: RunStatus, leases: LeaseFilter) -> Option<OrphanClaim> {
    match status {
        RunStatus::Running => Some(OrphanClaim::TakeOver(leases)),
        RunStatus::Created | RunStatus::Queued => Some(OrphanClaim::Begin),
        _ => None,
    }
}
