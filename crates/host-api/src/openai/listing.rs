//! Lists of the granted models.

use axum::Json;
use axum::extract::State;
use protocol::error::ErrorBody;
use protocol::resources::ModelResource;
use serde_json::{Value, json};

use web::auth::{AuditedCall, LiveCaller};
use web::error::{ApiError, ApiResult};
use web::query::PathOf;
use web::state::ApiState;

/// Lists the granted models: OpenAI's `GET /models`.
#[utoipa::path(get, path = "/host/v1/openai/v1/models", tag = "host", security(("run_token" = [])), responses(
    (status = 200, description = "A list of `model` objects", body = Object),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody)))]
pub(crate) async fn list_openai_models(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
) -> ApiResult<Json<Value>> {
    caller.record(&state, LIST, None).await?;
    let models: Vec<_> = caller
        .grant
        .snapshot
        .resources
        .models
        .iter()
        .map(shown_model)
        .collect();
    Ok(Json(json!({"object": "list", "data": models})))
}

/// Retrieves a granted model: OpenAI's `GET /models/{model}`.
#[utoipa::path(get, path = "/host/v1/openai/v1/models/{model_id}", tag = "host", security(("run_token" = [])),
    params(("model_id" = String, Path, description = "Percent-encoded")), responses(
    (status = 200, description = "A `model` object", body = Object),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 404, description = "No such granted model", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody)))]
pub(crate) async fn get_openai_model(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
) -> ApiResult<Json<Value>> {
    caller.record(&state, LIST, None).await?;
    let mut models = caller.grant.snapshot.resources.models.iter();
    let found = models.find(|model| model.model_id == id).map(shown_model);
    Ok(Json(found.ok_or_else(|| ApiError::not_found("model", id))?))
}

pub(crate) const LIST: AuditedCall<'static> = AuditedCall {
    action: "models_list",
    resource: "models",
    operation: "list",
};

pub fn shown_model(model: &ModelResource) -> Value {
    let owner = model.provider.as_deref().unwrap_or("runnel");
    json!({"id": model.model_id, "object": "model", "created": 0, "owned_by": owner})
}
