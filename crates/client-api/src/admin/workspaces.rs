//! Workspaces. Needs role `owner`.

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use protocol::error::ErrorBody;
use protocol::id::WorkspaceId;
use protocol::run::Page;
use protocol::workspace::{CreatedWorkspace, Workspace, WorkspaceSpec};

use crate::admin::endpoints::{NameQuery, name_page, to_page};
use keys::api_key::{issue_workspace, shown_workspace};
use web::auth::OwnerCaller;
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::QueryOf;
use web::state::ApiState;

/// Creates a workspace and its first API key, of role admin.
///
/// Workspaces are isolated: each sees only its own objects.
#[utoipa::path(post, path = "/v1/workspaces", tag = "owner", security(("api_key" = [])),
    request_body = WorkspaceSpec, responses(
    (status = 201, description = "Created. `api_key.key` is only in this response", body = CreatedWorkspace),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The caller's key is not of role owner", body = ErrorBody),
    (status = 409, description = "`workspace_exists`: the id is taken", body = ErrorBody)))]
pub(crate) async fn create_workspace(
    caller: OwnerCaller,
    State(state): State<ApiState>,
    JsonBody(spec): JsonBody<WorkspaceSpec>,
) -> ApiResult<(StatusCode, Json<CreatedWorkspace>)> {
    if let Some((pointer, message)) = spec.fault() {
        return Err(ApiError::invalid(pointer, message));
    }
    let runs = &state.runs;
    let stamp = caller.stamp(&state);
    let created = issue_workspace(runs.store(), &stamp, &spec).await?;
    let created = created.ok_or_else(|| {
        let message = "another workspace has this id; take another, or make a key of that workspace \
            with `runnel token create --workspace`";
        ApiError::conflict("workspace_exists", message)
    })?;
    tracing::info!(workspace.id = spec.id, by = %caller.key, "workspace {} was made", spec.id);
    Ok((StatusCode::CREATED, Json(created)))
}

/// Lists the workspaces by id.
#[utoipa::path(get, path = "/v1/workspaces", tag = "owner", security(("api_key" = [])), params(NameQuery), responses(
    (status = 200, description = "A page", body = Page<Workspace>),
    (status = 400, description = "A cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The caller's key is not of role owner", body = ErrorBody)))]
pub(crate) async fn list_workspaces(
    caller: OwnerCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<NameQuery>,
) -> ApiResult<Json<Page<Workspace>>> {
    // The list belongs to the installation, not to a workspace.
    let none = WorkspaceId(String::new());
    let (after, limit) = name_page(&state, "workspaces", &none, query.cursor, query.limit)?;
    let store = state.runs.store();
    let bound = caller.answer.page(limit);
    let found = store
        .access()
        .list_workspaces(after.as_deref(), bound)
        .await?;
    let found = found.map(shown_workspace);
    let id = |item: &Workspace| item.id.clone();
    Ok(Json(to_page(&state, "workspaces", &none, found, id)))
}
