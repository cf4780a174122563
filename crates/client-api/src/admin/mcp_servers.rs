//! Configured MCP servers.

use axum::Json;
use axum::extract::State;
use protocol::error::ErrorBody;
use protocol::tool::McpServer;

use crate::admin::catalog::Catalogued;
use web::auth::AdminCaller;
use web::error::ApiResult;
use web::state::ApiState;

/// Lists the MCP servers with their state on this replica: whether each is callable, and its tools.
#[utoipa::path(get, path = "/v1/mcp-servers", tag = "admin", security(("api_key" = [])), responses(
    (status = 200, description = "All items", body = Catalogued<McpServer>),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_mcp_servers(
    _caller: AdminCaller,
    State(state): State<ApiState>,
) -> ApiResult<Json<Catalogued<McpServer>>> {
    Ok(Json(Catalogued::new(state.tools.servers())))
}
