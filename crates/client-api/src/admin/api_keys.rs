//! API keys of a workspace. Keys of role admin manage them.

use axum::Json;
use axum::extract::State;
use domain::api_key::check_api_key;
use http::StatusCode;
use protocol::api_key::{ApiKey, ApiKeySpec, CreatedApiKey, KeyRole};
use protocol::error::ErrorBody;
use protocol::id::ApiKeyId;
use protocol::run::Page;
use secrecy::ExposeSecret;
use serde_json::json;
use store::{LastAdmin, RevokeApiKey, Revoked};

use crate::admin::endpoints::{NameQuery, name_page, to_page};
use keys::api_key::{IssueError, issue, shown};
use web::auth::AdminCaller;
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::{PathOf, QueryOf};
use web::state::ApiState;

/// Creates an API key in the caller's workspace.
///
/// Only `runnel token create` creates keys of role owner. An expired key is refused like an unknown one: by 401.
/// Its open streams end within two seconds; its runs continue.
///
/// A key with `agents` reaches these agents only. An event that goes to another agent, or to none, is refused by
/// 403 before it is stored. Runs, events, interactions and artifacts of other agents get 404. Routes that read the
/// complete workspace (the event log, conversations and their history) and uploads get 403.
#[utoipa::path(post, path = "/v1/api-keys", tag = "admin", security(("api_key" = [])),
    request_body = ApiKeySpec, responses(
    (status = 201, description = "Created. `key` is only in this response", body = CreatedApiKey),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The caller's key is not of role admin, or the new key would be of role owner", body = ErrorBody)))]
pub(crate) async fn create_api_key(
    caller: AdminCaller,
    State(state): State<ApiState>,
    JsonBody(spec): JsonBody<ApiKeySpec>,
) -> ApiResult<(StatusCode, Json<CreatedApiKey>)> {
    let runs = &state.runs;
    let faults = check_api_key(&spec, runs.clock().now_seconds());
    if !faults.is_empty() {
        return Err(ApiError::faults(&faults));
    }
    // An admin of one workspace must not gain the rights of an owner.
    if spec.role == KeyRole::Owner {
        let message = "only `runnel token create --role owner` makes a key of role owner";
        return Err(ApiError::unauthorized(message).with("pointer", json!("/role")));
    }
    let stamp = caller.stamp(&state);
    let issued = issue(runs.store(), &stamp, &caller.workspace, &spec).await;
    let (record, key) = issued.map_err(|error| match error {
        IssueError::UnknownAgent(at) => {
            // The index is that of the request's list, for the pointer in the error.
            let message = "names no agent of this workspace, by name or id";
            ApiError::invalid(format!("/agents/{at}"), message)
        }
        IssueError::Store(error) => error.into(),
    })?;
    tracing::info!(api_key.id = %record.id, api_key.name = record.name, role = record.role.as_str(),
        by = %caller.key, "API key {} was made", record.id);
    let created = CreatedApiKey {
        api_key: shown(record),
        key: key.expose_secret().to_owned(),
    };
    Ok((StatusCode::CREATED, Json(created)))
}

/// Lists the API keys of the workspace, oldest first, including revoked and expired ones.
#[utoipa::path(get, path = "/v1/api-keys", tag = "admin", security(("api_key" = [])), params(NameQuery), responses(
    (status = 200, description = "A page, without secrets", body = Page<ApiKey>),
    (status = 400, description = "A cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The caller's key is not of role admin", body = ErrorBody)))]
pub(crate) async fn list_api_keys(
    caller: AdminCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<NameQuery>,
) -> ApiResult<Json<Page<ApiKey>>> {
    let workspace = &caller.workspace;
    let (after, limit) = name_page(&state, "api-keys", workspace, query.cursor, query.limit)?;
    let store = state.runs.store();
    let found = store
        .access()
        .list_api_keys(workspace, after.as_deref(), caller.answer.page(limit))
        .await?
        .map(shown);
    Ok(Json(to_page(
        &state,
        "api-keys",
        workspace,
        found,
        |item: &ApiKey| item.id.to_string(),
    )))
}

/// Retrieves an API key, live, expired or revoked.
#[utoipa::path(get, path = "/v1/api-keys/{api_key_id}", tag = "admin", security(("api_key" = [])),
    params(("api_key_id" = String, Path, description = "The key's id")), responses(
    (status = 200, description = "The API key without its secret", body = ApiKey),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The caller's key is not of role admin", body = ErrorBody),
    (status = 404, description = "No such API key", body = ErrorBody)))]
pub(crate) async fn get_api_key(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<ApiKeyId>,
) -> ApiResult<Json<ApiKey>> {
    let store = state.runs.store();
    let record = store
        .access()
        .find_api_key_by_id(&caller.workspace, id)
        .await?;
    let record = record.ok_or_else(|| ApiError::not_found("API key", id))?;
    Ok(Json(shown(record)))
}

/// Revokes an API key.
///
/// From then on all replicas answer requests with this key by 401. Its open streams end within two seconds; its
/// runs continue. Revoking a revoked key has no effect. The last key of role admin and keys of role owner cannot
/// be revoked here.
#[utoipa::path(delete, path = "/v1/api-keys/{api_key_id}", tag = "admin", security(("api_key" = [])),
    params(("api_key_id" = String, Path, description = "The key's id")), responses(
    (status = 204, description = "Revoked"),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The caller's key is not of role admin, or the key to revoke is of role owner", body = ErrorBody),
    (status = 404, description = "No such API key", body = ErrorBody),
    (status = 409, description = "`last_admin_key`: the last key of role admin in the workspace", body = ErrorBody)))]
pub(crate) async fn revoke_api_key(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<ApiKeyId>,
) -> ApiResult<StatusCode> {
    let stamp = caller.stamp(&state);
    let revoke = RevokeApiKey {
        workspace: caller.workspace,
        id,
        last_admin: LastAdmin::Stays,
        at: stamp.at,
    };
    match state.runs.store().change(stamp, revoke).await? {
        Revoked::Now { key, .. } => {
            tracing::info!(api_key.id = %key.id, api_key.name = key.name, role = key.role.as_str(),
                by = %caller.key, "API key {} was revoked", key.id);
            Ok(StatusCode::NO_CONTENT)
        }
        // The second revocation gives the same response, so that clients can retry.
        Revoked::Before(_) => Ok(StatusCode::NO_CONTENT),
        Revoked::Unknown => Err(ApiError::not_found("API key", id)),
        // An admin must not lock out the owner.
        Revoked::Owner => {
            let message = "only `runnel token revoke` revokes a key of role owner";
            Err(ApiError::unauthorized(message))
        }
        Revoked::LastAdmin => {
            let message = "this is the last key of role admin in the workspace; create another one first, with \
                           POST /v1/api-keys";
            Err(ApiError::conflict("last_admin_key", message))
        }
    }
}
