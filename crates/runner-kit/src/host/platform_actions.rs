//! Platform actions that the run requests.

use protocol::interaction::MAX_WAIT_SECONDS;
use protocol::platform_action::{PlatformAction, PlatformActionRequest};
use reqwest::Method;

use crate::host::interactions::{MAX_FAILURES, PAUSE, POLL_SECONDS};
use crate::host::{HostConnection, HostError};

/// Platform actions of the run.
#[derive(Clone, Copy, Debug)]
pub struct PlatformActionsApi<'a>(pub(super) &'a HostConnection);

impl PlatformActionsApi<'_> {
    /// Requests an action of the chat platform. The same `idempotency_key` returns the same action; with another request
    /// the call fails as a conflict ([`HostError::is_conflict`]).
    pub async fn request(
        self,
        request: &PlatformActionRequest,
    ) -> Result<PlatformAction, HostError> {
        let call = self
            .0
            .request(Method::POST, &["platform", "actions"])
            .await?;
        self.0.answer(call.json(request)).await
    }

    /// State of an action. Waits up to `wait_seconds`, at most 30, for its outcome.
    pub async fn get(self, id: &str, wait_seconds: u64) -> Result<PlatformAction, HostError> {
        let wait_seconds = wait_seconds.min(MAX_WAIT_SECONDS);
        let call = self
            .0
            .request(Method::GET, &["platform", "actions", id])
            .await?;
        let call = call.query(&[("wait_seconds", wait_seconds)]);
        self.0.polled(call, wait_seconds).await
    }

    /// Waits for the outcome of an action: a final status. Fails at the run's deadline and after 30 consecutive failed
    /// calls.
    pub async fn wait(self, id: &str) -> Result<PlatformAction, HostError> {
        let mut failures = 0;
        loop {
            match self.get(id, POLL_SECONDS).await {
                Ok(action) if action.status.is_final() => return Ok(action),
                Ok(_) => failures = 0,
                // A person may need hours; a restart of the gateway in between must not end the wait.
                Err(error) if error.retryable && failures < MAX_FAILURES => {
                    failures += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
