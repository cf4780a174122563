//! Error responses of providers: with an error status, with status 200, and within a stream.

use domain::json_text::check_json_text;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, StatusCode};
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
    let (status, headers) = GoogleErrorDetails::of(error).refine(status, HeaderMap::new());
    Some(UpstreamError::of_status(
        status,
        &headers,
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

/// Facts in the `details` of Google's errors.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct GoogleErrorDetails {
    /// Google sends 400 for an invalid key.
    refuses_key: bool,
    /// Seconds until a retry; Google sends no header.
    retry_delay: Option<u32>,
}

impl GoogleErrorDetails {
    /// Reads an error body.
    pub(super) fn of_body(body: &[u8]) -> Self {
        // Check nesting and size before parsing, because the body is untrusted.
        let is_valid = check_json_text(body).is_ok();
        let parsed: Option<Value> = is_valid
            .then(|| serde_json::from_slice(body).ok())
            .flatten();
        // A stream that is one array has the error in it.
        let document = match &parsed {
            Some(Value::Array(items)) => items.first(),
            document => document.as_ref(),
        };
        let error = document.and_then(|document| document.get("error"));
        error.map(Self::of).unwrap_or_default()
    }

    fn of(error: &Value) -> Self {
        let details = error.get("details").and_then(Value::as_array);
        let details = || details.into_iter().flatten();
        // Such as `34.07s`. Rounded up: a retry before its time fails again.
        let retry_delay = details().find_map(|detail| {
            let delay = detail.get("retryDelay")?.as_str()?.strip_suffix('s')?;
            let (seconds, fraction) = delay.split_once('.').unwrap_or((delay, ""));
            let has_fraction = fraction.bytes().any(|digit| digit != b'0');
            let seconds: u32 = seconds.parse().ok()?;
            Some(seconds.saturating_add(u32::from(has_fraction)))
        });
        Self {
            refuses_key: details().any(|detail| detail["reason"] == "API_KEY_INVALID"),
            retry_delay,
        }
    }

    /// Corrects the status, and adds the wait that only the body has.
    pub(super) fn refine(
        self,
        status: StatusCode,
        mut headers: HeaderMap,
    ) -> (StatusCode, HeaderMap) {
        if let Some(seconds) = self.retry_delay {
            headers
                .entry(RETRY_AFTER)
                .or_insert(HeaderValue::from(seconds));
        }
        let status = if self.refuses_key {
            StatusCode::UNAUTHORIZED
        } else {
            status
        };
        (status, headers)
    }
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
    fn google_details_correct_status_and_wait() {
        let body = |details: &Value| {
            json!({"error": {"code": 400, "message": "m", "status": "S", "details": details}})
                .to_string()
        };
        let key = body(&json!([{"@type": "i", "reason": "API_KEY_INVALID"}]));
        let (status, _) = GoogleErrorDetails::of_body(key.as_bytes())
            .refine(StatusCode::BAD_REQUEST, HeaderMap::new());
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        for (delay, seconds) in [("34.07s", Some("35")), ("2s", Some("2")), ("soon", None)] {
            let array = format!("[{}]", body(&json!([{"retryDelay": delay}])));
            let (_, headers) = GoogleErrorDetails::of_body(array.as_bytes())
                .refine(StatusCode::TOO_MANY_REQUESTS, HeaderMap::new());
            let wait = headers.get(RETRY_AFTER).map(|wait| wait.to_str().unwrap());
            assert_eq!(wait, seconds, "{delay}");
        }
        for other in ["", "[", "{}", "{\"error\":1}", "[[]]"] {
            assert_eq!(
                GoogleErrorDetails::of_body(other.as_bytes()),
                GoogleErrorDetails::default()
            );
        }
    }

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
