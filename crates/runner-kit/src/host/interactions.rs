//! Answers of persons to questions that the run waits for.

use std::time::Duration;

use protocol::interaction::{AwaitedInteraction, MOST_WAIT_SECONDS};
use reqwest::Method;

use crate::host::{Host, HostError};

/// How long one call waits for an answer or an end, in seconds: within the idle timeouts of proxies.
pub(super) const POLL_SECONDS: u64 = 25;
/// Between a call that failed and the next one.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// Failed calls in a row, after which the last error is given.
pub(super) const MOST_FAILURES: u32 = 30;

impl Host {
    /// The state of an interaction that this run asked with `await: true`, by its `interaction_id`. Waits for the
    /// answer for `wait_seconds`, 30 at most; `Open` when none came.
    pub async fn interaction(
        &self,
        id: &str,
        wait_seconds: u64,
    ) -> Result<AwaitedInteraction, HostError> {
        let wait_seconds = wait_seconds.min(MOST_WAIT_SECONDS);
        let request = self.request(Method::GET, &["interactions", id]).await?;
        let request = request.query(&[("wait_seconds", wait_seconds)]);
        self.polled(request, wait_seconds).await
    }

    /// Waits until an interaction is answered, expires or is cancelled: never gives `Open`. Ends with an error at the
    /// run's deadline, and after 30 calls in a row that failed. Drop it, or wrap it in
    /// [`Run::until_cancelled`](crate::Run::until_cancelled), to give up earlier.
    pub async fn wait_for_interaction(&self, id: &str) -> Result<AwaitedInteraction, HostError> {
        let mut failures = 0;
        loop {
            match self.interaction(id, POLL_SECONDS).await {
                Ok(AwaitedInteraction::Open) => failures = 0,
                Ok(state) => return Ok(state),
                Err(error) if error.retryable && failures < MOST_FAILURES => {
                    failures += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
