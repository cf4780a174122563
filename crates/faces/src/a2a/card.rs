//! Agent cards.

use axum::Json;
use axum::extract::State;
use protocol::error::ErrorBody;
use serde_json::{Value, json};
use store::AgentRecord;

use super::rpc::PROTOCOL_VERSION;
use crate::agents::{agent_of_path, public_url};
use web::auth::ScopedCaller;
use web::error::ApiResult;
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

fn card_of(agent: &AgentRecord, root: &str) -> Value {
    let name = &agent.spec.name;
    let description = agent.spec.description.clone();
    // A2A requires a description.
    let description = description.unwrap_or_else(|| format!("The agent {name}"));
    // The id needs no encoding, and a new name of the agent keeps the address valid.
    let url = format!("{root}/faces/a2a/{}", agent.id);
    let interfaces = ["JSONRPC", "HTTP+JSON"].map(|binding| {
        json!({"url": url, "protocolBinding": binding, "protocolVersion": PROTOCOL_VERSION})
    });
    json!({
        "name": name,
        "description": description,
        "version": agent.version.to_string(),
        "supportedInterfaces": interfaces,
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
