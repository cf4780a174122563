//! JSON-RPC requests, responses and errors with A2A's codes.

use axum::response::Response;
use http::HeaderMap;
use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::error::AgentApiError;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::binding::A2aBinding;
use crate::agents::AGENT_NOT_FOUND;
use crate::body::RequestMembers;
use web::error::face::in_face_form;
use web::error::{ApiError, ApiResult};
use web::json::parse_part;
use web::query::single_header;

/// The version of A2A that this face serves.
pub(super) const PROTOCOL_VERSION: &str = "1.0";
const VERSION_HEADER: &str = "a2a-version";
/// The parameters of a request.
pub(super) const PARAMS: &str = "/params";

/// Reason of errors of this face, in `details.reason`.
pub(super) const TASK_NOT_FOUND: &str = "TASK_NOT_FOUND";
pub(super) const TASK_NOT_CANCELABLE: &str = "TASK_NOT_CANCELABLE";
pub(super) const PUSH_NOTIFICATION_NOT_SUPPORTED: &str = "PUSH_NOTIFICATION_NOT_SUPPORTED";
pub(super) const UNSUPPORTED_OPERATION: &str = "UNSUPPORTED_OPERATION";
const VERSION_NOT_SUPPORTED: &str = "VERSION_NOT_SUPPORTED";
const METHOD_NOT_FOUND: &str = "METHOD_NOT_FOUND";
const INVALID_REQUEST: &str = "INVALID_REQUEST";
const INVALID_PARAMS: &str = "INVALID_PARAMS";
const PARSE_ERROR: &str = "PARSE_ERROR";
const INTERNAL_ERROR: &str = "INTERNAL_ERROR";

/// Reasons with their codes of JSON-RPC.
const CODES: [(&str, i32); 11] = [
    (TASK_NOT_FOUND, -32001),
    (TASK_NOT_CANCELABLE, -32002),
    (PUSH_NOTIFICATION_NOT_SUPPORTED, -32003),
    (UNSUPPORTED_OPERATION, -32004),
    (VERSION_NOT_SUPPORTED, -32009),
    (PARSE_ERROR, -32700),
    (INVALID_REQUEST, -32600),
    // JSON-RPC has no code for an endpoint that does not exist.
    (AGENT_NOT_FOUND, -32600),
    (METHOD_NOT_FOUND, -32601),
    (INVALID_PARAMS, -32602),
    (INTERNAL_ERROR, -32603),
];

/// Methods of A2A 1.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RpcMethod {
    SendMessage,
    SendStreamingMessage,
    GetTask,
    CancelTask,
    SubscribeToTask,
    /// Methods on the configuration of push notifications.
    PushConfig,
    /// Methods of A2A that this face does not serve.
    Unserved,
}

impl RpcMethod {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "SendMessage" => Self::SendMessage,
            "SendStreamingMessage" => Self::SendStreamingMessage,
            "GetTask" => Self::GetTask,
            "CancelTask" => Self::CancelTask,
            "SubscribeToTask" => Self::SubscribeToTask,
            "CreateTaskPushNotificationConfig"
            | "GetTaskPushNotificationConfig"
            | "ListTaskPushNotificationConfigs"
            | "DeleteTaskPushNotificationConfig" => Self::PushConfig,
            "ListTasks" | "GetExtendedAgentCard" => Self::Unserved,
            _ => return None,
        })
    }
}

/// A valid request. Its parameters are checked by [`params`](Self::params).
pub(super) struct RpcRequest<'a> {
    pub(super) binding: A2aBinding,
    pub(super) method: RpcMethod,
    pub(super) params: Option<&'a JsonObject>,
}

impl<'a> RpcRequest<'a> {
    /// The id of a request; null if it has none.
    pub(super) fn id_of(request: &RequestMembers) -> Value {
        let id = request
            .get("id")
            .filter(|id| id.is_string() || id.is_number());
        id.cloned().unwrap_or_default()
    }

    pub(super) fn read(request: &'a RequestMembers, headers: &HeaderMap) -> ApiResult<Self> {
        check_version(headers)?;
        let invalid = |fault: Fault| refused_as(INVALID_REQUEST, &fault);
        if request.required_text("jsonrpc").map_err(invalid)? != "2.0" {
            return Err(invalid(Fault::new("/jsonrpc", "must be 2.0")));
        }
        let id = Self::id_of(request);
        if id.is_null() {
            return Err(invalid(Fault::new("/id", "must be a text or a number")));
        }
        let name = request.required_text("method").map_err(invalid)?;
        let method = RpcMethod::parse(name);
        Ok(Self {
            binding: A2aBinding::JsonRpc(id),
            method: method
                .ok_or_else(|| error_of(METHOD_NOT_FOUND, "A2A 1.0 has no such method"))?,
            params: request
                .object("params")
                .map_err(|fault| refused_as(INVALID_PARAMS, &fault))?,
        })
    }

    /// The parameters of the method.
    pub(super) fn params<T: DeserializeOwned>(&self) -> ApiResult<T> {
        let params = self
            .params
            .ok_or_else(|| ApiError::invalid(PARAMS, "is required"))?;
        let text = Value::Object(params.clone()).to_string();
        parse_part(text.as_bytes()).map_err(|fault| refused_at(PARAMS, fault))
    }
}

/// Fails without the header of a served version.
pub(super) fn check_version(headers: &HeaderMap) -> ApiResult<()> {
    let version = single_header(headers, VERSION_HEADER)?;
    if version.and_then(|version| version.split('.').next()) == Some("1") {
        return Ok(());
    }
    let message = "send the header `A2A-Version: 1.0`; no other version is served";
    Err(error_of(VERSION_NOT_SUPPORTED, message))
}

/// A fault below the member at `pointer`.
pub(super) fn refused_at(pointer: &str, mut fault: Fault) -> ApiError {
    fault.pointer.insert_str(0, pointer);
    ApiError::faults(&[fault])
}

/// An error with one of the reasons above.
pub(super) fn error_of(reason: &str, message: &str) -> ApiError {
    ApiError::invalid_argument(message).with("reason", json!(reason))
}

fn refused_as(reason: &str, fault: &Fault) -> ApiError {
    ApiError::faults(std::slice::from_ref(fault)).with("reason", json!(reason))
}

/// Converts errors that occur before the request is read.
pub(super) async fn in_rpc_form(response: Response) -> Response {
    in_face_form(response, |status, error| {
        // Faults of headers have no pointer.
        let is_body = error.details.contains_key("pointer");
        let own = if is_body {
            PARSE_ERROR
        } else {
            INVALID_REQUEST
        };
        let reason = (status == 400).then_some(own);
        render(status, error, reason, &Value::Null)
    })
}

/// Converts the error of a request.
pub(super) fn rpc_error_response(response: Response, id: &Value) -> Response {
    in_face_form(response, |status, error| render(status, error, None, id))
}

/// The body of an error in a stream.
pub(super) fn rpc_error(error: ApiError, id: &Value) -> Value {
    let (status, error) = error.into_parts();
    render(status, &error, None, id).1
}

fn render(
    status: u16,
    error: &AgentApiError,
    reason: Option<&'static str>,
    id: &Value,
) -> (u16, Value) {
    let reason = reason.unwrap_or_else(|| reason_of(status, error));
    let code = CODES.iter().find(|(name, _)| *name == reason);
    let code = code.map_or(-32603, |(_, code)| *code);
    let body = json!({"code": code, "message": error.message, "data": data_of(reason, error, "")});
    let is_protocol_error = matches!(status, 400 | 404 | 409 | 410) && reason != AGENT_NOT_FOUND;
    // Clients read the codes of A2A from successful responses only.
    let status = if is_protocol_error { 200 } else { status };
    (status, json!({"jsonrpc": "2.0", "id": id, "error": body}))
}

/// The reason of an error in the words of A2A.
pub(super) fn reason_of(status: u16, error: &AgentApiError) -> &'static str {
    let named = error.details.get("reason").and_then(Value::as_str);
    let own = CODES.iter().find(|(name, _)| Some(*name) == named);
    if let Some((name, _)) = own {
        return name;
    }
    match status {
        409 if named == Some("idempotency_mismatch") => INVALID_PARAMS,
        409 | 410 => UNSUPPORTED_OPERATION,
        400 | 404 => INVALID_PARAMS,
        401..=499 => INVALID_REQUEST,
        _ => INTERNAL_ERROR,
    }
}

/// The details of an error as `google.rpc` types. `root`: the part of pointers that the client does not send.
pub(super) fn data_of(reason: &str, error: &AgentApiError, root: &str) -> Value {
    // Its values are texts.
    let mut metadata = json!({"retryable": error.retryable.to_string()});
    let named = error.details.get("reason").and_then(Value::as_str);
    if let Some(named) = named.filter(|named| *named != reason) {
        metadata["reason"] = json!(named);
    }
    let info = json!({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason,
        "domain": "a2a-protocol.org", "metadata": metadata});
    let faults = error.details.get("faults").and_then(Value::as_array);
    let violations: Vec<_> = faults
        .into_iter()
        .flatten()
        .map(|fault| {
            let field = fault["pointer"].as_str().unwrap_or_default();
            let field = field.strip_prefix(root).unwrap_or(field);
            json!({"field": field, "description": fault["message"]})
        })
        .collect();
    if violations.is_empty() {
        return json!([info]);
    }
    let request = json!({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations});
    json!([info, request])
}

/// A missing task, or one of another agent.
pub(super) fn task_not_found(id: &str) -> ApiError {
    ApiError::not_found("task", id).with("reason", json!(TASK_NOT_FOUND))
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;

    use super::*;

    fn rendered(error: ApiError) -> (u16, Value) {
        let response = error.into_response();
        let status = response.status().as_u16();
        let error = response.extensions().get::<web::error::ErrorExtension>();
        render(status, &error.unwrap().0, None, &json!(7))
    }

    #[test]
    fn protocol_errors_have_status_200() {
        for (error, status, code) in [
            (task_not_found("t"), 200, -32001),
            (error_of(TASK_NOT_CANCELABLE, "m"), 200, -32002),
            (ApiError::invalid("/params", "m"), 200, -32602),
            (ApiError::conflict("idempotency_mismatch", "m"), 200, -32602),
            (ApiError::conflict("already_submitted", "m"), 200, -32004),
            (ApiError::unauthenticated(), 401, -32600),
            (ApiError::too_large("m"), 413, -32600),
            (ApiError::unavailable("m"), 503, -32603),
            (
                ApiError::not_found("agent", "a").with("reason", json!(AGENT_NOT_FOUND)),
                404,
                -32600,
            ),
        ] {
            let (got, body) = rendered(error);
            assert_eq!(
                (got, &body["error"]["code"]),
                (status, &json!(code)),
                "{body}"
            );
            assert_eq!(body["id"], 7);
        }
    }

    #[test]
    fn faults_become_field_violations() {
        let (_, body) = rendered(ApiError::invalid("/params/id", "is required"));
        let data = &body["error"]["data"];
        assert_eq!(data[0]["reason"], INVALID_PARAMS);
        assert_eq!(
            data[1]["fieldViolations"],
            json!([{"field": "/params/id", "description": "is required"}])
        );
    }
}
