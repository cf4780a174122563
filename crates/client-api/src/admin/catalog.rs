//! The configured catalog: models, tools, knowledge bases and skills.

use axum::Json;
use axum::extract::State;
use protocol::error::ErrorBody;
use protocol::resources::{KnowledgeBaseResource, ModelResource, SkillResource, ToolResource};
use serde::Serialize;

use web::auth::AdminCaller;
use web::state::ApiState;

/// All items of one kind.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct Catalogued<T> {
    items: Vec<T>,
}

impl<T> Catalogued<T> {
    pub(super) fn new(items: Vec<T>) -> Self {
        Self { items }
    }
}

/// Lists the models of the catalog.
#[utoipa::path(get, path = "/v1/models", tag = "admin", security(("api_key" = [])), responses(
    (status = 200, description = "All items", body = Catalogued<ModelResource>),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_models(
    _caller: AdminCaller,
    State(state): State<ApiState>,
) -> Json<Catalogued<ModelResource>> {
    Json(Catalogued {
        items: state.runs.catalog().models.clone(),
    })
}

/// Lists the tools of the catalog.
#[utoipa::path(get, path = "/v1/tools", tag = "admin", security(("api_key" = [])), responses(
    (status = 200, description = "All items", body = Catalogued<ToolResource>),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_tools(
    _caller: AdminCaller,
    State(state): State<ApiState>,
) -> Json<Catalogued<ToolResource>> {
    Json(Catalogued {
        items: state.runs.catalog().tools.clone(),
    })
}

/// Lists the knowledge bases of the catalog.
#[utoipa::path(get, path = "/v1/knowledge-bases", tag = "admin", security(("api_key" = [])), responses(
    (status = 200, description = "All items", body = Catalogued<KnowledgeBaseResource>),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_knowledge_bases(
    _caller: AdminCaller,
    State(state): State<ApiState>,
) -> Json<Catalogued<KnowledgeBaseResource>> {
    Json(Catalogued {
        items: state.runs.catalog().knowledge_bases.clone(),
    })
}

/// Lists the skills of the catalog.
#[utoipa::path(get, path = "/v1/skills", tag = "admin", security(("api_key" = [])), responses(
    (status = 200, description = "All items", body = Catalogued<SkillResource>),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_skills(
    _caller: AdminCaller,
    State(state): State<ApiState>,
) -> Json<Catalogued<SkillResource>> {
    Json(Catalogued {
        items: state.runs.catalog().skills.clone(),
    })
}
