//! Child runs: runs of other agents that this run starts and follows.

use protocol::child_run::{ChildRun, ChildRunRequest, MAX_WAIT_SECONDS};
use protocol::host_api::RunCancel;
use protocol::id::RunId;
use protocol::run::{AgentRunEvent, Page};
use reqwest::Method;

use crate::host::interactions::{MAX_FAILURES, PAUSE, POLL_SECONDS};
use crate::host::{HostConnection, HostError, RunEventsQuery};

/// Child runs of the run.
#[derive(Clone, Copy, Debug)]
pub struct ChildRunsApi<'a>(pub(super) &'a HostConnection);

impl ChildRunsApi<'_> {
    /// Starts a child run. The same `idempotency_key` returns the same child run; with another request the call
    /// fails as a conflict ([`HostError::is_conflict`]).
    pub async fn spawn(self, request: &ChildRunRequest) -> Result<ChildRun, HostError> {
        let call = self.0.request(Method::POST, &["child-runs"]).await?;
        self.0.answer(call.json(request)).await
    }

    /// Child run, or `None` when this run has no access to the id. Waits up to `wait_seconds`, at most 30, for
    /// its end.
    pub async fn get(self, id: &RunId, wait_seconds: u64) -> Result<Option<ChildRun>, HostError> {
        let wait_seconds = wait_seconds.min(MAX_WAIT_SECONDS);
        let call = self
            .0
            .request(Method::GET, &["child-runs", &id.to_string()])
            .await?;
        let call = call.query(&[("wait_seconds", wait_seconds)]);
        match self.0.polled(call, wait_seconds).await {
            Err(error) if error.is_not_found() => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Waits for the end of a child run. Fails at this run's deadline and after 30 consecutive failed calls.
    /// Dropping it stops the wait only: the child run continues until this run ends.
    pub async fn wait(self, id: &RunId) -> Result<ChildRun, HostError> {
        let mut failures = 0;
        loop {
            match self.get(id, POLL_SECONDS).await {
                Ok(Some(child)) if child.status.is_terminal() => return Ok(child),
                Ok(Some(_)) => failures = 0,
                Ok(None) => return Err(HostError::invalid_argument("no such child run")),
                // The child run continues on the gateway, so an outage of the gateway must not fail this run at once.
                Err(error) if error.retryable && failures < MAX_FAILURES => {
                    failures += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Page of a child run's ledger.
    pub async fn events(
        self,
        id: &RunId,
        query: &RunEventsQuery,
    ) -> Result<Page<AgentRunEvent>, HostError> {
        let call = self
            .0
            .request(Method::GET, &["child-runs", &id.to_string(), "events"])
            .await?;
        self.0.answer(call.query(query)).await
    }

    /// Requests the end of a child run. `reason` (1 to 500 characters) becomes its `status_reason`.
    pub async fn cancel(self, id: &RunId, reason: &str) -> Result<ChildRun, HostError> {
        let call = self
            .0
            .request(Method::POST, &["child-runs", &id.to_string(), "cancel"])
            .await?;
        let reason = Some(reason.to_owned());
        self.0.answer(call.json(&RunCancel { reason })).await
    }
}
