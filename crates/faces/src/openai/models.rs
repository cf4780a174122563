//! Agents as models.

use axum::Json;
use axum::extract::State;
use protocol::error::ErrorBody;
use serde_json::{Value, json};
use store::AgentRecord;

use crate::agents::{find_agent, reachable_agents};
use web::auth::ScopedCaller;
use web::error::ApiResult;
use web::query::PathOf;
use web::state::ApiState;

/// Lists the agents of the key as models: OpenAI's `GET /models`.
///
/// These are the enabled agents that take `message.received`, at most 1,000.
#[utoipa::path(get, path = "/faces/openai/v1/models", tag = "client", security(("api_key" = [])), responses(
    (status = 200, description = "A list of `model` objects", body = Object),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_agent_models(
    caller: ScopedCaller,
    State(state): State<ApiState>,
) -> ApiResult<Json<Value>> {
    let agents = reachable_agents(&state, &caller).await?;
    let models: Vec<_> = agents.iter().map(model_of).collect();
    Ok(Json(json!({"object": "list", "data": models})))
}

/// Retrieves an agent as a model: OpenAI's `GET /models/{model}`.
#[utoipa::path(get, path = "/faces/openai/v1/models/{agent}", tag = "client", security(("api_key" = [])),
    params(("agent" = String, Path, description = "Name of the agent, percent-encoded")), responses(
    (status = 200, description = "A `model` object", body = Object),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such agent for this key (`error.code`: model_not_found)", body = ErrorBody)))]
pub(crate) async fn get_agent_model(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(name): PathOf<String>,
) -> ApiResult<Json<Value>> {
    let agent = find_agent(&state, &caller, &name).await?;
    Ok(Json(model_of(&agent)))
}

fn model_of(agent: &AgentRecord) -> Value {
    json!({"id": agent.spec.name, "object": "model", "created": agent.created_at.div_euclid(1000), "owned_by": "runnel"})
}
