//! Requests of the gateway to a runner endpoint (`docs/protocol.md`, `RUN_AGENT`).

use serde::{Deserialize, Serialize};

use crate::context::AgentRunContext;
use crate::id::RunnerId;
use crate::lenient;

/// Body of `POST {base}/runs`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentRunRequest {
    pub runner_id: RunnerId,
    pub runner_name: String,
    #[serde(deserialize_with = "lenient::context")]
    pub context: AgentRunContext,
    pub host: HostAccess,
}

/// Access of the runner to the host API. No other field contains the token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HostAccess {
    /// Base URL of the host API, for example `http://127.0.0.1:8700/host/v1`.
    pub base_url: String,
    /// Run token: a bearer credential for this attempt. Invalid after `token_expires_at` and after the end of the
    /// run; `POST {base_url}/token` issues the next one.
    pub token: String,
    /// Expiry of the token, in epoch seconds: the deadline of the run with its possible waits for budgets, at most 15
    /// minutes after its issue.
    pub token_expires_at: i64,
}

impl std::fmt::Debug for HostAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Written by hand: the derived form would print the token.
        f.debug_struct("HostAccess")
            .field("base_url", &self.base_url)
            .field("token", &"[redacted]")
            .field("token_expires_at", &self.token_expires_at)
            .finish()
    }
}

/// Action for an endpoint of mode `single_url`, next to the fields of the action's own body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum EndpointAction {
    ListRunners,
    Run,
    Cancel,
    Resume,
}

/// Body of `POST {base}/runs/{run_id}/cancel`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CancelRequest {
    pub run_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Body of `POST {base}/runs/{run_id}/resume` (`docs/protocol.md`, Resumable runs).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResumeRequest {
    pub run_id: String,
    pub runner_id: RunnerId,
    /// Number of this attempt: above that of the run request and of each earlier resume. The tokens of earlier
    /// attempts are invalid.
    pub attempt: u32,
    /// Sequence of the last result that the gateway has stored. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    pub host: HostAccess,
}
