//! Errors in OpenAI's format.

use axum::response::Response;
use protocol::error::AgentApiError;
use serde_json::{Value, json};

use super::face::in_face_form;

/// Adds `type` and `param` to an error, and a retry hint. Uses OpenAI's code where clients act on it.
pub async fn in_openai_form(response: Response) -> Response {
    in_face_form(response, |status, error| {
        (status, openai_error(status, error.clone()))
    })
}

/// Builds the body of an error.
pub fn openai_error(status: u16, error: AgentApiError) -> Value {
    let kind = match status {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        504 => "timeout_error",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    };
    let code = client_code(&error).unwrap_or(&error.code).to_owned();
    let param = error.details.get("pointer").cloned().unwrap_or_default();
    let AgentApiError {
        message,
        retryable,
        details,
        ..
    } = error;
    json!({"error": {"type": kind, "code": code, "message": message, "param": param,
        "retryable": retryable, "details": details}})
}

/// Codes that clients act on.
fn client_code(error: &AgentApiError) -> Option<&'static str> {
    match error.details.get("reason").and_then(Value::as_str)? {
        "context_length_exceeded" => Some("context_length_exceeded"),
        "budget" | "budget_exceeded" => Some("insufficient_quota"),
        "model_not_found" => Some("model_not_found"),
        "previous_response_not_found" => Some("previous_response_not_found"),
        "run_failed" => Some("run_failed"),
        _ => None,
    }
}

/// The code of an error in a stream. OpenAI's documented codes let clients retry where that helps.
pub fn code_of(error: &AgentApiError) -> &str {
    client_code(error).unwrap_or(match error.code.as_str() {
        "rate_limited" => "rate_limit_exceeded",
        "invalid_argument" => "invalid_prompt",
        "runtime_error" => "server_error",
        code => code,
    })
}

#[cfg(test)]
mod tests {
    use protocol::JsonObject;

    use super::*;

    fn error(code: &str, reason: &str) -> AgentApiError {
        let details = json!({"reason": reason, "pointer": "/input/0"});
        AgentApiError {
            code: code.to_owned(),
            message: "m".to_owned(),
            retryable: false,
            details: serde_json::from_value::<JsonObject>(details).unwrap(),
        }
    }

    #[test]
    fn errors_have_openai_type_code_and_param() {
        for (status, code, reason, expected) in [
            (
                400,
                "invalid_argument",
                "",
                ("invalid_request_error", "invalid_argument"),
            ),
            (
                400,
                "invalid_argument",
                "context_length_exceeded",
                ("invalid_request_error", "context_length_exceeded"),
            ),
            (
                401,
                "unauthenticated",
                "",
                ("authentication_error", "unauthenticated"),
            ),
            (
                429,
                "rate_limited",
                "budget",
                ("rate_limit_error", "insufficient_quota"),
            ),
            (502, "runtime_error", "", ("server_error", "runtime_error")),
        ] {
            let body = openai_error(status, error(code, reason));
            let body = &body["error"];
            assert_eq!(
                (&body["type"], &body["code"]),
                (&json!(expected.0), &json!(expected.1))
            );
            assert_eq!(
                (&body["param"], &body["message"]),
                (&json!("/input/0"), &json!("m"))
            );
        }
    }

    #[test]
    fn errors_in_streams_have_documented_codes() {
        for (code, reason, expected) in [
            ("rate_limited", "budget", "insufficient_quota"),
            ("rate_limited", "budget_exceeded", "insufficient_quota"),
            (
                "rate_limited",
                "upstream_rate_limited",
                "rate_limit_exceeded",
            ),
            (
                "invalid_argument",
                "context_length_exceeded",
                "context_length_exceeded",
            ),
            ("invalid_argument", "", "invalid_prompt"),
            ("runtime_error", "", "server_error"),
            ("cancelled", "", "cancelled"),
        ] {
            assert_eq!(code_of(&error(code, reason)), expected);
        }
    }
}
