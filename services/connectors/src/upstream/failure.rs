//! Failures of a run: codes, retryability, and details for operators.

use protocol::JsonObject;
use protocol::result::{AgentRunResult, ResultType};
use serde_json::{Value, json};

use crate::request::PlatformResponseHead;
use crate::upstream::json::{self, filled};
use crate::upstream::redact::SecretRedactor;
use crate::upstream::results::{self, cut};

/// Maximum characters of a response in the details.
const EXCERPT_CHARS: usize = 200;
/// Maximum bytes of a response that are stored before redaction.
const EXCERPT_BYTES: usize = 8 * 1024;
/// Maximum bytes of a message.
const MESSAGE_BYTES: usize = 2_000;

/// The suffix of an error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The agent's configuration cannot be run.
    ConfigInvalid,
    /// The platform cannot be reached, or answers with an error status.
    HttpError,
    /// The platform refuses the credentials.
    AuthError,
    /// No response in time.
    Timeout,
    /// The platform's rate limit is reached.
    RateLimited,
    /// The response breaks the platform's protocol, or ends too early.
    ResponseInvalid,
    /// The answer has neither text nor files.
    EmptyResponse,
    /// The platform reports an error.
    ApiError,
    /// A file cannot be uploaded.
    UploadError,
    /// The run was cancelled.
    Cancelled,
}

/// True for statuses that promise a later success: a repeated 400 or 500 would fail again.
fn is_retryable(status: u16) -> bool {
    matches!(status, 408 | 429 | 503 | 504)
}

impl FailureKind {
    /// The kind of statuses with a meaning of their own.
    fn of_status(status: u16) -> Option<Self> {
        match status {
            401 | 403 => Some(Self::AuthError),
            429 => Some(Self::RateLimited),
            408 | 504 => Some(Self::Timeout),
            _ => None,
        }
    }

    /// The code for runners whose codes begin with `prefix`.
    pub fn code(self, prefix: &str) -> String {
        // This code has no prefix, so that a client handles it equally for all runners.
        let suffix = match self {
            Self::Cancelled => return "cancelled".to_owned(),
            Self::ConfigInvalid => "config_invalid",
            Self::HttpError => "http_error",
            Self::AuthError => "auth_error",
            Self::Timeout => "timeout",
            Self::RateLimited => "rate_limited",
            Self::ResponseInvalid => "response_invalid",
            Self::EmptyResponse => "empty_response",
            Self::ApiError => "api_error",
            Self::UploadError => "upload_error",
        };
        format!("{prefix}.{suffix}")
    }
}

/// Failure of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectorFailure {
    pub kind: FailureKind,
    /// For the user: the fault, and what to do next.
    pub message: String,
    /// True where the same event may succeed a second time.
    pub retryable: bool,
    /// `status`, `code`, `excerpt`, `retry_after_seconds`, as far as the response has them.
    pub details: JsonObject,
}

/// The result of a step that can fail the run.
pub type Mapped<T = ()> = Result<T, ConnectorFailure>;

/// A response with a status outside 200 to 299.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorStatus {
    pub head: PlatformResponseHead,
    /// The body, cut to 64 KiB.
    pub text: String,
}

/// Failure of a call before a status, or while its body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportError {
    /// The address is not allowed.
    NotAllowed,
    /// No connection could be opened.
    Connect,
    /// Timeout of the connection or of the response.
    Timeout,
    /// The connection broke during the response.
    Broken,
    /// No content within the idle timeout.
    Idle,
    /// An event or the response exceeds its size limit.
    TooLarge,
}

impl ConnectorFailure {
    /// A failure that is not retryable.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            retryable: false,
            details: JsonObject::new(),
        }
    }

    /// Marks the failure as retryable.
    #[must_use]
    pub fn retryable(self) -> Self {
        Self {
            retryable: true,
            ..self
        }
    }

    /// Adds one detail.
    #[must_use]
    pub fn detail(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }

    /// A value of the configuration that cannot be used.
    pub fn config(key: &str, fault: &str) -> Self {
        // RFC 6901: escape `~` first, else the `~1` of a slash would be escaped again.
        let pointer = format!("/{}", key.replace('~', "~0").replace('/', "~1"));
        Self::new(FailureKind::ConfigInvalid, format!("{pointer} {fault}"))
            .detail("pointer", pointer)
    }

    /// A platform text that does not match its protocol.
    pub fn unreadable(text: &str) -> Self {
        // The message stays fixed and the platform's text goes into `excerpt`, which is redacted and cut.
        let message = "the platform sent a response that cannot be read";
        Self::new(FailureKind::ResponseInvalid, message).excerpt(text)
    }

    /// A response that ends before its end mark.
    pub fn ended_early() -> Self {
        let message = "the platform's response ended before the answer was complete";
        Self::new(FailureKind::ResponseInvalid, message)
    }

    /// A complete answer without content.
    pub fn empty() -> Self {
        let message = "the platform's answer is empty: check the application on the platform";
        Self::new(FailureKind::EmptyResponse, message)
    }

    /// A file that the platform cannot accept.
    pub fn upload(name: &str, fault: &str) -> Self {
        Self::new(FailureKind::UploadError, format!("the file {name} {fault}"))
    }

    /// The answer to a question that is not stored.
    pub fn question_unknown() -> Self {
        let message =
            "the question that was answered is not known any more: send the message again";
        Self::new(FailureKind::ApiError, message)
    }

    /// True if the failure has this status.
    pub fn has_status(&self, status: u16) -> bool {
        self.details.get("status") == Some(&json!(status))
    }

    /// The platform's code of the failure; empty if it has none.
    pub fn code(&self) -> &str {
        let code = self.details.get("code").and_then(Value::as_str);
        code.unwrap_or_default()
    }

    /// True if the message contains this text in lower case.
    pub fn names(&self, text: &str) -> bool {
        self.message.to_ascii_lowercase().contains(text)
    }

    /// The failure of a call that uploads a file.
    #[must_use]
    pub fn of_upload(self, name: &str) -> Self {
        match self.kind {
            // Credentials, rate limits and timeouts keep their kind: they do not depend on the file.
            FailureKind::HttpError | FailureKind::ApiError | FailureKind::ResponseInvalid => Self {
                kind: FailureKind::UploadError,
                message: format!("the file {name} was not taken: {}", self.message),
                ..self
            },
            _ => self,
        }
    }

    /// An error that the platform reports within a response.
    pub fn reported(status: Option<u16>, code: Option<&str>, message: &str) -> Self {
        let kind = status.and_then(FailureKind::of_status);
        let kind = kind.unwrap_or(FailureKind::ApiError);
        let message = if message.trim().is_empty() {
            "the platform reported an error without a message"
        } else {
            message
        };
        let mut failure = Self::new(kind, format!("the platform reported an error: {message}"));
        failure.retryable = status.is_some_and(is_retryable);
        if let Some(status) = status {
            failure = failure.detail("status", status);
        }
        if let Some(code) = code {
            failure = failure.detail("code", code);
        }
        failure
    }

    fn excerpt(self, text: &str) -> Self {
        self.detail("excerpt", cut(text, EXCERPT_BYTES))
    }

    /// Without secrets, and with texts cut to their bounds.
    #[must_use]
    pub(crate) fn redacted(mut self, redactor: &SecretRedactor) -> Self {
        // Redact before the cut: a secret that is cut in two no longer matches.
        self.message = cut(&redactor.redact(&self.message), MESSAGE_BYTES);
        for value in self.details.values_mut() {
            if let Value::String(text) = value {
                *text = redactor.redact(text).chars().take(EXCERPT_CHARS).collect();
            }
        }
        self
    }

    /// `run.failed`, with the details next to its payload.
    pub fn into_result(self, prefix: &str) -> AgentRunResult {
        let mut data = json::object(json!({
            // As in the gateway's own failures, both members hold the same text.
            "code": self.kind.code(prefix),
            "message": self.message,
            "error": self.message,
            "retryable": self.retryable,
        }));
        if !self.details.is_empty() {
            data.insert("details".to_owned(), Value::Object(self.details));
        }
        results::custom(ResultType::RunFailed.as_str(), data)
    }
}

impl From<TransportError> for ConnectorFailure {
    fn from(error: TransportError) -> Self {
        use FailureKind::{HttpError, ResponseInvalid, Timeout};
        let of = Self::new;
        match error {
            TransportError::NotAllowed => of(HttpError, "the connectors' operator does not allow this address: use public HTTPS or `--allow HOST:PORT`"),
            TransportError::Connect => of(HttpError, "the platform cannot be reached: check its address").retryable(),
            TransportError::Timeout => of(Timeout, "the platform did not answer in time").retryable(),
            TransportError::Idle => of(Timeout, "the platform sent nothing for the idle timeout: raise `idle-timeout` if its answers take longer").retryable(),
            TransportError::Broken => of(ResponseInvalid, "the connection broke before the answer was complete"),
            TransportError::TooLarge => of(ResponseInvalid, "the platform's response is larger than the connector takes"),
        }
    }
}

impl ErrorStatus {
    /// The body as JSON, `null` where it is none.
    pub fn json(&self) -> Value {
        json::parse(&self.text).unwrap_or_default()
    }

    /// The message in the body: `message`, `error`, `detail` or `msg`, as a text or within an object.
    pub fn message(&self) -> Option<String> {
        message_of(&self.json()).map(str::to_owned)
    }
}

/// The message of an error object.
pub fn message_of(error: &Value) -> Option<&str> {
    let names = ["message", "error", "detail", "msg"];
    names.iter().find_map(|name| {
        let value = &error[*name];
        filled(value).or_else(|| filled(&value["message"]))
    })
}

impl From<&ErrorStatus> for ConnectorFailure {
    fn from(refusal: &ErrorStatus) -> Self {
        let status = refusal.head.status;
        let reason = refusal.message();
        let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
        let message = match status {
            401 | 403 => format!(
                "the platform refused the credentials ({status}), check the agent's key{reason}"
            ),
            429 => format!("the platform limits requests (429), try later{reason}"),
            408 | 504 => format!("the platform timed out ({status}){reason}"),
            // Redirects are not followed: the credential would go to an address that was not configured.
            300..=399 => {
                format!("the platform redirects ({status}), configure its final address")
            }
            _ => format!("the platform answered with status {status}{reason}"),
        };
        let kind = FailureKind::of_status(status).unwrap_or(FailureKind::HttpError);
        let mut failure = Self::new(kind, message)
            .detail("status", status)
            .excerpt(&refusal.text);
        failure.retryable = is_retryable(status);
        // An HTTP date in this header is ignored: only seconds are supported.
        let wait = refusal.head.header("retry-after");
        if let Some(wait) = wait.and_then(|wait| wait.trim().parse::<u64>().ok()) {
            failure = failure.detail("retry_after_seconds", wait);
        }
        failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, text: &str) -> ConnectorFailure {
        let headers = vec![("retry-after".to_owned(), "7".to_owned())];
        let head = PlatformResponseHead { status, headers };
        ConnectorFailure::from(&ErrorStatus {
            head,
            text: text.to_owned(),
        })
    }

    #[test]
    fn statuses_have_codes_and_retryability() {
        for (status, code, retryable) in [
            (302, "p.http_error", false),
            (400, "p.http_error", false),
            (401, "p.auth_error", false),
            (403, "p.auth_error", false),
            (429, "p.rate_limited", true),
            (500, "p.http_error", false),
            (503, "p.http_error", true),
            (504, "p.timeout", true),
        ] {
            let failure = refusal(status, "{\"error\": {\"message\": \"why\"}}");
            assert_eq!(
                (failure.kind.code("p").as_str(), failure.retryable),
                (code, retryable),
                "{status}"
            );
            assert_eq!(failure.details["retry_after_seconds"], 7);
            assert!(
                status == 302 || failure.message.ends_with(": why"),
                "{}",
                failure.message
            );
        }
    }

    #[test]
    fn excerpts_are_redacted_before_they_are_cut() {
        let text = format!("{}my-secret-key{}", "x".repeat(190), "y".repeat(300));
        let redactor = SecretRedactor::new(vec!["my-secret-key".into()]);
        let failure = refusal(500, &text).redacted(&redactor);
        let excerpt = failure.details["excerpt"].as_str().unwrap();
        assert_eq!(excerpt.chars().count(), 200);
        assert!(excerpt.ends_with("[redacted]"), "{excerpt}");
    }
}
