//! The run itself: context, status and token.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use protocol::JsonObject;
use protocol::context::AgentRunContext;
use protocol::error::ErrorBody;
use protocol::host_api::RenewedToken;
use protocol::run::AgentRun;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use store::ReadBudget;

use web::auth::{AuditedCall, LiveCaller, RunCaller};
use web::catalog_work;
use web::error::routing::no_such;
use web::error::{ApiError, ApiResult};
use web::state::ApiState;
use web::view::agent_run;

/// Retrieves the original context of the run.
///
/// After a `202` response to the dispatch, `context.available_apis.run_append_result` is true.
#[utoipa::path(get, path = "/host/v1/context", tag = "host", security(("run_token" = [])), responses(
    (status = 200, description = "The context", body = AgentRunContext),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody)))]
pub(crate) async fn get_own_context(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
) -> ApiResult<Response> {
    let call = AuditedCall {
        action: "context",
        resource: "run",
        operation: "get",
    };
    caller.record(&state, call, None).await?;
    let store = state.runs.store();
    let context = store
        .runs()
        // Retention may have deleted it while the run is live.
        .find_context(caller.grant.run.id, ReadBudget::of(&caller.answer));
    let context = context.await?;
    let context = context.ok_or_else(|| no_such("the context of this run is deleted"))?;
    let grant = &caller.grant;
    let backlog = state
        .runs
        .store()
        .leases()
        .find_backlog(grant.run.id, grant.attempt);
    // The flag is set on reading, because the context was stored before the dispatch was answered.
    let context = if backlog.await?.is_some() {
        // Both texts are in memory at the same time.
        caller.answer.reserve(context.len())?;
        catalog_work::of_run(&caller, move |_| appendable(context)).await?
    } else {
        context
    };
    Ok(([(CONTENT_TYPE, "application/json")], context).into_response())
}

/// Fields of an object as raw JSON.
type RawMembers<'a> = BTreeMap<String, &'a RawValue>;

/// Sets the append flag in a context. Parses only the path to the flag.
fn appendable(context: String) -> String {
    with_appends(&context).unwrap_or(context)
}

fn with_appends(context: &str) -> serde_json::Result<String> {
    let mut members: RawMembers<'_> = serde_json::from_str(context)?;
    let access = members.get("context").copied().unwrap_or(RawValue::NULL);
    // Null fails here, and the context without such members stays as it is.
    let mut access: RawMembers<'_> = serde_json::from_str(access.get())?;
    let apis = access.get("available_apis").copied();
    let mut apis: JsonObject = serde_json::from_str(apis.unwrap_or(RawValue::NULL).get())?;
    apis.insert("run_append_result".to_owned(), Value::Bool(true));
    let apis = to_raw_value(&apis)?;
    access.insert("available_apis".to_owned(), &apis);
    let access = to_raw_value(&access)?;
    members.insert("context".to_owned(), &access);
    serde_json::to_string(&members)
}

/// Retrieves the current state of the run. If `cancel_requested_at` is set, end the run.
#[utoipa::path(get, path = "/host/v1/run", tag = "host", security(("run_token" = [])), responses(
    (status = 200, description = "The run", body = AgentRun),
    (status = 401, description = "The run token is not valid", body = ErrorBody)))]
pub(crate) async fn get_own_run(
    caller: RunCaller,
    State(state): State<ApiState>,
) -> ApiResult<Json<AgentRun>> {
    let call = AuditedCall {
        action: "run_get",
        resource: "run",
        operation: "get",
    };
    caller.record(&state, call, None).await?;
    let run = state.runs.grants.current_run(&caller.grant).await?;
    Ok(Json(agent_run(
        run,
        caller.grant.snapshot.conversation.as_ref(),
    )))
}

/// Renews the run token. Only its id and its times change.
#[utoipa::path(post, path = "/host/v1/token", tag = "host", security(("run_token" = [])), responses(
    (status = 200, description = "A new token", body = RenewedToken),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody)))]
pub(crate) async fn renew_token(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
) -> ApiResult<Json<RenewedToken>> {
    let call = AuditedCall {
        action: "token",
        resource: "run",
        operation: "renew",
    };
    caller.record(&state, call, None).await?;
    let minted = state
        .runs
        .grants
        .renew_token(&caller.grant)
        .await
        .ok_or_else(ApiError::panicked)?;
    Ok(Json(RenewedToken {
        token: minted.token,
        token_expires_at: minted.expires_at,
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sets_append_flag_in_contexts() {
        let context = json!({"run_id": "r", "config": {"run_append_result": false},
            "context": {"event_seq": 1, "available_apis": {"state": true, "run_append_result": false}}});
        let text = appendable(context.to_string());
        let mut expected = context;
        expected["context"]["available_apis"]["run_append_result"] = json!(true);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
        assert_eq!(appendable("null".to_owned()), "null");
    }
}
