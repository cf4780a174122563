//! Error codes of failed runs, and reasons for an early stop.

use runner_kit::HostError;
use runner_kit::runner::CANCELLED;

use crate::model::ModelCallFailure;
use crate::records::RecordsError;

/// The configuration is invalid.
pub(crate) const CONFIG_INVALID: &str = "protocol_agent.config_invalid";
/// The declaration of a program was refused.
pub(crate) const DECLARATION_INVALID: &str = "protocol_agent.declaration_invalid";
/// No model of the configuration was granted.
pub(crate) const NO_MODEL: &str = "runner.no_model";
/// The event has no input, and no graph is open.
pub(crate) const NO_INPUT: &str = "runner.no_input";
/// The run's time is over.
pub(crate) const TIMEOUT: &str = "runner.timeout";
/// No model has answered.
pub(crate) const LLM_ERROR: &str = "runner.llm_error";
/// The model violated the protocol, also after repairs.
pub(crate) const PROTOCOL: &str = "runner.protocol";
/// The gateway did not store the graph's records.
pub(crate) const RECORDS: &str = "protocol_agent.records_unavailable";
/// Any other failure of the host.
pub(crate) const ERROR: &str = "runner.error";

/// Failure of a run, as `run.failed` reports it.
#[derive(Debug)]
pub(crate) struct GraphRunFailure {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    /// True if a retry of the same event may succeed.
    pub(crate) retryable: bool,
}

/// Early stop of a run.
#[derive(Debug)]
pub(crate) enum Halt {
    /// The run was cancelled, or its server stops.
    Cancelled,
    /// The run's time is over.
    Deadline,
    /// The run fails with this error.
    Failed(GraphRunFailure),
}

impl GraphRunFailure {
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            retryable: false,
        }
    }

    #[must_use]
    pub(crate) fn retryable(self) -> Self {
        Self {
            retryable: true,
            ..self
        }
    }

    pub(crate) fn cancelled() -> Self {
        Self::new(CANCELLED, "the run was cancelled")
    }

    pub(crate) fn timeout() -> Self {
        Self::new(TIMEOUT, "the run's time is over").retryable()
    }
}

impl From<HostError> for Halt {
    fn from(error: HostError) -> Self {
        if error.is_cancelled() {
            return Self::Cancelled;
        }
        if error.is_deadline_exceeded() {
            return Self::Deadline;
        }
        Self::Failed(GraphRunFailure {
            retryable: error.retryable,
            ..GraphRunFailure::new(ERROR, error.to_string())
        })
    }
}

impl From<RecordsError> for Halt {
    fn from(error: RecordsError) -> Self {
        match error {
            RecordsError::Unavailable(error) if error.is_cancelled() => Self::Cancelled,
            RecordsError::Unavailable(error) if error.is_deadline_exceeded() => Self::Deadline,
            // Stored graphs survive, so a retry continues them.
            error => Self::Failed(GraphRunFailure::new(RECORDS, error.to_string()).retryable()),
        }
    }
}

impl From<ModelCallFailure> for Halt {
    fn from(failed: ModelCallFailure) -> Self {
        match failed {
            ModelCallFailure::Over(error) => error.into(),
            failed => {
                let retryable = matches!(
                    failed,
                    ModelCallFailure::Silent {
                        retryable: true,
                        ..
                    }
                );
                Self::Failed(GraphRunFailure {
                    retryable,
                    ..GraphRunFailure::new(LLM_ERROR, failed.to_string())
                })
            }
        }
    }
}
