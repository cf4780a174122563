//! Skills registered by runs of an agent.

use axum::Json;
use axum::extract::State;
use domain::skill::skill_md;
use http::StatusCode;
use protocol::error::ErrorBody;
use protocol::id::{AgentId, WorkspaceId};
use protocol::skill::{AgentSkill, AgentSkillContent};
use store::WithdrawSkill;

use crate::admin::catalog::Catalogued;
use web::auth::AdminCaller;
use web::error::{ApiError, ApiResult};
use web::query::PathOf;
use web::state::ApiState;

/// Lists the skills that runs of an agent have registered, with the run that wrote each.
///
/// Later runs get the skills named in the agent's `resource_policy.skills`.
#[utoipa::path(get, path = "/v1/agents/{agent_id}/skills", tag = "admin", security(("api_key" = [])),
    params(("agent_id" = String, Path, description = "The agent")), responses(
    (status = 200, description = "All items by name, at most 50", body = Catalogued<AgentSkill>),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such agent", body = ErrorBody)))]
pub(crate) async fn list_agent_skills(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<AgentId>,
) -> ApiResult<Json<Catalogued<AgentSkill>>> {
    find_agent(&state, &caller.workspace, id).await?;
    let store = state.runs.store();
    let skills = store
        .agents()
        .list_agent_skills(&caller.workspace, id)
        .await?;
    let skills = skills.into_iter().filter_map(|skill| {
        Some(AgentSkill {
            skill_name: skill.skill_name,
            description: skill.description?,
            registered: skill.registered?,
        })
    });
    Ok(Json(Catalogued::new(skills.collect())))
}

/// Retrieves a registered skill: its `SKILL.md` and files, in the form that runs get.
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
    let found = store
        .agents()
        .find_agent_skill(&caller.workspace, id, &name)
        .await?;
    let found = found.ok_or_else(|| ApiError::not_found("skill", name))?;
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

/// Withdraws a registered skill, also from live runs.
///
/// The agent may register it again. To prevent this, remove `register_skill` from its `resource_policy.tools`.
#[utoipa::path(delete, path = "/v1/agents/{agent_id}/skills/{skill_name}", tag = "admin", security(("api_key" = [])),
    params(("agent_id" = String, Path, description = "The agent"),
        ("skill_name" = String, Path, description = "The skill")), responses(
    (status = 204, description = "Deleted"),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such agent or skill", body = ErrorBody)))]
pub(crate) async fn delete_agent_skill(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf((id, name)): PathOf<(AgentId, String)>,
) -> ApiResult<StatusCode> {
    let stamp = caller.stamp(&state);
    let withdraw = WithdrawSkill {
        workspace: caller.workspace,
        agent_id: id,
        skill_name: name.clone(),
    };
    if state.runs.store().change(stamp, withdraw).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found("skill", name))
    }
}

async fn find_agent(state: &ApiState, workspace: &WorkspaceId, id: AgentId) -> ApiResult<()> {
    let found = state
        .runs
        .store()
        .agents()
        .find_agent(workspace, id)
        .await?;
    found
        .map(|_| ())
        .ok_or_else(|| ApiError::not_found("agent", id))
}
