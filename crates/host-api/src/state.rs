//! State stored by the gateway, within the scopes of the snapshot.

pub(crate) mod document;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use domain::state::{ACTIVATED_SKILLS, check_prefix};
use http::{HeaderMap, StatusCode};
use protocol::error::ErrorBody;
use protocol::host_api::{StateKeys, StatePut, StateValue, StateVersion};
use protocol::resources::StateScope;
use serde::Deserialize;
use serde_json::json;
use store::{
    DocumentParts, STATE_BODIES, STATE_BODY_BYTES, STATE_KEYS, StateAccess, StateChange,
    StateWritten,
};

use web::auth::{AuditedCall, LiveCaller, RunCaller};
use web::error::appended::appends_pending;
use web::error::version::version_conflict;
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::{PathOf, QueryOf, if_match, page_limit};
use web::state::ApiState;

/// Scope and key for the audit log.
fn resource(scope: &str, key: &str) -> String {
    format!("{scope}/{key}")
}

/// Checks a scope and returns access to it. An unknown scope counts as not granted.
async fn access(
    caller: &RunCaller,
    state: &ApiState,
    call: AuditedCall<'_>,
    scope: &str,
) -> ApiResult<StateAccess> {
    let Some(parsed_scope) = StateScope::parse(scope) else {
        let message = "state scopes are conversation, actor, subject, runner and binding";
        return Err(ApiError::invalid_argument(message));
    };
    let permission = caller.grant.snapshot.state_scope(parsed_scope);
    let identity = caller.granted(state, call, permission).await?.to_owned();
    Ok(StateAccess {
        scope: parsed_scope,
        identity,
    })
}

/// Waits until the run's earlier appended results are processed.
async fn after_appended(caller: &RunCaller, state: &ApiState) -> ApiResult<()> {
    if state.runs.async_runs.await_judged(&caller.grant).await? {
        Ok(())
    } else {
        Err(appends_pending())
    }
}

/// Filter and size of a page of keys.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct StateQuery {
    /// Only keys with this prefix.
    pub prefix: Option<String>,
    /// Only keys after this one: the last key of the previous page.
    pub after: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    pub limit: Option<u64>,
}

/// Lists the keys of a scope in byte order.
#[utoipa::path(get, path = "/host/v1/state/{scope}", tag = "host", security(("run_token" = [])),
    params(("scope" = StateScope, Path, description = "The state scope"), StateQuery), responses(
    (status = 200, description = "Keys in byte order", body = StateKeys),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The scope was not granted", body = ErrorBody),
    (status = 503, description = "Earlier appended results of the run are still being processed", body = ErrorBody)))]
pub(crate) async fn list_state(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(scope): PathOf<String>,
    QueryOf(query): QueryOf<StateQuery>,
) -> ApiResult<Json<StateKeys>> {
    let call = AuditedCall {
        action: "state_list",
        resource: &scope,
        operation: "state",
    };
    let access = access(&caller, &state, call, &scope).await?;
    let limit = page_limit(query.limit)?;
    let prefix = query.prefix.unwrap_or_default();
    check_prefix(&prefix)
        .map_err(|_| ApiError::invalid_argument("`prefix` must be the beginning of a key"))?;
    let after = query.after.unwrap_or_default();
    check_prefix(&after).map_err(|_| ApiError::invalid_argument("`after` must be a key"))?;
    // Appended results may write state: a read before them would return an old value.
    after_appended(&caller, &state).await?;
    let mut keys = state
        .runs
        .store()
        .state()
        // One more than the page shows whether others follow.
        .list_state_keys(&access, &prefix, &after, limit + 1)
        .await?;
    let has_more = keys.len() as u64 > limit;
    keys.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let documents = match (keys.first(), keys.last()) {
        (Some(first), Some(last)) => {
            let store = state.runs.store().state();
            store.list_state_summaries(&access, first, last).await?
        }
        _ => Vec::new(),
    };
    let documents = documents.into_iter().map(document::document);
    Ok(Json(StateKeys {
        keys,
        has_more,
        documents: documents.collect::<Result<_, _>>()?,
    }))
}

/// Retrieves a value and its version.
#[utoipa::path(get, path = "/host/v1/state/{scope}/{*key}", tag = "host", security(("run_token" = [])),
    params(("scope" = StateScope, Path, description = "The state scope"), ("key" = String, Path, description = "Percent-encoded")),
    responses(
    (status = 200, description = "The value", body = StateValue),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The scope was not granted", body = ErrorBody),
    (status = 404, description = "No such key", body = ErrorBody),
    (status = 503, description = "Earlier appended results of the run are still being processed", body = ErrorBody)))]
pub(crate) async fn get_state(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf((scope, key)): PathOf<(String, String)>,
) -> ApiResult<Json<StateValue>> {
    let call = AuditedCall {
        action: "state_get",
        resource: &resource(&scope, &key),
        operation: "state",
    };
    // The gateway writes this reserved key, and runs may read it.
    if key != ACTIVATED_SKILLS {
        caller.checked_key(&state, call, &key).await?;
    }
    let access = access(&caller, &state, call, &scope).await?;
    after_appended(&caller, &state).await?;
    let entry = state.runs.store().state().find_state(&access, &key).await?;
    let entry = entry.ok_or_else(|| ApiError::not_found("state key", &key))?;
    let summary = entry.summary.as_deref();
    let summary = summary.map(|text| document::stored_json("state_entries.summary", &key, text));
    Ok(Json(StateValue {
        value: document::stored_json("state_entries.value", &key, &entry.value)?,
        version: entry.version,
        summary: summary.transpose()?,
        lease: entry.lease.map(document::lease),
    }))
}

/// Writes a value, with its bodies, and takes, renews or releases its lease.
///
/// With `If-Match` the write applies to that version only. With `lease_seconds` and without `If-Match`, the key is new or
/// this run has its lease. While another live run has the lease, the write fails.
#[utoipa::path(put, path = "/host/v1/state/{scope}/{*key}", tag = "host", security(("run_token" = [])),
    params(("scope" = StateScope, Path, description = "The state scope"), ("key" = String, Path, description = "Percent-encoded"),
        ("If-Match" = Option<i64>, Header, description = "The expected version")),
    request_body = StatePut, responses(
    (status = 200, description = "Stored", body = StateVersion),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The scope was not granted, or the key is reserved", body = ErrorBody),
    (status = 404, description = "`If-Match` has a version, but the key does not exist", body = ErrorBody),
    (status = 409, description = "The version does not match, or another run has the lease", body = ErrorBody),
    (status = 413, description = "The value is too large, or the scope or the run has too many keys", body = ErrorBody),
    (status = 503, description = "Earlier appended results of the run are still being processed", body = ErrorBody)))]
pub(crate) async fn put_state(
    caller: RunCaller,
    State(state): State<ApiState>,
    PathOf((scope, key)): PathOf<(String, String)>,
    headers: HeaderMap,
    JsonBody(mut body): JsonBody<StatePut>,
) -> ApiResult<Json<StateVersion>> {
    let write = Some((body.value.to_string(), document::parts_of(&mut body)?));
    match change(&caller, &state, &scope, key.clone(), write, &headers).await? {
        StateWritten::Version(version) => Ok(Json(StateVersion { version })),
        outcome => Err(refusal(&key, outcome)),
    }
}

/// Deletes a value.
///
/// With `If-Match` the deletion applies to that version only.
#[utoipa::path(delete, path = "/host/v1/state/{scope}/{*key}", tag = "host", security(("run_token" = [])),
    params(("scope" = StateScope, Path, description = "The state scope"), ("key" = String, Path, description = "Percent-encoded"),
        ("If-Match" = Option<i64>, Header, description = "The expected version")),
    responses(
    (status = 204, description = "Deleted"),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The scope was not granted", body = ErrorBody),
    (status = 404, description = "No such key", body = ErrorBody),
    (status = 409, description = "The version does not match, or another run has the lease", body = ErrorBody),
    (status = 503, description = "Earlier appended results of the run are still being processed", body = ErrorBody)))]
pub(crate) async fn delete_state(
    caller: RunCaller,
    State(state): State<ApiState>,
    PathOf((scope, key)): PathOf<(String, String)>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    match change(&caller, &state, &scope, key.clone(), None, &headers).await? {
        StateWritten::Deleted => Ok(StatusCode::NO_CONTENT.into_response()),
        outcome => Err(refusal(&key, outcome)),
    }
}

async fn change(
    caller: &RunCaller,
    state: &ApiState,
    scope: &str,
    key: String,
    write: Option<(String, DocumentParts)>,
    headers: &HeaderMap,
) -> ApiResult<StateWritten> {
    let action = if write.is_some() {
        "state_set"
    } else {
        "state_delete"
    };
    let (value, document) = write.unzip();
    let document = document.unwrap_or_default();
    let call = AuditedCall {
        action,
        resource: &resource(scope, &key),
        operation: "state",
    };
    let Some(parsed_scope) = StateScope::parse(scope) else {
        // The call fails there with the error for an unknown scope.
        return access(caller, state, call, scope)
            .await
            .map(|_| StateWritten::Absent);
    };
    let identity = match caller.grant.snapshot.state_scope(parsed_scope) {
        Ok(identity) => identity.to_owned(),
        Err(refused) => return caller.granted(state, call, Err(refused)).await,
    };
    caller.checked_key(state, call, &key).await?;
    let bytes = value.as_ref().map_or(0, String::len);
    let max_bytes = state.runs.limits().results.state_value_bytes;
    if bytes > max_bytes {
        return Err(ApiError::too_large(format!(
            "the value is larger than the {max_bytes} bytes of limits.state_value_bytes; move parts of it to `bodies`"
        )));
    }
    // The order of writes must be that of the runner's calls.
    after_appended(caller, state).await?;
    let change = StateChange {
        run_id: caller.grant.run.id,
        workspace: caller.grant.run.workspace.clone(),
        access: StateAccess {
            scope: parsed_scope,
            identity,
        },
        audit: caller.audit_entry(state, call, None, bytes + document.body_bytes()),
        key,
        value,
        document,
        if_match: if_match(headers)?,
        at: state.runs.clock().now_ms(),
    };
    Ok(state.runs.store().write(change).await?)
}

fn refusal(key: &str, outcome: StateWritten) -> ApiError {
    match outcome {
        StateWritten::Mismatch(version) => version_conflict(version),
        StateWritten::Full => ApiError::too_large(format!(
            "a scope has at most {STATE_KEYS} keys; delete some"
        )),
        StateWritten::ShareFull => ApiError::too_large(format!(
            "the run, or its agent, has made its share of the {STATE_KEYS} keys of the scope: a quarter is left to \
             others; write keys that are there, or delete some"
        )),
        StateWritten::Leased(lease) => ApiError::conflict(
            "leased",
            "another run has the lease of the key; write after its end or after `details.lease.expires_at`",
        )
        .with("lease", json!(document::lease(lease))),
        StateWritten::NotLeased(version) => ApiError::conflict(
            "not_leased",
            "this run does not have the lease of the key; read it and take the lease with `If-Match`",
        )
        .with("version", json!(version)),
        StateWritten::MissingBody(index) => {
            let message = "names no body of the key or of this write";
            ApiError::invalid(format!("/body_ids/{index}"), message)
        }
        StateWritten::BodiesFull => ApiError::too_large(format!(
            "a key has at most {STATE_BODIES} bodies, and all bodies of a scope {STATE_BODY_BYTES} bytes; delete some"
        )),
        // As for a token of a run that has ended.
        StateWritten::RunEnded => ApiError::unauthenticated(),
        StateWritten::Absent | StateWritten::Deleted | StateWritten::Version(_) => {
            ApiError::not_found("state key", key)
        }
    }
}
