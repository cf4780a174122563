//! Agent cards.

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use protocol::error::ErrorBody;
use serde_json::{Value, json};
use store::AgentRecord;

use super::rpc::{AGENT_NOT_FOUND, PROTOCOL_VERSION};
use crate::agents::find_agent;
use web::auth::ScopedCaller;
use web::error::{ApiError, ApiResult};
use web::query::PathOf;
use web::state::ApiState;

/// Name of the security scheme in the card.
const KEY_SCHEME: &str = "api_key";

/// Retrieves the A2A agent card of an agent.
///
/// The card has the address of the agent, and lists what this gateway serves of A2A 1.0.
#[utoipa::path(get, path = "/faces/a2a/{agent}/.well-known/agent-card.json", tag = "client",
    security(("api_key" = [])),
    params(("agent" = String, Path, description = "Name or id of the agent, percent-encoded")), responses(
    (status = 200, description = "An `AgentCard`", body = Object),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such agent for this key", body = ErrorBody)))]
pub(crate) async fn get_agent_card(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(agent): PathOf<String>,
) -> ApiResult<Json<Value>> {
    let agent = agent_of_path(&state, &caller, &agent).await?;
    Ok(Json(card_of(&agent, public_url(&state))))
}

/// Finds the agent of a URL. Foreign agents look like absent ones.
pub(super) async fn agent_of_path(
    state: &ApiState,
    caller: &ScopedCaller,
    name: &str,
) -> ApiResult<AgentRecord> {
    let found = find_agent(state, caller, name).await;
    found.map_err(|error| match error.status {
        StatusCode::NOT_FOUND => ApiError::not_found("agent", name)
            .with_advice("for this key that takes messages")
            .with("reason", json!(AGENT_NOT_FOUND)),
        _ => error,
    })
}

/// The public URL of the gateway.
pub(super) fn public_url(state: &ApiState) -> &str {
    let host = state.runs.keys().tokens.audience();
    // The audience is the public URL with the path of the host API.
    host.strip_suffix("/host/v1").unwrap_or(host)
}

fn card_of(agent: &AgentRecord, root: &str) -> Value {
    let name = &agent.spec.name;
    let description = agent.spec.description.clone();
    // A2A requires a description.
    let description = description.unwrap_or_else(|| format!("The agent {name}"));
    json!({
        "name": name,
        "description": description,
        "version": agent.version.to_string(),
        "supportedInterfaces": [{
            // The id needs no encoding, and a new name of the agent keeps the address valid.
            "url": format!("{root}/faces/a2a/{}", agent.id),
            "protocolBinding": "JSONRPC",
            "protocolVersion": PROTOCOL_VERSION,
        }],
        "capabilities": {"streaming": true, "pushNotifications": false, "extendedAgentCard": false},
        "securitySchemes": {KEY_SCHEME: {"httpAuthSecurityScheme": {
            "scheme": "Bearer", "description": "An API key of this gateway that reaches the agent",
        }}},
        "securityRequirements": [{"schemes": {KEY_SCHEME: {"list": []}}}],
        "defaultInputModes": ["text/plain", "application/json", "application/octet-stream"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "message", "name": name, "description": description, "tags": ["message"]}],
    })
}
