//! Errors of A2A, over JSON-RPC and HTTP.

use serde_json::Value;

use crate::upstream::failure::{ConnectorFailure, ErrorStatus, message_of};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum A2aFault {
    TaskUnknown,
    /// The operation or the method is unsupported.
    Unsupported,
    ContentType,
    Other,
}

/// The fault and the failure of a JSON-RPC error.
pub(super) fn of_rpc(error: &Value) -> (A2aFault, ConnectorFailure) {
    let code = error["code"].as_i64().unwrap_or_default();
    let fault = match code {
        -32001 => A2aFault::TaskUnknown,
        -32004 | -32601 => A2aFault::Unsupported,
        -32005 => A2aFault::ContentType,
        _ => A2aFault::Other,
    };
    let message = message_of(error).unwrap_or_default();
    let failure = ConnectorFailure::reported(None, Some(&code.to_string()), message);
    (fault, failure)
}

/// The fault and the failure of an HTTP error response.
pub(super) fn of_refusal(refusal: ErrorStatus) -> (A2aFault, ConnectorFailure) {
    let body = refusal.json();
    let mut details = body["error"]["details"].as_array().into_iter().flatten();
    let reason = details.find_map(|detail| detail["reason"].as_str());
    let fault = match reason {
        Some("TASK_NOT_FOUND") => A2aFault::TaskUnknown,
        Some("UNSUPPORTED_OPERATION") => A2aFault::Unsupported,
        Some("CONTENT_TYPE_NOT_SUPPORTED") => A2aFault::ContentType,
        _ => A2aFault::Other,
    };
    let failure = match reason {
        Some(reason) => ConnectorFailure::from(refusal).detail("code", reason),
        None => refusal.into(),
    };
    (fault, failure)
}
