//! The bindings of A2A: JSON-RPC, and HTTP with JSON.

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use protocol::error::AgentApiError;
use serde_json::{Value, json};

use super::rpc::{PARAMS, data_of, reason_of, rpc_error, rpc_error_response};
use web::error::ApiError;
use web::error::face::in_face_form;

/// Binding of a call.
#[derive(Clone, Debug)]
pub(super) enum A2aBinding {
    /// JSON-RPC. The id of the request; null if it has none.
    JsonRpc(Value),
    /// HTTP with JSON.
    Http,
}

impl A2aBinding {
    /// The body of a response with a result.
    pub(super) fn result(&self, result: &Value) -> Value {
        match self {
            Self::JsonRpc(id) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Self::Http => result.clone(),
        }
    }

    /// The response with a result.
    pub(super) fn response(&self, result: &Value) -> Response {
        Json(self.result(result)).into_response()
    }

    /// Converts the error of a call.
    pub(super) fn error_response(&self, error: ApiError) -> Response {
        let response = error.into_response();
        match self {
            Self::JsonRpc(id) => rpc_error_response(response, id),
            Self::Http => in_face_form(response, http_error),
        }
    }

    /// The last frame of a stream that is cut.
    pub(super) fn error_frame(&self, error: ApiError) -> String {
        match self {
            Self::JsonRpc(id) => format!("data: {}\n\n", rpc_error(error, id)),
            Self::Http => {
                let (status, error) = error.into_parts();
                format!("event: error\ndata: {}\n\n", http_error(status, &error).1)
            }
        }
    }
}

/// Converts errors that occur before a call.
pub(super) async fn in_http_form(response: Response) -> Response {
    in_face_form(response, http_error)
}

/// A `google.rpc.Status`.
fn http_error(status: u16, error: &AgentApiError) -> (u16, Value) {
    let reason = reason_of(status, error);
    let name = match status {
        404 => "NOT_FOUND",
        400 if reason != "INVALID_PARAMS" && reason != "INVALID_REQUEST" => "FAILED_PRECONDITION",
        400 | 413 | 415 => "INVALID_ARGUMENT",
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        409 => "ABORTED",
        410 => "FAILED_PRECONDITION",
        429 => "RESOURCE_EXHAUSTED",
        408 | 504 => "DEADLINE_EXCEEDED",
        503 => "UNAVAILABLE",
        _ => "INTERNAL",
    };
    // The parameters are the body.
    let message = error.message.strip_prefix(PARAMS);
    let message = message.unwrap_or(&error.message);
    let details = data_of(reason, error, PARAMS);
    let body = json!({"code": status, "status": name, "message": message, "details": details});
    (status, json!({"error": body}))
}

#[cfg(test)]
mod tests {
    use super::super::rpc::{TASK_NOT_CANCELABLE, error_of, task_not_found};
    use super::*;

    #[test]
    fn http_errors_have_statuses_and_names() {
        for (error, status, name) in [
            (task_not_found("t"), 404, "NOT_FOUND"),
            (
                error_of(TASK_NOT_CANCELABLE, "m"),
                400,
                "FAILED_PRECONDITION",
            ),
            (
                ApiError::invalid("/params/message", "m"),
                400,
                "INVALID_ARGUMENT",
            ),
            (
                ApiError::conflict("idempotency_mismatch", "m"),
                409,
                "ABORTED",
            ),
            (ApiError::unavailable("m"), 503, "UNAVAILABLE"),
        ] {
            let (got, error) = error.into_parts();
            let (got, body) = http_error(got, &error);
            assert_eq!(
                (got, &body["error"]["status"]),
                (status, &json!(name)),
                "{body}"
            );
        }
    }

    #[test]
    fn http_faults_point_into_the_body() {
        let (status, error) = ApiError::invalid("/params/message/role", "is wrong").into_parts();
        let (_, body) = http_error(status, &error);
        assert_eq!(body["error"]["message"], "/message/role is wrong");
        let violation = &body["error"]["details"][1]["fieldViolations"][0];
        assert_eq!(violation["field"], "/message/role");
    }
}
