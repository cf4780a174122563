//! Errors of the Messages API.

use axum::response::Response;
use http::header::{HeaderName, HeaderValue};
use llm_formats::messages::error_kind;
use protocol::JsonObject;
use protocol::error::AgentApiError;
use serde_json::{Value, json};
use uuid::Uuid;

use web::error::face::{face_status, in_face_form};

/// Request id header of Anthropic's clients.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// Text by which clients recognize an exceeded context window.
const TOO_LONG: &str = "prompt is too long";

/// `{"type": "error", "error": {…}}`: the body of every 4xx and 5xx response of this API.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
pub(super) struct MessagesError {
    /// `error`.
    #[schema(rename = "type")]
    kind: String,
    error: MessagesErrorDetail,
    /// Same as the header `request-id`.
    request_id: String,
}

/// Anthropic's error fields together with the gateway's.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
struct MessagesErrorDetail {
    /// Such as `invalid_request_error` or `rate_limit_error`.
    #[schema(rename = "type")]
    kind: String,
    /// Cause and remedy, with the JSON pointer of an invalid field.
    message: String,
    /// Error code, as on other routes.
    code: String,
    retryable: bool,
    #[schema(value_type = Object)]
    details: JsonObject,
}

/// Adds a request id to a response and converts errors to Anthropic's form.
pub fn in_wire_format(response: Response) -> Response {
    let id = format!("req_{}", Uuid::now_v7().simple());
    let mut response = in_face_form(response, |status, error| {
        let mut body = error_body(status, error);
        body["request_id"] = json!(id);
        (error_kind(status).status, body)
    });
    if let Ok(id) = HeaderValue::try_from(id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// Builds the body of an error, or the data of an `error` event. `status` is that of other routes.
pub(super) fn error_body(status: u16, error: &AgentApiError) -> Value {
    let kind = error_kind(face_status(status, error)).name;
    let message = message_of(error);
    json!({"type": "error", "error": {"type": kind, "message": message, "code": error.code,
        "retryable": error.retryable, "details": error.details}})
}

/// The message with its pointer, in wording that clients recognize.
fn message_of(error: &AgentApiError) -> String {
    let text = |name: &str| error.details.get(name).and_then(Value::as_str);
    if text("reason") == Some("context_length_exceeded") {
        return format!("{TOO_LONG}: {}", error.message);
    }
    match text("pointer") {
        Some(pointer) if !error.message.starts_with(pointer) => {
            format!("{pointer}: {}", error.message)
        }
        _ => error.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;

    use super::*;
    use web::error::ApiError;

    #[test]
    fn errors_have_anthropic_format_and_pointer() {
        let body_of = |error: ApiError| {
            let (status, error) = error.into_parts();
            error_body(status, &error)
        };
        let invalid = body_of(ApiError::invalid(
            "/messages/0/role",
            "must be user or assistant",
        ));
        assert_eq!(invalid["type"], "error");
        assert_eq!(invalid["error"]["type"], "invalid_request_error");
        assert_eq!(
            invalid["error"]["message"],
            "/messages/0/role must be user or assistant"
        );
        let image =
            ApiError::not_found("artifact", "a-1").with("pointer", json!("/messages/0/content/1"));
        let image = body_of(image);
        assert_eq!(image["error"]["type"], "not_found_error");
        assert_eq!(
            image["error"]["message"],
            "/messages/0/content/1: there is no artifact a-1"
        );
        let long = ApiError::invalid_argument("x").with("reason", json!("context_length_exceeded"));
        assert_eq!(body_of(long)["error"]["message"], "prompt is too long: x");
    }

    #[test]
    fn maps_503_to_overloaded_error() {
        let answer = in_wire_format(ApiError::unavailable("try again").into_response());
        assert_eq!(answer.status().as_u16(), 529);
        assert_eq!(answer.headers()["x-should-retry"], "true");
        assert_eq!(answer.headers()["retry-after"], "1");
        let id = answer.headers()["request-id"].to_str().unwrap();
        assert!(id.starts_with("req_"), "{id}");
        let cancelled = in_wire_format(ApiError::cancelled().into_response());
        assert_eq!(cancelled.headers()["x-should-retry"], "false");
    }
}
