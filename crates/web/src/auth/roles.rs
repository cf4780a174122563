//! Routes of keys that do not administer: roles `viewer`, `operator` and `approver`. `docs/roles.md` has all operations.

use axum::extract::MatchedPath;
use http::Method;
use http::request::Parts;
use protocol::api_key::KeyRole;

use crate::error::{ApiError, ApiResult};

/// Routes with `POST` that change nothing.
const READS: [&str; 5] = [
    "/v1/agents/dry-run",
    "/v1/agents/{agent_id}/dry-run",
    "/v1/agents/{agent_id}/policy-check",
    "/v1/knowledge-bases/{kb_id}/retrieve",
    "/v1/sources/{source_id}/try",
];
/// Routes of role `operator`, in addition to those of role `viewer`.
const OPERATIONS: [&str; 8] = [
    "/v1/runs/{run_id}/cancel",
    "/v1/runs/{run_id}/retry",
    "/v1/runs/cancel",
    "/v1/runs/retry",
    "/v1/jobs/{job_id}/cancel",
    "/v1/interactions/{interaction}/submit",
    "/v1/approvals",
    "/v1/approvals/{approval_id}/revoke",
];

/// Reads of role `approver`.
const READS_OF_APPROVERS: [&str; 5] = [
    "/v1/feed",
    "/v1/interactions",
    "/v1/interactions/{interaction}",
    "/v1/runs/{run_id}",
    "/v1/whoami",
];
/// Writes of role `approver`.
const ANSWERS: [&str; 1] = ["/v1/interactions/{interaction}/submit"];

/// Fails if the route of the request is not open to the role. The callers of the handlers check the other roles.
pub(super) fn check_role(role: KeyRole, parts: &Parts) -> ApiResult<()> {
    let route = parts.extensions.get::<MatchedPath>();
    let route = route.map_or("", MatchedPath::as_str);
    if is_open(role, &parts.method, route) {
        return Ok(());
    }
    Err(ApiError::unauthorized(format!(
        "keys of role {} do not open this route; use another key",
        role.as_str()
    )))
}

/// A new route that writes is closed until it is listed here.
fn is_open(role: KeyRole, method: &Method, route: &str) -> bool {
    let is_read = method.is_safe() || *method == Method::POST && READS.contains(&route);
    match role {
        KeyRole::Owner | KeyRole::Admin | KeyRole::Client => true,
        KeyRole::Viewer => is_read,
        KeyRole::Operator => is_read || *method == Method::POST && OPERATIONS.contains(&route),
        KeyRole::Approver if method.is_safe() => READS_OF_APPROVERS.contains(&route),
        KeyRole::Approver => *method == Method::POST && ANSWERS.contains(&route),
    }
}
