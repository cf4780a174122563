//! Errors of the routes that speak an API of a model maker: statuses and retry hints that its clients act on.

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use protocol::error::AgentApiError;
use serde_json::Value;

use super::ErrorExtension;

/// Retry hint of the official clients. Without it they retry by status, also where no retry can help.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// Longest wait for a budget that is worth a retry, in seconds. The clients wait no longer.
const BUDGET_WAIT: u64 = 60;

/// Converts an error response to the form of a face. `render` gives status and body for the status of
/// [`face_status`]. Other responses stay unchanged.
pub fn in_face_form(
    response: Response,
    render: impl FnOnce(u16, &AgentApiError) -> (u16, Value),
) -> Response {
    let Some(ErrorExtension(error)) = response.extensions().get().cloned() else {
        return response;
    };
    let status = face_status(response.status().as_u16(), &error);
    let (status, body) = render(status, &error);
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut converted = (status, Json(body)).into_response();
    let headers = converted.headers_mut();
    for (name, value) in response.headers() {
        // These belong to the body that is replaced.
        if ![CONTENT_LENGTH, CONTENT_TYPE].contains(name) {
            headers.insert(name, value.clone());
        }
    }
    set_retry_hint(headers, &error);
    converted
}

/// Returns the status of an error. An overloaded provider is a 503, other failures of it are a 502.
pub fn face_status(status: u16, error: &AgentApiError) -> u16 {
    let upstream = error.details.get("upstream_status").and_then(Value::as_u64);
    let is_overloaded = matches!(upstream, Some(503 | 529));
    if status == 502 && is_overloaded {
        return 503;
    }
    status
}

/// Sets the retry hint. A spent budget is no reason to retry unless it resets soon.
fn set_retry_hint(headers: &mut HeaderMap, error: &AgentApiError) {
    let wait = headers.get(RETRY_AFTER);
    let wait = wait.and_then(|wait| wait.to_str().ok()?.parse::<u64>().ok());
    let is_budget = error.details.get("reason").and_then(Value::as_str) == Some("budget");
    // A window that resets later than this is for a later run, not for a retry of the client.
    let is_spent = is_budget && wait.is_none_or(|wait| wait > BUDGET_WAIT);
    let hint = if error.retryable && !is_spent {
        "true"
    } else {
        "false"
    };
    headers.insert(SHOULD_RETRY, HeaderValue::from_static(hint));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::error::ApiError;
    use crate::error::limits::over_budget;
    use egress::upstream::UpstreamError;

    fn failing(status: u16) -> ApiError {
        let message = "overloaded".to_owned();
        UpstreamError::Failing {
            status,
            message,
            retry_after: None,
        }
        .into()
    }

    #[test]
    fn hints_whether_a_retry_can_help() {
        for (error, status, hint) in [
            (over_budget("spent".to_owned(), None), 429, "false"),
            (over_budget("spent".to_owned(), Some(3600)), 429, "false"),
            (over_budget("spent".to_owned(), Some(5)), 429, "true"),
            (
                UpstreamError::Credential { status: 401 }.into(),
                502,
                "false",
            ),
            (
                UpstreamError::RateLimited { retry_after: None }.into(),
                429,
                "true",
            ),
            (failing(529), 503, "true"),
            (failing(503), 503, "true"),
            (failing(500), 502, "true"),
            (ApiError::cancelled(), 409, "false"),
        ] {
            let response = error.into_response();
            let ErrorExtension(error) = response.extensions().get().cloned().unwrap();
            let response = in_face_form(response, |status, _| (status, json!({})));
            assert_eq!(response.headers()[SHOULD_RETRY], hint, "{error:?}");
            assert_eq!(response.status().as_u16(), status, "{error:?}");
            let upstream = error.details.get("upstream_status");
            let waits = response.headers().contains_key(RETRY_AFTER);
            assert!(waits || ![Some(&json!(503)), Some(&json!(529))].contains(&upstream));
        }
    }
}
