//! Errors of the Gemini API.

use axum::response::Response;
use http::header::RETRY_AFTER;
use llm_formats::gemini::status_name;
use protocol::error::AgentApiError;
use serde_json::{Map, Value, json};

use web::error::face::{face_status, in_face_form};

/// Domain of the gateway's reasons.
const DOMAIN: &str = "runnel";
const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// `{"error": {…}}`: the body of every 4xx and 5xx response of this API.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
pub(super) struct GeminiError {
    error: GeminiErrorDetail,
}

/// Google's error fields.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
struct GeminiErrorDetail {
    /// HTTP status.
    code: u16,
    /// Cause and remedy, with the JSON pointer of an invalid field.
    message: String,
    /// Such as `INVALID_ARGUMENT` or `RESOURCE_EXHAUSTED`.
    status: String,
    /// An `ErrorInfo`, whose `metadata` has the error's `code`, `retryable` and details as on other routes, and a
    /// `RetryInfo` if the response has `Retry-After`.
    #[schema(value_type = Vec<Object>)]
    details: Vec<Value>,
}

/// Converts errors to Google's form.
pub fn in_wire_format(response: Response) -> Response {
    let wait = response.headers().get(RETRY_AFTER);
    let wait = wait.and_then(|wait| wait.to_str().ok()?.parse().ok());
    in_face_form(response, |status, error| {
        (status, error_body(status, error, wait))
    })
}

/// Builds the body of an error. `status` is that of other routes, `wait` the seconds until a retry.
pub(super) fn error_body(status: u16, error: &AgentApiError, wait: Option<u64>) -> Value {
    let status = face_status(status, error);
    let text = |name: &str| error.details.get(name).and_then(Value::as_str);
    let message = match text("pointer") {
        Some(pointer) if !error.message.starts_with(pointer) => {
            format!("{pointer}: {}", error.message)
        }
        _ => error.message.clone(),
    };
    let reason = text("reason").unwrap_or(&error.code);
    // `ErrorInfo` demands capitals.
    let reason = reason.to_ascii_uppercase();
    let info = json!({"@type": ERROR_INFO, "reason": reason, "domain": DOMAIN, "metadata": metadata(error)});
    let mut details = vec![info];
    if let Some(seconds) = wait {
        details.push(json!({"@type": RETRY_INFO, "retryDelay": format!("{seconds}s")}));
    }
    json!({"error": {"code": status, "message": message, "status": status_name(status), "details": details}})
}

/// The error's own fields. Google's metadata are texts.
fn metadata(error: &AgentApiError) -> Map<String, Value> {
    let mut metadata = Map::new();
    for (name, value) in &error.details {
        let text = match value {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        metadata.insert(name.clone(), json!(text));
    }
    metadata.insert("code".to_owned(), json!(error.code));
    let retryable = error.retryable.to_string();
    metadata.insert("retryable".to_owned(), json!(retryable));
    metadata
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;

    use super::*;
    use web::error::ApiError;

    #[test]
    fn errors_have_google_format_and_pointer() {
        let (status, error) =
            ApiError::invalid("/contents/0/role", "must be user or model").into_parts();
        let body = error_body(status, &error, None);
        let error = &body["error"];
        assert_eq!(
            (&error["code"], &error["status"]),
            (&json!(400), &json!("INVALID_ARGUMENT"))
        );
        assert_eq!(error["message"], "/contents/0/role must be user or model");
        let info = &error["details"][0];
        assert_eq!(info["reason"], "INVALID_ARGUMENT");
        assert_eq!(info["metadata"]["pointer"], "/contents/0/role");
        assert_eq!(info["metadata"]["retryable"], "false");
        let (status, error) = ApiError::not_found("artifact", "a-1")
            .with("pointer", json!("/contents/0/parts/1"))
            .into_parts();
        let body = error_body(status, &error, Some(7));
        assert_eq!(
            body["error"]["message"],
            "/contents/0/parts/1: there is no artifact a-1"
        );
        assert_eq!(body["error"]["details"][1]["retryDelay"], "7s");
    }

    #[test]
    fn retry_delay_is_that_of_the_header() {
        let answer = in_wire_format(ApiError::unavailable("try again").into_response());
        assert_eq!(answer.status().as_u16(), 503);
        assert_eq!(answer.headers()["retry-after"], "1");
        assert_eq!(answer.headers()["x-should-retry"], "true");
    }
}
