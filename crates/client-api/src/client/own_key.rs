//! The API key of a request.

use axum::Json;
use protocol::api_key::{KeyRole, OwnKey};
use protocol::error::ErrorBody;
use web::auth::KeyCaller;

use keys::api_key::shown;

/// Retrieves the API key of the request.
///
/// Open to keys of all roles, also to keys that are restricted to agents.
#[utoipa::path(get, path = "/v1/whoami", tag = "client", security(("api_key" = [])), responses(
    (status = 200, description = "The API key without its secret", body = OwnKey),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn get_own_key(KeyCaller { record, .. }: KeyCaller) -> Json<OwnKey> {
    let has_workspace = record.role != KeyRole::Owner;
    Json(OwnKey {
        workspace_id: has_workspace.then(|| record.workspace.to_string()),
        api_key: shown(record),
    })
}
