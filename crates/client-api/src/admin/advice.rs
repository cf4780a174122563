//! Advice of least rights, and checks of a changed policy against past calls (`docs/agents.md`).

use axum::Json;
use axum::extract::State;
use domain::authorization::advice::{self, CallSum, GrantUse, ListChange};
use domain::tool_policy;
use protocol::admin::{AgentSpec, PolicyCheck};
use protocol::error::ErrorBody;
use protocol::id::AgentId;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{AgentCalls, AgentRecord};

use web::auth::AdminCaller;
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::{PathOf, QueryOf};
use web::state::ApiState;

/// The period without `since`: 30 days.
const DEFAULT_SECONDS: i64 = 30 * 24 * 60 * 60;
/// Maximum denied targets in a response.
const MAX_DENIALS: usize = 100;

/// Period of an advice.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct AdviceQuery {
    /// Runs created at this time or later count, in epoch seconds. Default: 30 days ago.
    #[param(minimum = 0)]
    since: Option<u64>,
}

/// The grants of an agent's policy, their use by its runs, and the policy without unused grants.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct AgentAdvice {
    #[schema(value_type = String)]
    agent_id: AgentId,
    /// The version of the agent that was judged.
    version: i64,
    /// Start of the period, in epoch seconds.
    since: i64,
    /// Number of its runs, at most 10,000.
    #[schema(minimum = 0)]
    runs: u64,
    /// False: older runs, or further targets, are left out. Then `changes` is empty.
    is_complete: bool,
    /// Every entry of the policy's lists that calls are judged by. A list `"*"` has an entry for each used name.
    grants: Vec<GrantUseView>,
    /// The 100 targets with the largest numbers of denied calls.
    denials: Vec<CallSumView>,
    /// Replacements that remove the unused entries, as a JSON patch of the agent. Empty without a run.
    changes: Vec<ListChangeView>,
}

/// An entry of a policy and its use.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct GrantUseView {
    /// JSON pointer of the list, such as `/resource_policy/tools`.
    list: &'static str,
    entry: String,
    /// Allowed calls that needed it.
    #[schema(minimum = 0)]
    calls: u64,
    /// Epoch seconds of the first and the last of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_used_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_used_at: Option<i64>,
}

/// One operation of a JSON patch.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct ListChangeView {
    /// `replace`.
    op: &'static str,
    path: &'static str,
    /// A list of names; of tools, also an object of rules.
    value: Value,
}

/// Calls with the same target and decision.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct CallSumView {
    /// Action code, as in `GET /v1/runs/{run_id}/audit`.
    action: String,
    /// Empty for calls whose grant does not depend on it; of state, its scope.
    resource: String,
    operation: String,
    /// The rule of one of these calls.
    rule: String,
    #[schema(minimum = 0)]
    calls: u64,
    /// Epoch seconds of the last of them.
    last_at: i64,
}

/// Past calls that a changed policy decides differently.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct PolicyCheckResult {
    /// Number of the runs, at most 10,000.
    #[schema(minimum = 0)]
    runs: u64,
    /// False: older runs, or further targets, are left out.
    is_complete: bool,
    /// Allowed calls that the policy would deny.
    denied: Vec<CallSumView>,
    /// Denied calls that the policy would allow, unless another layer denies them.
    allowed: Vec<CallSumView>,
}

/// Advises on the least rights of an agent.
///
/// The calls of its runs are taken from their audit logs, so the period is at most that of `ledger.audit_days`.
/// Lists whose calls do not name the entry (`skills`, `files`, `agents`, `history_conversations`) are not judged.
#[utoipa::path(get, path = "/v1/agents/{agent_id}/advice", tag = "admin", security(("api_key" = [])),
    params(("agent_id" = String, Path, description = "The agent"), AdviceQuery), responses(
    (status = 200, description = "The advice", body = AgentAdvice),
    (status = 400, description = "The period is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such agent", body = ErrorBody)))]
pub(crate) async fn advise_agent(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<AgentId>,
    QueryOf(query): QueryOf<AdviceQuery>,
) -> ApiResult<Json<AgentAdvice>> {
    let agent = find(&state, &caller, id).await?;
    let since = since(&state, query.since)?;
    let calls = calls(&state, &caller, id, since).await?;
    let policies = policies(&agent.spec);
    let mut advice = advice::advise(&policies, &calls.sums);
    // A missing call would look like an unused grant.
    if !calls.is_complete || calls.runs == 0 {
        advice.changes.clear();
    }
    // The largest sums come first.
    let denied = calls.sums.iter().filter(|sum| !sum.allowed);
    Ok(Json(AgentAdvice {
        agent_id: id,
        version: agent.version,
        since,
        runs: calls.runs,
        is_complete: calls.is_complete,
        grants: advice.grants.into_iter().map(GrantUseView::from).collect(),
        denials: denied.take(MAX_DENIALS).map(CallSumView::from).collect(),
        changes: advice
            .changes
            .into_iter()
            .map(ListChangeView::from)
            .collect(),
    }))
}

/// Checks a changed policy against the past calls of an agent.
///
/// The response shows the calls that the policy would deny or newly allow. Nothing is stored.
#[utoipa::path(post, path = "/v1/agents/{agent_id}/policy-check", tag = "admin", security(("api_key" = [])),
    params(("agent_id" = String, Path, description = "The agent")),
    request_body = PolicyCheck, responses(
    (status = 200, description = "The differences", body = PolicyCheckResult),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such agent", body = ErrorBody)))]
pub(crate) async fn check_policy(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<AgentId>,
    JsonBody(check): JsonBody<PolicyCheck>,
) -> ApiResult<Json<PolicyCheckResult>> {
    // A pattern that no tool can match would look like a denial of its calls.
    let faults = tool_policy::check_policy(&check.resource_policy.tools);
    if !faults.is_empty() {
        return Err(ApiError::faults(&faults));
    }
    let agent = find(&state, &caller, id).await?;
    let since = since(&state, check.since)?;
    let calls = calls(&state, &caller, id, since).await?;
    let before = policies(&agent.spec);
    let after = policies(&AgentSpec {
        resource_policy: check.resource_policy,
        state_policy: check
            .state_policy
            .unwrap_or(agent.spec.state_policy.clone()),
        ..agent.spec
    });
    let difference = advice::compare(&before, &after, &calls.sums);
    let views = |sums: Vec<&CallSum>| sums.into_iter().map(CallSumView::from).collect();
    Ok(Json(PolicyCheckResult {
        runs: calls.runs,
        is_complete: calls.is_complete,
        denied: views(difference.denied),
        allowed: views(difference.allowed),
    }))
}

async fn find(state: &ApiState, caller: &AdminCaller, id: AgentId) -> ApiResult<AgentRecord> {
    let agents = state.runs.store().agents();
    let found = agents.find_agent(&caller.workspace, id).await?;
    found.ok_or_else(|| ApiError::not_found("agent", id))
}

async fn calls(
    state: &ApiState,
    caller: &AdminCaller,
    id: AgentId,
    since: i64,
) -> ApiResult<AgentCalls> {
    let audit = state.runs.store().audit_log();
    let since = since.saturating_mul(1000);
    Ok(audit.sum_agent_calls(&caller.workspace, id, since).await?)
}

/// The start of a period in epoch seconds.
fn since(state: &ApiState, since: Option<u64>) -> ApiResult<i64> {
    let now = state.runs.clock().now_ms().div_euclid(1000);
    let Some(since) = since else {
        return Ok(now - DEFAULT_SECONDS);
    };
    let past = i64::try_from(since).ok().filter(|since| *since <= now);
    past.ok_or_else(|| ApiError::invalid("/since", "must be a time in the past, in epoch seconds"))
}

fn policies(spec: &AgentSpec) -> Value {
    json!({"resource_policy": spec.resource_policy, "state_policy": spec.state_policy})
}

impl From<GrantUse> for GrantUseView {
    fn from(grant: GrantUse) -> Self {
        Self {
            list: grant.list,
            entry: grant.entry,
            calls: grant.calls,
            first_used_at: grant.first_at.map(|at| at.div_euclid(1000)),
            last_used_at: grant.last_at.map(|at| at.div_euclid(1000)),
        }
    }
}

impl From<ListChange> for ListChangeView {
    fn from(change: ListChange) -> Self {
        Self {
            op: "replace",
            path: change.list,
            value: change.value,
        }
    }
}

impl From<&CallSum> for CallSumView {
    fn from(sum: &CallSum) -> Self {
        Self {
            action: sum.action.clone(),
            resource: sum.resource.clone(),
            operation: sum.operation.clone(),
            rule: sum.rule.clone(),
            calls: sum.calls,
            last_at: sum.last_at.div_euclid(1000),
        }
    }
}
