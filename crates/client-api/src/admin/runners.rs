//! The runner registry.

use axum::Json;
use axum::extract::State;
use protocol::admin::RunnerView;
use protocol::error::ErrorBody;
use protocol::id::RunnerId;
use protocol::run::Page;
use serde::Deserialize;
use store::{ListPage, RunnerRecord};

use crate::admin::endpoints::name_page;
use web::auth::AdminCaller;
use web::error::ApiResult;
use web::query::QueryOf;
use web::state::ApiState;

/// Filter, cursor and size of a page.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunnersQuery {
    /// Returns only the runner with this id.
    #[param(value_type = Option<String>)]
    id: Option<RunnerId>,
    cursor: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
}

/// Lists runners: bindable ones, incompatible ones, and removed ones with a bound agent.
#[utoipa::path(get, path = "/v1/runners", tag = "admin", security(("api_key" = [])), params(RunnersQuery), responses(
    (status = 200, description = "A page sorted by id", body = Page<RunnerView>),
    (status = 400, description = "A cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_runners(
    caller: AdminCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<RunnersQuery>,
) -> ApiResult<Json<Page<RunnerView>>> {
    let store = state.runs.store();
    if let Some(id) = query.id {
        let found = store
            .endpoints()
            .find_runner(&caller.workspace, &id)
            .await?;
        let mut items = Vec::new();
        if let Some(record) = found {
            items.push(view(&state, &caller, record).await?);
        }
        return Ok(Json(Page {
            items,
            next_cursor: None,
            prev_cursor: None,
            total_count: None,
            has_more: false,
        }));
    }
    let (after, limit) = name_page(
        &state,
        "runners",
        &caller.workspace,
        query.cursor,
        query.limit,
    )?;
    let found = store
        .endpoints()
        .list_runners(
            &caller.workspace,
            after.as_deref(),
            caller.answer.page(limit),
        )
        .await?;
    let mut items = Vec::new();
    // One look-up a row: the page has at most 100.
    for record in found.items {
        items.push(view(&state, &caller, record).await?);
    }
    let has_more = found.has_more;
    let found = ListPage { items, has_more };
    let page = super::endpoints::to_page(&state, "runners", &caller.workspace, found, |item| {
        item.id.to_string()
    });
    Ok(Json(page))
}

async fn view(
    state: &ApiState,
    caller: &AdminCaller,
    record: RunnerRecord,
) -> ApiResult<RunnerView> {
    let endpoint = state
        .runs
        .store()
        .endpoints()
        .find_endpoint(&caller.workspace, record.endpoint_id)
        .await?;
    Ok(RunnerView {
        id: record.id,
        // The endpoint may have been deleted since the runner was read.
        endpoint: endpoint.map(|endpoint| endpoint.name).unwrap_or_default(),
        status: record.status.as_str().to_owned(),
        reason: record.reason,
        manifest: serde_json::from_str(&record.manifest).unwrap_or_default(),
        manifest_sha256: record.manifest_sha256,
        seen_at: record.seen_at.div_euclid(1000),
    })
}
