//! Limiters of keys, agents, models and providers.

use axum::Json;
use axum::extract::State;
use protocol::error::ErrorBody;
use protocol::limiter::LimiterStatus;

use crate::admin::catalog::Catalogued;
use web::auth::AdminCaller;
use web::error::ApiResult;
use web::state::ApiState;

/// Lists the limiters of this replica, with what they delay and have refused.
///
/// API keys of the workspace with limits are listed after their first start of a run on this replica; enabled agents,
/// models and model providers with limits always.
#[utoipa::path(get, path = "/v1/limits", tag = "admin", security(("api_key" = [])), responses(
    (status = 200, description = "All items", body = Catalogued<LimiterStatus>),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_limits(
    caller: AdminCaller,
    State(state): State<ApiState>,
) -> ApiResult<Json<Catalogued<LimiterStatus>>> {
    let mut limiters = state.runs.own_limiters(&caller.workspace).await?;
    limiters.extend(state.models.limiters());
    limiters.sort_by_cached_key(|of| (of.kind, of.name.clone(), of.id.clone(), of.limit));
    Ok(Json(Catalogued::new(limiters)))
}
