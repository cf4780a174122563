//! Error responses of providers: with an error status, with status 200, and within a stream.

use domain::json_text::check_json_text;
use http::{HeaderMap, StatusCode};
use protocol::JsonObject;
use serde_json::Value;

use egress::redact::Redactor;
use egress::upstream::UpstreamError;

/// Members that mark a successful response.
const ANSWERS: [&str; 4] = ["choices", "data", "results", "content"];

/// The error in a document or event: `{"error": …}`, or an object that declares itself an error.
pub(crate) fn error_in(redactor: &Redactor, response: &JsonObject) -> Option<UpstreamError> {
    let error = response.get("error").filter(|error| says_something(error));
    let calls_itself_one = || {
        ["type", "object"]
            .iter()
            .any(|key| response.get(*key) == Some(&Value::from("error")))
    };
    let is_answer = || ANSWERS.iter().any(|key| response.contains_key(*key));
    let is_message = || {
        ["message", "detail"]
            .iter()
            .any(|key| response.get(*key).is_some_and(Value::is_string))
    };
    // Clone once: the members may hold the status next to the error.
    let document = Value::Object(response.clone());
    let error = match error {
        // An answer may have a member `message` as well, so require a status too.
        Some(error) => error,
        None if calls_itself_one()
            || (!is_answer() && is_message() && status_in(&document).is_some()) =>
        {
            &document
        }
        None => return None,
    };
    let message = message_in(error).unwrap_or_else(|| error.to_string());
    // Some servers put the status next to the error object.
    let status = status_in(error).or_else(|| status_in(&document));
    let status = status.unwrap_or_else(|| status_of_kind(error));
    Some(UpstreamError::of_status(
        status,
        &HeaderMap::new(),
        // The provider may echo a key of its request.
        &redactor.redact(&message),
    ))
}

fn says_something(error: &Value) -> bool {
    match error {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(members) => !members.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    }
}

/// HTTP status among the members of an error, as a number or text.
fn status_in(error: &Value) -> Option<StatusCode> {
    let status = |key: &&str| {
        let value = error.get(*key)?;
        let value = value
            .as_u64()
            .or_else(|| value.as_str()?.trim().parse().ok())?;
        let status = StatusCode::from_u16(u16::try_from(value).ok()?).ok()?;
        // Only error statuses count: some servers send `code: 200` or codes of their own.
        (status.is_client_error() || status.is_server_error()).then_some(status)
    };
    ["code", "status", "status_code", "http_status"]
        .iter()
        .find_map(status)
}

/// HTTP status for the type of an error.
fn status_of_kind(error: &Value) -> StatusCode {
    const KINDS: [(&str, StatusCode); 11] = [
        ("rate_limit", StatusCode::TOO_MANY_REQUESTS),
        ("too_many_requests", StatusCode::TOO_MANY_REQUESTS),
        ("quota", StatusCode::TOO_MANY_REQUESTS),
        ("resource_exhausted", StatusCode::TOO_MANY_REQUESTS),
        ("invalid_api_key", StatusCode::UNAUTHORIZED),
        ("authentication", StatusCode::UNAUTHORIZED),
        ("permission", StatusCode::UNAUTHORIZED),
        ("overloaded", StatusCode::SERVICE_UNAVAILABLE),
        ("invalid_request", StatusCode::BAD_REQUEST),
        ("invalid_argument", StatusCode::BAD_REQUEST),
        ("context_length_exceeded", StatusCode::BAD_REQUEST),
    ];
    let words = ["code", "type", "status"]
        .iter()
        .filter_map(|key| error.get(*key)?.as_str());
    let words: Vec<_> = words.map(str::to_ascii_lowercase).collect();
    let matched = KINDS
        .iter()
        .find(|(kind, _)| words.iter().any(|word| word.contains(kind)));
    matched.map_or(StatusCode::BAD_GATEWAY, |(_, status)| *status)
}

/// Message of an error body: `error.message`, else its beginning.
pub(super) fn error_message(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    // Check nesting and size before parsing, because the body is untrusted.
    let is_valid = check_json_text(body).is_ok();
    let parsed: Option<Value> = is_valid
        .then(|| serde_json::from_slice(body).ok())
        .flatten();
    let message = parsed.as_ref().and_then(message_in);
    message.unwrap_or_else(|| text.chars().take(500).collect())
}

fn message_in(body: &Value) -> Option<String> {
    let error = body.get("error").unwrap_or(body);
    let message = match error {
        Value::String(text) => text.clone(),
        error => {
            let message = ["message", "detail"]
                .iter()
                .find_map(|key| error.get(*key)?.as_str());
            let code = error
                .get("code")
                .and_then(Value::as_str)
                .map(|code| format!(" ({code})"));
            format!("{}{}", message?, code.unwrap_or_default())
        }
    };
    Some(message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_with_status_200_get_their_own_status() {
        let redactor = Redactor::new(["key-of-ours".into()]);
        for (response, reason) in [
            (
                json!({"error": {"message": "slow", "code": 429}}),
                "upstream_rate_limited",
            ),
            (
                json!({"error": {"message": "slow", "code": "429"}}),
                "upstream_rate_limited",
            ),
            (
                json!({"error": "slow", "status": 429}),
                "upstream_rate_limited",
            ),
            (
                json!({"error": {"message": "slow", "type": "rate_limit_error"}}),
                "upstream_rate_limited",
            ),
            (
                json!({"error": {"message": "none left", "code": "insufficient_quota"}}),
                "upstream_rate_limited",
            ),
            (
                json!({"error": {"message": "no", "code": 401}}),
                "upstream_credential",
            ),
            (
                json!({"error": {"message": "no", "code": 400}}),
                "upstream_refused",
            ),
            (
                json!({"error": {"message": "maximum context length is 9", "code": "context_length_exceeded"}}),
                "context_length_exceeded",
            ),
            (
                json!({"error": {"message": "oops", "code": 200}}),
                "upstream_failing",
            ),
            (
                json!({"error": "oops key-of-ours", "choices": []}),
                "upstream_failing",
            ),
            (
                json!({"object": "error", "message": "no", "code": 400}),
                "upstream_refused",
            ),
            (
                json!({"message": "slow", "code": 429}),
                "upstream_rate_limited",
            ),
        ] {
            let failed = error_in(&redactor, response.as_object().unwrap()).unwrap();
            assert_eq!(failed.reason(), reason, "{response}");
            assert!(!failed.to_string().contains("key-of-ours"));
        }
        for response in [
            json!({"error": null, "choices": []}),
            json!({"error": "", "choices": []}),
            json!({"error": {}, "data": []}),
            json!({"choices": [], "message": "hi", "code": 429}),
            json!({"message": "hi"}),
        ] {
            assert!(
                error_in(&redactor, response.as_object().unwrap()).is_none(),
                "{response}"
            );
        }
    }
}
