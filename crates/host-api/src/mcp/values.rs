//! Limits and results of MCP tools.

use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;
use serde_json::Value;

use web::error::{ApiError, ApiResult};

/// Maximum bytes of an id of a conversation, tool or knowledge base.
pub(super) const MAX_ID_BYTES: usize = 512;

pub(super) fn to_json<T: Serialize>(value: &T) -> ApiResult<Value> {
    serde_json::to_value(value).map_err(|_| ApiError::panicked())
}

/// Builds a result from a value: text, and structured content for an object.
pub(super) fn structured(value: Value) -> CallToolResult {
    let text = match &value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    // MCP allows only objects as structured content.
    result.structured_content = value.is_object().then_some(value);
    result
}
