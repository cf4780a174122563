//! What an author of a runner writes.

use futures_util::stream::BoxStream;
use protocol::context::AgentRunContext;
use protocol::manifest::AgentRunnerManifest;
use protocol::result::AgentRunResult;
use tokio_util::sync::CancellationToken;

use crate::host::{Host, HostError};
use crate::results;

/// The code of a run that stopped because it was asked to.
pub const CANCELLED: &str = "cancelled";
/// The code of a run that stopped because its runner's server does. The kit sets it in the place of [`CANCELLED`].
pub const SHUTDOWN: &str = "runner.shutdown";
/// The code of a run whose runner panicked or gave up with an unnamed error.
pub const EXCEPTION: &str = "runner.exception";

/// The results of one run, in order. The kit fills in run id and sequence.
pub type ResultStream = BoxStream<'static, Result<AgentRunResult, RunError>>;

/// An agent behind the runner API.
pub trait Runner: Send + Sync + 'static {
    /// Who the runner is and the most it may be granted. Asked once, when the router is built.
    fn manifest(&self) -> AgentRunnerManifest;

    /// Executes one run. The stream is dropped where it stands once the gateway closes the socket.
    ///
    /// After the first terminal nothing is read from the stream. A stream that ends without one
    /// has completed, or was cancelled if the run's token fired; an error or a panic fails the run.
    /// What ends as cancelled because the server stops ends as [`SHUTDOWN`].
    /// [`stream()`](crate::stream()) makes the stream out of a plain async block.
    fn run(&self, run: Run) -> ResultStream;
}

/// One execution of a runner for one event.
#[derive(Debug)]
pub struct Run {
    pub context: AgentRunContext,
    /// Calls back to the gateway, with this run's token.
    pub host: Host,
    /// Fires when the gateway cancels the run, when the server stops, and once the run is over.
    pub cancel: CancellationToken,
}

impl Run {
    /// Waits for `work`, unless the run is cancelled first.
    pub async fn until_cancelled<T>(&self, work: impl Future<Output = T>) -> Result<T, RunError> {
        let done = self.cancel.run_until_cancelled(work).await;
        done.ok_or_else(RunError::cancelled)
    }

    /// Fails once the run was cancelled: for use between two steps that do not wait.
    pub fn check_cancelled(&self) -> Result<(), RunError> {
        if self.cancel.is_cancelled() {
            Err(RunError::cancelled())
        } else {
            Ok(())
        }
    }
}

/// Why a run ends with `run.failed`. Code and message reach the user.
#[derive(Debug, thiserror::Error)]
#[error("{code}: {message}")]
pub struct RunError {
    pub code: String,
    pub message: String,
    /// True when the same event may well succeed a second time.
    pub retryable: bool,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl RunError {
    /// A failure with the runner's own code.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
            retryable: false,
            source: None,
        }
    }

    /// An error that has no code of its own: `runner.exception`, under the error's text.
    pub fn exception(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let error = error.into();
        let failure = Self::new(EXCEPTION, error.to_string());
        Self {
            source: Some(error),
            ..failure
        }
    }

    /// The run was asked to stop.
    pub fn cancelled() -> Self {
        Self::new(CANCELLED, "the run was cancelled")
    }

    /// The run stops because its runner does: nobody has asked for it.
    pub(crate) fn shutdown() -> Self {
        let message = "the runner was stopped while the run was going on: post the event again";
        Self::new(SHUTDOWN, message).retryable()
    }

    /// The same failure, worth another try.
    #[must_use]
    pub fn retryable(self) -> Self {
        Self {
            retryable: true,
            ..self
        }
    }

    pub(crate) fn panicked() -> Self {
        Self::new(EXCEPTION, "the runner panicked")
    }

    pub(crate) fn into_result(self) -> AgentRunResult {
        results::run_failed(self.code, self.message, self.retryable)
    }
}

impl From<HostError> for RunError {
    fn from(error: HostError) -> Self {
        Self {
            code: error.code.clone(),
            message: error.message.clone(),
            retryable: error.retryable,
            source: Some(Box::new(error)),
        }
    }
}
