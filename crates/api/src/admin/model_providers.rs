//! The providers of the models.

use axum::Json;
use axum::extract::State;
use protocol::error::ErrorBody;
use protocol::model::ModelProvider;

use crate::ApiState;
use crate::admin::catalog::Catalogued;
use crate::auth::AdminCaller;
use crate::error::ApiResult;

/// Lists the providers of models as this replica has met them: their last answer, their last failure, and
/// which of their keys rest.
#[utoipa::path(get, path = "/v1/model-providers", tag = "admin", security(("api_key" = [])), responses(
    (status = 200, description = "All of them", body = Catalogued<ModelProvider>),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_model_providers(
    _caller: AdminCaller,
    State(state): State<ApiState>,
) -> ApiResult<Json<Catalogued<ModelProvider>>> {
    Ok(Json(Catalogued::new(state.models.providers())))
}
