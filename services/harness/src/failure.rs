//! Error codes of a harness run (`run.failed`).

use runner_kit::RunError;
use runner_kit::host::HostError;

use crate::speaker::cut;

/// Why a harness run ends without an answer.
#[derive(Debug)]
pub(crate) struct HarnessFailure {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    /// True when the same event may well succeed a second time.
    pub(crate) retryable: bool,
}

/// The command is not installed or not executable.
pub(crate) const COMMAND_NOT_FOUND: &str = "harness.command_not_found";
/// The harness did not answer `initialize` or open its session in time.
pub(crate) const START_TIMEOUT: &str = "harness.start_timeout";
/// The process exited before its session was open, or in the middle of a turn.
pub(crate) const EXITED: &str = "harness.exited";
/// The process sent frames that are not the protocol's, or none of the bounded size.
pub(crate) const PROTOCOL_ERROR: &str = "harness.protocol_error";
/// The session was lost in the middle of a run.
pub(crate) const SESSION_LOST: &str = "harness.session_lost";
/// The MCP server of the gateway could not be connected.
pub(crate) const MCP_FAILED: &str = "harness.mcp_failed";
/// A turn ended without text, file and refusal.
pub(crate) const EMPTY_RESPONSE: &str = "harness.empty_response";
/// A budget of the run is used up.
pub(crate) const BUDGET_EXCEEDED: &str = "harness.budget_exceeded";
/// The configured time of the run has passed.
pub(crate) const TIMEOUT: &str = "harness.timeout";
/// The event has neither text nor files.
pub(crate) const EMPTY_INPUT: &str = "harness.empty_input";
/// The agent's configuration cannot be run.
pub(crate) const CONFIG_INVALID: &str = "harness.config_invalid";
/// The workspace cannot be used.
pub(crate) const WORKSPACE_FAILED: &str = "harness.workspace_failed";
/// The model refused or failed, as the harness reports it.
pub(crate) const TURN_FAILED: &str = "harness.turn_failed";

impl HarnessFailure {
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            retryable: false,
        }
    }

    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::new(PROTOCOL_ERROR, message)
    }

    #[must_use]
    pub(crate) fn retryable(self) -> Self {
        Self {
            retryable: true,
            ..self
        }
    }

    /// Adds the last of these lines, which a process wrote to standard error. A cancelled run needs no reason.
    #[must_use]
    pub(crate) fn with_last_line(mut self, lines: &[String]) -> Self {
        if let Some(last) = lines.last().filter(|_| !self.is_cancelled()) {
            self.message
                .push_str("; the last line of its standard error: ");
            self.message.push_str(&cut(last, 300));
        }
        self
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.code == runner_kit::runner::CANCELLED
    }

    /// The failure of a run that was asked to stop.
    pub(crate) fn cancelled() -> Self {
        Self::new(runner_kit::runner::CANCELLED, "the run was cancelled")
    }
}

impl From<HarnessFailure> for RunError {
    fn from(failure: HarnessFailure) -> Self {
        let error = Self::new(failure.code, failure.message);
        if failure.retryable {
            error.retryable()
        } else {
            error
        }
    }
}

impl From<HostError> for HarnessFailure {
    fn from(error: HostError) -> Self {
        if error.is_cancelled() {
            return Self::cancelled();
        }
        if error.is_deadline_exceeded() {
            return Self::new(TIMEOUT, "the run has reached its deadline").retryable();
        }
        Self {
            code: "harness.host_call_failed",
            retryable: error.retryable,
            message: format!("a call of the host API failed: {error}"),
        }
    }
}
