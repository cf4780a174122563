//! Parts of a state entry as a run document: summary, lease and bodies.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use domain::form::escape_pointer;
use domain::state::check_key;
use http::header::CONTENT_TYPE;
use protocol::error::ErrorBody;
use protocol::host_api::{StateDocument, StateLease, StatePut};
use protocol::resources::StateScope;
use serde_json::Value;
use store::{DocumentParts, STATE_BODIES, StateSummary, StoreError};

use web::auth::{AuditedCall, LiveCaller};
use web::error::{ApiError, ApiResult};
use web::query::PathOf;
use web::state::ApiState;

use super::{access, resource};

/// Maximum bytes of a write with its bodies. JSON escapes may double an output of 10 MiB.
pub(crate) const WRITE_BYTES: usize = 20 << 20;

/// Maximum bytes of a summary.
const SUMMARY_BYTES: usize = 2048;

/// Maximum seconds of a lease: the maximum deadline of a run.
const LEASE_SECONDS: u32 = 86_400;

/// Retrieves a body of a state entry.
#[utoipa::path(get, path = "/host/v1/state-bodies/{scope}/{body_id}/{*key}", tag = "host", security(("run_token" = [])),
    params(("scope" = StateScope, Path, description = "The state scope"), ("body_id" = String, Path, description = "Percent-encoded"),
        ("key" = String, Path, description = "Percent-encoded")),
    responses(
    (status = 200, description = "The JSON of the body", body = Value),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The scope was not granted", body = ErrorBody),
    (status = 404, description = "No such key or body", body = ErrorBody)))]
pub(crate) async fn get_state_body(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf((scope, body_id, key)): PathOf<(String, String, String)>,
) -> ApiResult<Response> {
    let call = AuditedCall {
        action: "state_get",
        resource: &resource(&scope, &key),
        operation: "state",
    };
    caller.checked_key(&state, call, &key).await?;
    let access = access(&caller, &state, call, &scope).await?;
    let store = state.runs.store().state();
    let absent = || ApiError::not_found("body", &body_id);
    let bytes = store.state_body_bytes(&access, &key, &body_id).await?;
    let bytes = usize::try_from(bytes.ok_or_else(absent)?).unwrap_or(usize::MAX);
    // Before the read: many reads of large bodies at once must not exceed the gateway's memory.
    caller.answer.reserve(bytes)?;
    let body = store.find_state_body(&access, &key, &body_id).await?;
    let json = [(CONTENT_TYPE, "application/json")];
    Ok((json, body.ok_or_else(absent)?).into_response())
}

/// Checks the parts of a write, except those that depend on the stored entry.
pub(super) fn parts_of(put: &mut StatePut) -> ApiResult<DocumentParts> {
    let summary = put.summary.take().map(|summary| summary.to_string());
    if summary
        .as_ref()
        .is_some_and(|one| one.len() > SUMMARY_BYTES)
    {
        let message = format!("is larger than {SUMMARY_BYTES} bytes; shorten it");
        return Err(ApiError::invalid("/summary", message));
    }
    let seconds = put.lease_seconds;
    if seconds.is_some_and(|seconds| !(1..=LEASE_SECONDS).contains(&seconds)) {
        let message = format!("must be 1 to {LEASE_SECONDS}; leave it out to release the lease");
        return Err(ApiError::invalid("/lease_seconds", message));
    }
    let body_ids = put.body_ids.take();
    if body_ids
        .as_ref()
        .is_some_and(|ids| ids.len() > STATE_BODIES)
    {
        let message = format!("has too many ids; an entry has at most {STATE_BODIES} bodies");
        return Err(ApiError::invalid("/body_ids", message));
    }
    let mut bodies = BTreeMap::new();
    for (id, body) in std::mem::take(&mut put.bodies) {
        if let Err(fault) = check_key(&id) {
            // The response must not repeat an id of any length.
            let id: String = id.chars().take(255).collect();
            let pointer = format!("/bodies/{}", escape_pointer(&id));
            return Err(ApiError::invalid(pointer, format!("is no id: {fault}")));
        }
        bodies.insert(id, body.to_string());
    }
    Ok(DocumentParts {
        summary,
        lease: seconds.map(|seconds| Duration::from_secs(seconds.into())),
        bodies,
        body_ids,
    })
}

/// Parses stored JSON text.
pub(crate) fn stored_json(column: &'static str, key: &str, text: &str) -> ApiResult<Value> {
    let corrupt = |_| StoreError::Corrupt {
        column,
        row: key.to_owned(),
    };
    Ok(serde_json::from_str(text).map_err(corrupt)?)
}

pub(super) fn document(stored: StateSummary) -> ApiResult<StateDocument> {
    Ok(StateDocument {
        summary: stored_json("state_entries.summary", &stored.key, &stored.summary)?,
        lease: stored.lease.map(lease),
        key: stored.key,
        version: stored.version,
    })
}

pub(super) fn lease(lease: store::EntryLease) -> StateLease {
    StateLease {
        run_id: lease.run,
        expires_at: lease.expires_at,
    }
}
