//! Errors of A2A, over JSON-RPC and over HTTP alike.

use serde_json::Value;

use crate::upstream::failure::{Failure, Refusal, message_of};

/// The errors that the machine handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    TaskUnknown,
    /// The operation, or the method.
    Unsupported,
    ContentType,
    Other,
}

/// The fault and the failure of a JSON-RPC error.
pub(super) fn of_rpc(error: &Value) -> (Fault, Failure) {
    let code = error["code"].as_i64().unwrap_or_default();
    let fault = match code {
        -32001 => Fault::TaskUnknown,
        -32004 | -32601 => Fault::Unsupported,
        -32005 => Fault::ContentType,
        _ => Fault::Other,
    };
    let message = message_of(error).unwrap_or_default();
    let failure = Failure::reported(None, Some(&code.to_string()), message);
    (fault, failure)
}

/// The fault and the failure of another status.
pub(super) fn of_refusal(refusal: Refusal) -> (Fault, Failure) {
    let told = refusal.json();
    let mut details = told["error"]["details"].as_array().into_iter().flatten();
    let reason = details.find_map(|detail| detail["reason"].as_str());
    let fault = match reason {
        Some("TASK_NOT_FOUND") => Fault::TaskUnknown,
        Some("UNSUPPORTED_OPERATION") => Fault::Unsupported,
        Some("CONTENT_TYPE_NOT_SUPPORTED") => Fault::ContentType,
        _ => Fault::Other,
    };
    let failure = match reason {
        Some(reason) => Failure::from(refusal).detail("code", reason),
        None => refusal.into(),
    };
    (fault, failure)
}
