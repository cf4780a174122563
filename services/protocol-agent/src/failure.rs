//! Error codes of failed runs, and reasons for an early stop.

use agent_core::failure::ERROR;
use agent_core::model::ModelFailure;
use runner_kit::HostError;

use crate::records::RecordsError;

pub(crate) use agent_core::RunFailure;
pub(crate) use agent_core::failure::{LLM_ERROR, NO_INPUT, NO_MODEL, TIMEOUT};

/// The configuration is invalid.
pub(crate) const CONFIG_INVALID: &str = "protocol_agent.config_invalid";
/// The declaration of a program was refused.
pub(crate) const DECLARATION_INVALID: &str = "protocol_agent.declaration_invalid";
/// The model violated the protocol, also after repairs.
pub(crate) const PROTOCOL: &str = "runner.protocol";
/// The gateway did not store the graph's records.
pub(crate) const RECORDS: &str = "protocol_agent.records_unavailable";

/// Early stop of a run.
#[derive(Debug)]
pub(crate) enum Halt {
    /// The run was cancelled, or its server stops.
    Cancelled,
    /// The run's time is over.
    Deadline,
    /// The run fails with this error.
    Failed(RunFailure),
}

/// Failure of a run at its deadline.
pub(crate) fn timeout() -> RunFailure {
    RunFailure::new(TIMEOUT, "the run's time is over").retryable()
}

impl From<HostError> for Halt {
    fn from(error: HostError) -> Self {
        if error.is_cancelled() {
            return Self::Cancelled;
        }
        if error.is_deadline_exceeded() {
            return Self::Deadline;
        }
        Self::Failed(RunFailure {
            retryable: error.retryable,
            ..RunFailure::new(ERROR, error.to_string())
        })
    }
}

impl From<RecordsError> for Halt {
    fn from(error: RecordsError) -> Self {
        match error {
            RecordsError::Unavailable(error) if error.is_cancelled() => Self::Cancelled,
            RecordsError::Unavailable(error) if error.is_deadline_exceeded() => Self::Deadline,
            // Stored graphs survive, so a retry continues them.
            error => Self::Failed(RunFailure::new(RECORDS, error.to_string()).retryable()),
        }
    }
}

impl From<ModelFailure> for Halt {
    fn from(failed: ModelFailure) -> Self {
        match failed {
            ModelFailure::Over(error) => error.into(),
            failed => Self::Failed(RunFailure {
                retryable: matches!(&failed, ModelFailure::Silent(silence) if silence.is_passing),
                ..RunFailure::new(LLM_ERROR, failed.to_string())
            }),
        }
    }
}
