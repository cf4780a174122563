//! Run ledger: this run, and runs of the same runner in the conversation.

use protocol::host_api::RunCancel;
use protocol::id::RunId;
use protocol::run::{AgentRun, AgentRunEvent, Page};
use reqwest::Method;
use serde::Serialize;

use crate::host::{HostConnection, HostError, PageDirection};

/// Selection of runs; newest first by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RunPageQuery {
    /// Statuses, joined by commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statuses: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_cursor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_cursor: Option<String>,
    /// At most 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<PageDirection>,
}

/// Selection of a run's events by sequence; ascending by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RunEventsQuery {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_cursor: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_cursor: Option<u64>,
    /// At most 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<PageDirection>,
}

/// Run ledger of the run.
#[derive(Clone, Copy, Debug)]
pub struct RunsApi<'a>(pub(super) &'a HostConnection);

impl RunsApi<'_> {
    /// Page of the runs in scope; `total_count` is their number.
    pub async fn list(self, query: &RunPageQuery) -> Result<Page<AgentRun>, HostError> {
        let request = self.0.request(Method::GET, &["runs"]).await?;
        self.0.answer(request.query(query)).await
    }

    /// Run in scope, or `None`.
    pub async fn get(self, id: RunId) -> Result<Option<AgentRun>, HostError> {
        match self.0.get(&["runs", &id.to_string()]).await {
            Err(error) if error.is_not_found() => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Page of the ledger of a run in scope.
    pub async fn events(
        self,
        id: RunId,
        query: &RunEventsQuery,
    ) -> Result<Page<AgentRunEvent>, HostError> {
        let request = self
            .0
            .request(Method::GET, &["runs", &id.to_string(), "events"])
            .await?;
        self.0.answer(request.query(query)).await
    }

    /// Requests the end of a run in scope, this run included. `reason` becomes its `status_reason`.
    pub async fn cancel(self, id: RunId, reason: Option<String>) -> Result<AgentRun, HostError> {
        let request = self
            .0
            .request(Method::POST, &["runs", &id.to_string(), "cancel"])
            .await?;
        self.0.answer(request.json(&RunCancel { reason })).await
    }
}
