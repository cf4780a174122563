//! Errors of host API calls.

use std::error::Error;

use protocol::JsonObject;
use protocol::error::AgentApiError;
use reqwest::StatusCode;
use serde_json::Value;

const INVALID_ANSWER: &str = "callback.invalid_answer";
const UNREACHABLE: &str = "callback.unreachable";
const HTTP_ERROR: &str = "callback.http_error";
const ANSWER_TOO_LARGE: &str = "answer_too_large";

/// Failed call. `code` comes from the gateway (`not_found`, `unauthorized`, `cancelled`, …) or from the kit:
/// `callback.unreachable`, `callback.timeout`, `callback.http_error`, `callback.invalid_answer`;
/// `deadline_exceeded` also when the run's deadline passed before the call.
#[derive(Debug, thiserror::Error)]
#[error("{code}: {message}")]
pub struct HostError {
    pub code: String,
    pub message: String,
    /// True when a retry may succeed.
    pub retryable: bool,
    pub details: JsonObject,
    #[source]
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl HostError {
    /// The object is absent, or outside of the run's grant.
    pub fn is_not_found(&self) -> bool {
        self.code == "not_found"
    }

    /// The run was cancelled; only state writes remain allowed.
    pub fn is_cancelled(&self) -> bool {
        self.code == "cancelled"
    }

    /// Conflict with another writer: version or entity tag differ, or the key belongs to another call.
    pub fn is_conflict(&self) -> bool {
        matches!(self.code.as_str(), "conflict" | "precondition_failed")
    }

    /// The run's deadline has passed, here or at the gateway; no retry can succeed. False for a single slow
    /// call, which has the same code: a tool, a model or a knowledge base has the reason `upstream_timeout`, and
    /// a slow body may be sent again.
    pub fn is_deadline_exceeded(&self) -> bool {
        let reason = self.details.get("reason").and_then(Value::as_str);
        let is_of_the_call = self.retryable || reason == Some("upstream_timeout");
        self.code == "deadline_exceeded" && !is_of_the_call
    }

    /// The response exceeds the kit's limit: request a smaller page or fewer bytes.
    pub fn is_answer_too_large(&self) -> bool {
        let reason = self.details.get("reason").and_then(Value::as_str);
        self.code == INVALID_ANSWER && reason == Some(ANSWER_TOO_LARGE)
    }

    /// A later attempt has the run: the call had no effect. [`Host`](crate::Host) of a resumable run repeats it.
    pub fn is_run_moved(&self) -> bool {
        self.code == "run_moved"
    }

    /// The gateway could not be reached, or its answer broke off: the call may have had its effect.
    pub fn is_gateway_lost(&self) -> bool {
        self.code == UNREACHABLE
    }

    /// No connection was made, so the gateway has not received the call.
    pub(super) fn is_unsent(&self) -> bool {
        self.http_error().is_some_and(reqwest::Error::is_connect)
    }

    /// The connection broke after the call was sent, or a proxy found no gateway.
    pub(super) fn is_broken(&self) -> bool {
        let status = self.details.get("status").and_then(Value::as_u64);
        match self.code.as_str() {
            UNREACHABLE => self.http_error().is_some_and(|error| !error.is_connect()),
            HTTP_ERROR => matches!(status, Some(502..=504)),
            _ => false,
        }
    }

    fn http_error(&self) -> Option<&reqwest::Error> {
        self.source.as_ref()?.downcast_ref()
    }

    pub(super) fn transport(error: reqwest::Error) -> Self {
        // Error texts do not show the gateway's address.
        let error = error.without_url();
        let failure = if error.is_timeout() {
            Self::new("callback.timeout", "the gateway did not answer in time")
        } else {
            Self::new(UNREACHABLE, "the gateway could not be reached")
        };
        Self {
            retryable: true,
            source: Some(error.into()),
            ..failure
        }
    }

    /// Error of a truncated stream.
    pub(super) fn cut(error: std::io::Error) -> Self {
        let failure = Self::new(UNREACHABLE, "the gateway's answer broke off before its end");
        Self {
            retryable: true,
            source: Some(error.into()),
            ..failure
        }
    }

    pub(super) fn foreign_answer(status: StatusCode) -> Self {
        let details = JsonObject::from_iter([("status".to_owned(), status.as_u16().into())]);
        let retryable = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
        let message = format!("the gateway answered {status} without an error body");
        Self {
            retryable,
            details,
            ..Self::new(HTTP_ERROR, message)
        }
    }

    pub(super) fn unreadable_answer(error: serde_json::Error) -> Self {
        let failure = Self::new(
            INVALID_ANSWER,
            "the gateway's answer does not have the expected form",
        );
        Self {
            source: Some(error.into()),
            ..failure
        }
    }

    pub(super) fn answer_too_large(limit: usize) -> Self {
        let message = format!("the gateway's answer is larger than {limit} bytes");
        let details = JsonObject::from_iter([("reason".to_owned(), ANSWER_TOO_LARGE.into())]);
        Self {
            details,
            ..Self::new(INVALID_ANSWER, message)
        }
    }

    pub(super) fn no_client() -> Self {
        Self::new(UNREACHABLE, "no HTTP client can be made on this system")
    }

    pub(super) fn deadline_exceeded() -> Self {
        Self::new("deadline_exceeded", "the run's time is over")
    }

    pub(super) fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new("invalid_argument", message)
    }

    fn new(code: &str, message: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            message: message.into(),
            retryable: false,
            details: JsonObject::new(),
            source: None,
        }
    }
}

/// Maps the gateway's error body.
impl From<AgentApiError> for HostError {
    fn from(error: AgentApiError) -> Self {
        Self {
            code: error.code,
            message: error.message,
            retryable: error.retryable,
            details: error.details,
            source: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn distinguishes_oversized_from_unreadable_responses() {
        assert!(HostError::answer_too_large(9).is_answer_too_large());
        let unreadable = serde_json::from_str::<Value>("{").unwrap_err();
        assert!(!HostError::unreadable_answer(unreadable).is_answer_too_large());
    }

    #[test]
    fn distinguishes_call_timeout_from_run_deadline() {
        let from_gateway = |code: &str, retryable: bool, details: Value| {
            let error =
                json!({"code": code, "message": "m", "retryable": retryable, "details": details});
            HostError::from(serde_json::from_value::<AgentApiError>(error).unwrap())
        };
        let upstream = json!({"reason": "upstream_timeout"});
        for (code, retryable, details, expected) in [
            ("deadline_exceeded", false, json!({}), true),
            (
                "deadline_exceeded",
                false,
                json!({"reason": "deadline"}),
                true,
            ),
            ("deadline_exceeded", false, json!({"reason": 7}), true),
            ("deadline_exceeded", true, json!({}), false),
            ("deadline_exceeded", true, upstream.clone(), false),
            ("deadline_exceeded", false, upstream, false),
            ("runtime_error", false, json!({}), false),
        ] {
            let error = from_gateway(code, retryable, details.clone());
            let case = format!("{code} {retryable} {details}");
            assert_eq!(error.is_deadline_exceeded(), expected, "{case}");
        }
        assert!(HostError::deadline_exceeded().is_deadline_exceeded());
    }
}
