//! Model providers.

use axum::Json;
use axum::extract::State;
use protocol::error::ErrorBody;
use protocol::model::ModelProvider;

use crate::admin::catalog::Catalogued;
use web::auth::AdminCaller;
use web::error::ApiResult;
use web::state::ApiState;

/// Lists the model providers with their health on this replica.
///
/// Health is the last response, the last failure, and the API keys in cooldown.
#[utoipa::path(get, path = "/v1/model-providers", tag = "admin", security(("api_key" = [])), responses(
    (status = 200, description = "All items", body = Catalogued<ModelProvider>),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_model_providers(
    _caller: AdminCaller,
    State(state): State<ApiState>,
) -> ApiResult<Json<Catalogued<ModelProvider>>> {
    Ok(Json(Catalogued::new(state.models.providers())))
}
