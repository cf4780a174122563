//! Causes of a run's end.

use domain::normalize::{RunMessages, RunnerEnding};
use domain::run::{Failure, FailureCode};
use protocol::run::RunStatus;

/// Cause of a run's end, by its runner or by the gateway.
pub(super) enum EndCause {
    Runner(RunnerEnding),
    Gateway {
        failure: Failure,
        messages: RunMessages,
    },
}

impl EndCause {
    /// Code for metrics, from a bounded set: the runner's own codes are free text.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::Runner(ending) if ending.status == RunStatus::Completed => "ok",
            Self::Runner(_) => "runner.failed",
            Self::Gateway { failure, .. } => failure.code.as_str(),
        }
    }
}

/// A failure of the gateway.
pub(super) fn internal_failure() -> Failure {
    Failure::new(FailureCode::HostInternal, "the gateway failed; see its log")
}
