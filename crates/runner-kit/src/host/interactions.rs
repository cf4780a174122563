//! Answers to interactions that the run awaits.

use std::time::Duration;

use protocol::interaction::{AwaitedInteraction, MAX_WAIT_SECONDS};
use reqwest::Method;

use crate::host::{HostConnection, HostError};

/// Wait of one long poll, in seconds: below the idle timeouts of proxies.
pub(super) const POLL_SECONDS: u64 = 25;
/// Pause between a failed call and its retry.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// Consecutive failures before the last error is returned.
pub(super) const MAX_FAILURES: u32 = 30;

/// Interactions of the run.
#[derive(Clone, Copy, Debug)]
pub struct InteractionsApi<'a>(pub(super) &'a HostConnection);

impl InteractionsApi<'_> {
    /// State of an interaction that this run requested with `await: true`, by its `interaction_id`. Waits up to
    /// `wait_seconds`, at most 30; `Open` without an answer.
    pub async fn get(self, id: &str, wait_seconds: u64) -> Result<AwaitedInteraction, HostError> {
        let wait_seconds = wait_seconds.min(MAX_WAIT_SECONDS);
        let request = self.0.request(Method::GET, &["interactions", id]).await?;
        let request = request.query(&[("wait_seconds", wait_seconds)]);
        self.0.polled(request, wait_seconds).await
    }

    /// Waits until an interaction is answered, expires or is cancelled; never returns `Open`. Fails at the run's
    /// deadline and after 30 consecutive failed calls. To stop earlier, drop it or wrap it in
    /// [`RunHandle::until_cancelled`](crate::RunHandle::until_cancelled).
    pub async fn wait(self, id: &str) -> Result<AwaitedInteraction, HostError> {
        let mut failures = 0;
        loop {
            match self.get(id, POLL_SECONDS).await {
                Ok(AwaitedInteraction::Open) => failures = 0,
                Ok(state) => return Ok(state),
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
