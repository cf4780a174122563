//! State of mock runs.

use axum::Json;
use axum::extract::State;
use domain::authorization::{Decision, Layer, NotGranted};
use domain::state::{StateKeyFault, check_key};
use http::{HeaderMap, StatusCode};
use protocol::host_api::{
    CheckpointPut, CheckpointVersion, RunCheckpoint, StateDocument, StateKeys, StateLease,
    StatePut, StateValue, StateVersion,
};
use protocol::resources::StateScope;
use serde_json::Value;

use super::routes::MockRunCaller;
use super::{MAX_KEYS, MockHost, MockRunState};
use host_api::checkpoint::CHECKPOINT_BYTES;
use host_api::state::StateQuery;
use web::error::routing::no_such;
use web::error::version::version_conflict;
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::{PathOf, QueryOf, if_match, page_limit};

fn granted_scope(part: &MockRunState, name: &str) -> ApiResult<StateScope> {
    let scope = StateScope::parse(name).ok_or_else(|| {
        ApiError::invalid_argument(
            "state scopes are conversation, actor, subject, runner and binding",
        )
    })?;
    let granted = part.run.snapshot.state_scope(scope);
    granted.map_err(|refused: NotGranted| match state_decision(part, name) {
        Some(decision) => ApiError::unauthorized(format!("{refused}: {}", decision.rule)),
        None => ApiError::from(refused),
    })?;
    Ok(scope)
}

fn state_decision<'a>(part: &'a MockRunState, scope: &str) -> Option<&'a Decision> {
    let decisions = part.run.snapshot.decisions.iter();
    decisions
        .into_iter()
        .find(|one| one.kind == "state" && one.operation == scope)
}

/// True if a call below `/host/v1/state` is refused only for its event: manifest and agent grant the scope.
pub(super) fn is_of_event(part: &MockRunState, path: &str) -> bool {
    let scope = path.strip_prefix("/host/v1/state/");
    let scope = scope.and_then(|rest| rest.split('/').next());
    let decision = scope.and_then(|scope| state_decision(part, scope));
    decision.is_some_and(|one| !one.granted && one.layer == Layer::EventScope)
}

fn checked_key(key: &str) -> ApiResult<()> {
    check_key(key).map_err(|fault| match fault {
        StateKeyFault::Malformed => ApiError::invalid_argument(fault.to_string()),
        StateKeyFault::Reserved => ApiError::unauthorized(fault.to_string()),
    })
}

pub(super) async fn list_state(
    caller: MockRunCaller,
    PathOf(scope): PathOf<String>,
    QueryOf(query): QueryOf<StateQuery>,
) -> ApiResult<Json<StateKeys>> {
    let part = caller.not_cancelled()?;
    let scope = granted_scope(&part, &scope)?;
    let limit = usize::try_from(page_limit(query.limit)?).unwrap_or(usize::MAX);
    part.after_appended().await?;
    let prefix = query.prefix.unwrap_or_default();
    let after = query.after.unwrap_or_default();
    let progress = part.progress();
    let held = progress.state.keys().filter(|(of, _)| *of == scope);
    let mut keys: Vec<_> = held
        .map(|(_, key)| key.clone())
        .filter(|key| key.starts_with(&prefix) && **key > *after)
        .collect();
    let has_more = keys.len() > limit;
    keys.truncate(limit);
    let documents = keys.iter().filter_map(|key| {
        let (entry, version) = progress.state.get(&(scope, key.clone()))?;
        Some(StateDocument {
            key: key.clone(),
            version: *version,
            summary: entry.summary.clone()?,
            lease: part.lease(entry),
        })
    });
    Ok(Json(StateKeys {
        documents: documents.collect(),
        keys,
        has_more,
    }))
}

pub(super) async fn get_state(
    caller: MockRunCaller,
    PathOf((scope, key)): PathOf<(String, String)>,
) -> ApiResult<Json<StateValue>> {
    let part = caller.not_cancelled()?;
    checked_key(&key)?;
    let scope = granted_scope(&part, &scope)?;
    part.after_appended().await?;
    let entry = part.progress().state.get(&(scope, key.clone())).cloned();
    let (entry, version) = entry.ok_or_else(|| ApiError::not_found("state key", &key))?;
    Ok(Json(StateValue {
        lease: part.lease(&entry),
        value: entry.value,
        version,
        summary: entry.summary,
    }))
}

pub(super) async fn get_state_body(
    caller: MockRunCaller,
    PathOf((scope, body_id, key)): PathOf<(String, String, String)>,
) -> ApiResult<Json<Value>> {
    let part = caller.not_cancelled()?;
    let scope = granted_scope(&part, &scope)?;
    let progress = part.progress();
    let entry = progress.state.get(&(scope, key));
    let body = entry.and_then(|(entry, _)| entry.bodies.get(&body_id).cloned());
    body.map(Json)
        .ok_or_else(|| ApiError::not_found("body", &body_id))
}

impl MockRunState {
    /// Lease of an entry: no other run writes it.
    fn lease(&self, entry: &StatePut) -> Option<StateLease> {
        entry.lease_seconds.map(|_| StateLease {
            run_id: self.run.snapshot.run_id,
            expires_at: self.run.deadline_at,
        })
    }
}

pub(super) async fn put_state(
    MockRunCaller(part): MockRunCaller,
    State(mock_host): State<MockHost>,
    PathOf((scope, key)): PathOf<(String, String)>,
    headers: HeaderMap,
    JsonBody(mut body): JsonBody<StatePut>,
) -> ApiResult<Json<StateVersion>> {
    if body.value.to_string().len() > mock_host.0.limits.state_value_bytes {
        return Err(ApiError::too_large(
            "the value is larger than limits.state_value_bytes",
        ));
    }
    let scope = granted_scope(&part, &scope)?;
    checked_key(&key)?;
    let expected = if_match(&headers)?;
    part.after_appended().await?;
    let mut progress = part.progress();
    let entry = progress.state.get(&(scope, key.clone()));
    let current = entry.map_or(0, |(_, version)| *version);
    if expected.is_some_and(|expected| expected != current) {
        return Err(version_conflict(current));
    }
    if current == 0 && progress.state.len() >= MAX_KEYS {
        let message = format!("a rehearsed run keeps at most {MAX_KEYS} keys");
        return Err(ApiError::too_large(message));
    }
    let stored = entry.into_iter().flat_map(|(entry, _)| &entry.bodies);
    for (id, stored) in stored {
        if body.body_ids.as_ref().is_none_or(|ids| ids.contains(id)) {
            body.bodies.entry(id.clone()).or_insert(stored.clone());
        }
    }
    let version = current + 1;
    progress.state.insert((scope, key), (body, version));
    Ok(Json(StateVersion { version }))
}

pub(super) async fn delete_state(
    MockRunCaller(part): MockRunCaller,
    PathOf((scope, key)): PathOf<(String, String)>,
) -> ApiResult<StatusCode> {
    let scope = granted_scope(&part, &scope)?;
    checked_key(&key)?;
    part.after_appended().await?;
    let gone = part.progress().state.remove(&(scope, key.clone()));
    gone.map(|_| StatusCode::NO_CONTENT)
        .ok_or_else(|| ApiError::not_found("state key", &key))
}

pub(super) async fn get_checkpoint(caller: MockRunCaller) -> ApiResult<Json<RunCheckpoint>> {
    let part = caller.not_cancelled()?;
    part.run.snapshot.checkpoint()?;
    let stored = part.progress().checkpoint.clone();
    let stored = stored.ok_or_else(|| no_such("the run has no checkpoint"))?;
    Ok(Json(stored))
}

/// Stores a checkpoint. A mock run has no ledger, so `after` is the sequence of the runner.
pub(super) async fn put_checkpoint(
    caller: MockRunCaller,
    headers: HeaderMap,
    JsonBody(body): JsonBody<CheckpointPut>,
) -> ApiResult<Json<CheckpointVersion>> {
    let part = caller.not_cancelled()?;
    part.run.snapshot.checkpoint()?;
    if body.sequence == Some(0) {
        return Err(ApiError::invalid("/sequence", "must be 1 or more"));
    }
    if body.value.to_string().len() > CHECKPOINT_BYTES {
        return Err(ApiError::too_large("the checkpoint is larger than 256 KiB"));
    }
    let expected = if_match(&headers)?;
    let mut progress = part.progress();
    let current = progress.checkpoint.as_ref();
    let current = current.map_or(0, |current| current.version);
    if expected.is_some_and(|expected| expected != current) {
        return Err(version_conflict(current));
    }
    let (version, after) = (current + 1, body.sequence.unwrap_or(0));
    progress.checkpoint = Some(RunCheckpoint {
        value: body.value,
        version,
        after,
    });
    Ok(Json(CheckpointVersion { version, after }))
}
