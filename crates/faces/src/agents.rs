//! Agents as a client of a face sees them: by name, within the reach of its key.

use domain::binding::takes;
use http::StatusCode;
use protocol::event::MESSAGE_RECEIVED;
use serde_json::json;
use store::AgentRecord;

use web::auth::ScopedCaller;
use web::error::{ApiError, ApiResult};
use web::state::ApiState;

/// Reason of the error for an absent agent, in `details.reason`.
pub(crate) const AGENT_NOT_FOUND: &str = "AGENT_NOT_FOUND";

/// Maximum agents of a list; the lists of these protocols have no pages.
const MAX_AGENTS: usize = 1000;
/// Agents of one query.
const PAGE: u64 = 100;

/// Finds an enabled agent by name or id that the caller reaches and that takes messages.
pub(crate) async fn find_agent(
    state: &ApiState,
    caller: &ScopedCaller,
    name: &str,
) -> ApiResult<AgentRecord> {
    let agents = state.runs.store().agents();
    let (workspace, _) = caller.credential();
    let found = match agents.find_agent_id(workspace, name).await? {
        // Foreign agents look like absent ones.
        Some(id) if caller.reach().reaches(id) => agents.find_agent(workspace, id).await?,
        _ => None,
    };
    let found = found.filter(takes_messages);
    found.ok_or_else(|| {
        let message = format!(
            "there is no agent {name:?} for this key that takes messages; list them at `/models`"
        );
        ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
            .with("reason", json!("model_not_found"))
    })
}

/// Finds the agent of a URL. Foreign agents look like absent ones.
pub(crate) async fn agent_of_path(
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
pub(crate) fn public_url(state: &ApiState) -> &str {
    let host = state.runs.keys().tokens.audience();
    // The audience is the public URL with the path of the host API.
    host.strip_suffix("/host/v1").unwrap_or(host)
}

/// The agents that the caller may name, by name.
pub(crate) async fn reachable_agents(
    state: &ApiState,
    caller: &ScopedCaller,
) -> ApiResult<Vec<AgentRecord>> {
    let agents = state.runs.store().agents();
    let (workspace, _) = caller.credential();
    let mut found = Vec::new();
    if let Some(only) = caller.reach().only() {
        // At most 16 by the rules of keys, so one query for each.
        for id in only {
            found.extend(agents.find_agent(workspace, *id).await?);
        }
    } else {
        let mut after = None;
        loop {
            let page = caller.answer.page(PAGE);
            let page = agents
                .list_agents(workspace, after.as_deref(), page)
                .await?;
            // The list is sorted by name, so the last name is the cursor.
            after = page.items.last().map(|last| last.spec.name.clone());
            found.extend(page.items);
            if !page.has_more || found.len() >= MAX_AGENTS {
                break;
            }
        }
    }
    // After the pages: the store does not index event types.
    found.retain(takes_messages);
    Ok(found)
}

fn takes_messages(agent: &AgentRecord) -> bool {
    agent.spec.enabled && takes(&agent.spec, MESSAGE_RECEIVED)
}
