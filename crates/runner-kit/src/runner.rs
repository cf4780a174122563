//! Trait of a runner, and its run.

use futures_util::stream::BoxStream;
use protocol::context::AgentRunContext;
use protocol::manifest::AgentRunnerManifest;
use protocol::result::AgentRunResult;
use tokio_util::sync::CancellationToken;

use crate::host::{Host, HostError};

/// Code of a cancelled run.
pub const CANCELLED: &str = "cancelled";
/// Code of a run that ended because the server stops. The kit sets it in place of [`CANCELLED`].
pub const SHUTDOWN: &str = "runner.shutdown";
/// Code of a resumable run whose buffer was full while no gateway was attached.
pub const BUFFER_FULL: &str = "runner.buffer_full";
/// Code of a run whose runner panicked or returned an error without a code.
pub const EXCEPTION: &str = "runner.exception";

/// Results of one run, in order. The kit fills in run id and sequence.
pub type ResultStream = BoxStream<'static, Result<AgentRunResult, RunError>>;

/// An agent that the runner API serves.
pub trait Runner: Send + Sync + 'static {
    /// Manifest: identity and requested permissions. Read once, when the router is built.
    fn manifest(&self) -> AgentRunnerManifest;

    /// Executes one run. The stream is dropped when the gateway closes the connection; that of a runner with the
    /// capability `resumable` when no gateway resumes the run in time.
    ///
    /// Nothing is read after the first terminal result. A stream that ends without one counts as completed, or
    /// as cancelled if the run's token fired; an error or a panic fails the run. A run that is cancelled because
    /// the server stops ends as [`SHUTDOWN`]. [`stream()`](crate::stream()) builds the stream from an async
    /// block.
    fn run(&self, run: RunHandle) -> ResultStream;
}

/// One execution of a runner for one event.
#[derive(Debug)]
pub struct RunHandle {
    pub context: AgentRunContext,
    /// Host API with this run's token.
    pub host: Host,
    /// Fires when the gateway cancels the run, when the server stops, and after the run's end.
    pub cancel: CancellationToken,
}

impl RunHandle {
    /// Awaits `work`, or returns an error when the run is cancelled first.
    pub async fn until_cancelled<T>(&self, work: impl Future<Output = T>) -> Result<T, RunError> {
        let done = self.cancel.run_until_cancelled(work).await;
        done.ok_or_else(RunError::cancelled)
    }

    /// Fails after a cancel: for use between two steps that do not wait.
    pub fn check_cancelled(&self) -> Result<(), RunError> {
        if self.cancel.is_cancelled() {
            Err(RunError::cancelled())
        } else {
            Ok(())
        }
    }
}

/// Error of a failed run. Code and message reach the user.
#[derive(Debug, thiserror::Error)]
#[error("{code}: {message}")]
pub struct RunError {
    pub code: String,
    pub message: String,
    /// True when the same event may succeed in a second run.
    pub retryable: bool,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl RunError {
    /// Error with the runner's own code.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
            retryable: false,
            source: None,
        }
    }

    /// Error without a code: `runner.exception` with the error's text.
    pub fn exception(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let error = error.into();
        let failure = Self::new(EXCEPTION, error.to_string());
        Self {
            source: Some(error),
            ..failure
        }
    }

    /// Error of a cancelled run.
    pub fn cancelled() -> Self {
        Self::new(CANCELLED, "the run was cancelled")
    }

    /// Error of a run that ends because the server stops.
    pub(crate) fn shutdown() -> Self {
        let message = "the runner was stopped while the run was going on: post the event again";
        Self::new(SHUTDOWN, message).retryable()
    }

    /// Error of a run that no gateway resumed before its buffer was full.
    pub(crate) fn buffer_full() -> Self {
        let message = "the buffer of results is full, and no gateway has resumed the run: post the event again";
        Self::new(BUFFER_FULL, message).retryable()
    }

    /// Marks the error as retryable.
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
