//! Errors of A2A, over JSON-RPC and HTTP.

use serde_json::Value;

use crate::upstream::failure::{ConnectorFailure, message_of};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum A2aFault {
    TaskUnknown,
    /// The operation or the method is unsupported.
    Unsupported,
    ContentType,
    Other,
}

impl A2aFault {
    /// The meaning of a failure's code: that of JSON-RPC, or the reason of an HTTP error response.
    pub(super) fn of(failure: &ConnectorFailure) -> Self {
        match failure.code() {
            "-32001" | "TASK_NOT_FOUND" => Self::TaskUnknown,
            "-32004" | "-32601" | "UNSUPPORTED_OPERATION" => Self::Unsupported,
            "-32005" | "CONTENT_TYPE_NOT_SUPPORTED" => Self::ContentType,
            _ => Self::Other,
        }
    }
}

/// The failure of a JSON-RPC error.
pub(super) fn of_rpc(error: &Value) -> ConnectorFailure {
    let code = error["code"].as_i64().unwrap_or_default();
    let message = message_of(error).unwrap_or_default();
    ConnectorFailure::reported(None, Some(&code.to_string()), message)
}
