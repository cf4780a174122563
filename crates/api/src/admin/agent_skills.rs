//! The skills that runs of an agent have registered: seen and withdrawn.

use axum::Json;
use axum::extract::State;
use domain::skill::skill_md;
use http::StatusCode;
use protocol::error::ErrorBody;
use protocol::id::{AgentId, WorkspaceId};
use protocol::skill::{AgentSkill, AgentSkillContent};
use store::WithdrawSkill;

use crate::ApiState;
use crate::admin::catalog::Catalogued;
use crate::auth::AdminCaller;
use crate::error::{ApiError, ApiResult};
use crate::query::PathOf;

/// Lists the skills that runs of an agent have registered, and which run wrote each. Later runs of the agent
/// have those that its `resource_policy.skills` names.
#[utoipa::path(get, path = "/v1/agents/{agent_id}/skills", tag = "admin", security(("api_key" = [])),
    params(("agent_id" = String, Path, description = "The agent")), responses(
    (status = 200, description = "All of them by name, 50 at most", body = Catalogued<AgentSkill>),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such agent", body = ErrorBody)))]
pub(crate) async fn list_agent_skills(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<AgentId>,
) -> ApiResult<Json<Catalogued<AgentSkill>>> {
    find_agent(&state, &caller.workspace, id).await?;
    let store = state.runs.store();
    let skills = store.list_agent_skills(&caller.workspace, id).await?;
    let skills = skills.into_iter().filter_map(|skill| {
        Some(AgentSkill {
            skill_name: skill.skill_name,
            description: skill.description?,
            registered: skill.registered?,
        })
    });
    Ok(Json(Catalogued::new(skills.collect())))
}

/// Reads such a skill: its `SKILL.md` and its files, as runs are given them.
#[utoipa::path(get, path = "/v1/agents/{agent_id}/skills/{skill_name}", tag = "admin", security(("api_key" = [])),
    params(("agent_id" = String, Path, description = "The agent"),
        ("skill_name" = String, Path, description = "The skill")), responses(
    (status = 200, description = "The skill", body = AgentSkillContent),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such agent or skill", body = ErrorBody)))]
pub(crate) async fn get_agent_skill(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf((id, name)): PathOf<(AgentId, String)>,
) -> ApiResult<Json<AgentSkillContent>> {
    let store = state.runs.store();
    let found = store.find_agent_skill(&caller.workspace, id, &name).await?;
    let found = found.ok_or_else(|| ApiError::not_found("skill"))?;
    Ok(Json(AgentSkillContent {
        content: skill_md(&found.skill_name, &found.description, &found.content),
        skill: AgentSkill {
            skill_name: found.skill_name,
            description: found.description,
            registered: found.registered,
        },
        files: found.files,
    }))
}

/// Withdraws such a skill, also from runs that live. An agent that may still register skills may register it
/// again: to end that, take `register_skill` out of its `resource_policy.tools`.
#[utoipa::path(delete, path = "/v1/agents/{agent_id}/skills/{skill_name}", tag = "admin", security(("api_key" = [])),
    params(("agent_id" = String, Path, description = "The agent"),
        ("skill_name" = String, Path, description = "The skill")), responses(
    (status = 204, description = "Gone"),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such agent or skill", body = ErrorBody)))]
pub(crate) async fn delete_agent_skill(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf((id, name)): PathOf<(AgentId, String)>,
) -> ApiResult<StatusCode> {
    let withdraw = WithdrawSkill {
        workspace: caller.workspace,
        agent_id: id,
        skill_name: name,
    };
    if state.runs.store().write(withdraw).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found("skill"))
    }
}

async fn find_agent(state: &ApiState, workspace: &WorkspaceId, id: AgentId) -> ApiResult<()> {
    let found = state.runs.store().find_agent(workspace, id).await?;
    found
        .map(|_| ())
        .ok_or_else(|| ApiError::not_found("agent"))
}
