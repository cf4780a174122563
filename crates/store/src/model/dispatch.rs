//! Dispatch of a run, and the outcome of an attempt.

use std::sync::Arc;
use std::time::Duration;

use domain::run::Run;
use protocol::id::RunId;
use serde_json::value::RawValue;

use crate::part_text::SharedParts;

/// Moves a run into its next attempt: `created` → `running`, or a retry of a `running` one.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// The run as the caller read it; its status and epoch must not have changed.
    pub run: Run,
    /// From 1.
    pub attempt: u32,
    pub owner: String,
    /// Duration of the owner's lease, from the commit on.
    pub lease: Duration,
    /// The context as sent.
    pub context: Arc<RawValue>,
    /// Parts of the context that are shared with other runs.
    pub shared: SharedParts,
    /// Deadline of the run; its time starts with the first attempt.
    pub deadline_at: i64,
    pub purpose: DispatchPurpose,
    pub at: i64,
}

/// Purpose of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DispatchPurpose {
    /// The runner is called. A pause holds the first attempt.
    Call,
    /// The owner ends the run without its runner.
    End,
}

/// Result of a dispatch.
#[derive(Clone, Debug)]
pub enum Dispatched {
    /// The caller owns the run, under its new epoch.
    Owned(Box<Run>),
    /// The run has another owner, has ended, or a pause holds it.
    Lost,
}

/// Records the outcome of an attempt.
pub struct AttemptOutcome {
    pub(crate) run_id: RunId,
    pub(crate) attempt: u32,
    pub(crate) outcome: String,
    pub(crate) http_status: Option<i64>,
}
