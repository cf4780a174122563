//! Health history of a runner endpoint.

use axum::Json;
use axum::extract::State;
use protocol::discovery::HealthChange;
use protocol::error::ErrorBody;
use protocol::id::EndpointId;
use protocol::run::Page;
use serde::Deserialize;
use serde_json::json;
use store::HealthRecord;

use crate::admin::endpoints::find_endpoint;
use keys::cursor::{CursorKind, InvalidCursor};
use web::auth::AdminCaller;
use web::error::ApiResult;
use web::query::{PathOf, QueryOf, page_limit};
use web::state::ApiState;

/// Cursor and size of a page.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct HealthQuery {
    cursor: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
}

/// Lists changes of an endpoint's health and of its runners, newest first.
///
/// The gateway keeps the last 200 changes of each endpoint.
#[utoipa::path(get, path = "/v1/runner-endpoints/{endpoint_id}/health", tag = "admin", security(("api_key" = [])),
    params(("endpoint_id" = String, Path, description = "The endpoint"), HealthQuery), responses(
    (status = 200, description = "A page", body = Page<HealthChange>),
    (status = 400, description = "A cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such endpoint", body = ErrorBody)))]
pub(crate) async fn list_endpoint_health(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<EndpointId>,
    QueryOf(query): QueryOf<HealthQuery>,
) -> ApiResult<Json<Page<HealthChange>>> {
    let limit = page_limit(query.limit)?;
    let endpoint = find_endpoint(&state, &caller, id).await?;
    // Part of the signature: a cursor of another endpoint is rejected.
    let list = json!(["health", caller.workspace.as_str(), endpoint.id]).to_string();
    let cursors = state.runs.cursors();
    let before = match &query.cursor {
        None => None,
        Some(cursor) => {
            let position = cursors.decode(CursorKind::Health, &list, cursor)?;
            let position = position.try_into().map_err(|_| InvalidCursor)?;
            Some(u64::from_be_bytes(position))
        }
    };
    let store = state.runs.store();
    let found = store
        .endpoints()
        .list_health(endpoint.id, before, caller.answer.page(limit));
    let found = found.await?;
    let (records, has_more) = (found.items, found.has_more);
    let next_cursor = records
        .last()
        .filter(|_| has_more)
        .map(|last| cursors.encode(CursorKind::Health, &list, &last.n.to_be_bytes()));
    Ok(Json(Page {
        items: records.into_iter().map(view).collect(),
        next_cursor,
        prev_cursor: None,
        has_more,
        total_count: None,
    }))
}

fn view(record: HealthRecord) -> HealthChange {
    HealthChange {
        at: record.at.div_euclid(1000),
        health: record.health,
        reason: record.reason,
        latency_ms: record.latency_ms,
        accepted: record.accepted,
        incompatible: record.incompatible,
        rejected: record.rejected,
        added: record.added,
        changed: record.changed,
        removed: record.removed,
    }
}
