//! Failures of runs, and their terminal results.

use protocol::message::LlmTokenUsage;
use protocol::result::AgentRunResult;
use runner_kit::runner::CANCELLED;
use runner_kit::{RunError, results};

/// No model of the configuration was granted.
pub const NO_MODEL: &str = "runner.no_model";
/// The event and the configuration have no input for a model.
pub const NO_INPUT: &str = "runner.no_input";
/// The configured timeout, or the gateway's deadline, has passed.
pub const TIMEOUT: &str = "runner.timeout";
/// No model answered, or a model's stream broke off.
pub const LLM_ERROR: &str = "runner.llm_error";
/// Any other failure of the host.
pub const ERROR: &str = "runner.error";

/// Failure of a run, as `run.failed` reports it. Code and message reach the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFailure {
    /// Code of the service, or one of this module.
    pub code: &'static str,
    /// Cause, and the next step of the user.
    pub message: String,
    /// True if a second run of the same event may succeed.
    pub retryable: bool,
}

impl RunFailure {
    /// Failure that a second run would repeat.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            retryable: false,
        }
    }

    /// Marks the failure as retryable.
    #[must_use]
    pub fn retryable(self) -> Self {
        Self {
            retryable: true,
            ..self
        }
    }

    /// Failure of a cancelled run.
    pub fn cancelled() -> Self {
        Self::new(CANCELLED, "the run was cancelled")
    }

    /// True for the failure of a cancelled run.
    pub fn is_cancelled(&self) -> bool {
        self.code == CANCELLED
    }
}

impl From<RunFailure> for RunError {
    fn from(failure: RunFailure) -> Self {
        let error = Self::new(failure.code, failure.message);
        if failure.retryable {
            error.retryable()
        } else {
            error
        }
    }
}

/// Terminal result of a run: its finish reason or its failure. Failed and cancelled runs have used tokens, too.
pub fn terminal(
    ended: Result<impl Into<String>, RunFailure>,
    usage: Option<LlmTokenUsage>,
) -> AgentRunResult {
    let terminal = match ended {
        Ok(reason) => results::run_completed_because(reason),
        Err(failure) => results::run_failed(failure.into()),
    };
    AgentRunResult { usage, ..terminal }
}
