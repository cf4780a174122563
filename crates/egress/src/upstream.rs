//! Errors of providers (models, tools, knowledge bases) in one vocabulary.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use protocol::peer_text::shown;

use crate::EgressError;

/// Maximum wait that a runner or provider may request.
const MAX_WAIT: Duration = Duration::from_hours(1);

/// A failed provider call. Texts must be redacted before an error is created.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    #[error("the provider asks to wait")]
    RateLimited { retry_after: Option<Duration> },
    #[error("the provider was silent for too long")]
    Timeout,
    /// The prompt is longer than the model's context window.
    #[error("the request is larger than the model's context window: {0}")]
    ContextOverflow(String),
    /// The provider rejected the content of the request.
    #[error("the provider refused the request (HTTP {status}): {message}")]
    Refused { status: u16, message: String },
    /// The provider rejected the operator's credential.
    #[error(
        "the provider refused the gateway's credential (HTTP {status}); its operator must renew it"
    )]
    Credential { status: u16 },
    #[error("the provider failed (HTTP {status}): {message}")]
    Failing {
        status: u16,
        message: String,
        retry_after: Option<Duration>,
    },
    #[error("the provider cannot be reached: {0}")]
    Unreachable(EgressError),
    /// The request was sent, and a part of the response may have arrived.
    #[error("the connection to the provider broke: {0}")]
    Broken(EgressError),
    #[error("the provider's answer is larger than {max} bytes")]
    TooLarge { max: usize },
    #[error("the provider's answer cannot be read: {0}")]
    Malformed(String),
    /// The provider does not support the operation.
    #[error("{0}")]
    Unsupported(String),
    /// Not sent: the provider is not available. For providers without a URL.
    #[error("the provider is not available: {0}")]
    Away(String),
    /// Not sent: a limit of the gateway is reached. `wait`: time until the next call is admitted, if there is one.
    #[error("{message}")]
    Busy {
        reason: &'static str,
        message: &'static str,
        wait: Option<Duration>,
    },
    /// The provider stopped during the call.
    #[error("the provider stopped before it answered: {0}")]
    Lost(String),
    /// The provider rejected the request. For protocols without HTTP status.
    #[error("the provider refused the request: {0}")]
    Rejected(String),
    /// Not executed: without a usable token of the actor. `reason`: machine-readable cause.
    #[error("{message}")]
    Actor {
        reason: &'static str,
        message: String,
    },
    /// The provider reported a failure. For protocols without HTTP status.
    #[error("the provider failed: {0}")]
    Faulty(String),
}

impl UpstreamError {
    /// Error code for the caller and for the audit.
    pub fn code(&self) -> &'static str {
        match self {
            Self::RateLimited { .. } | Self::Busy { .. } => "rate_limited",
            Self::Timeout => "deadline_exceeded",
            Self::ContextOverflow(_)
            | Self::Refused { .. }
            | Self::Unsupported(_)
            | Self::Rejected(_) => "invalid_argument",
            Self::Actor { .. } => "unauthorized",
            Self::Credential { .. }
            | Self::Failing { .. }
            | Self::Unreachable(_)
            | Self::Broken(_)
            | Self::TooLarge { .. }
            | Self::Malformed(_)
            | Self::Away(_)
            | Self::Lost(_)
            | Self::Faulty(_) => "runtime_error",
        }
    }

    /// Machine-readable cause: `details.reason`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::RateLimited { .. } => "upstream_rate_limited",
            Self::Busy { reason, .. } | Self::Actor { reason, .. } => reason,
            Self::Timeout => "upstream_timeout",
            Self::ContextOverflow(_) => "context_length_exceeded",
            Self::Refused { .. } | Self::Rejected(_) => "upstream_refused",
            Self::Credential { .. } => "upstream_credential",
            Self::Failing { .. } | Self::Faulty(_) => "upstream_failing",
            Self::Unreachable(_) | Self::Away(_) => "upstream_unreachable",
            Self::Broken(_) | Self::Lost(_) => "upstream_broken",
            Self::TooLarge { .. } => "upstream_too_large",
            Self::Malformed(_) => "upstream_malformed",
            Self::Unsupported(_) => "unsupported",
        }
    }

    /// HTTP status of the provider, if known.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. }
            | Self::Credential { status }
            | Self::Failing { status, .. } => Some(*status),
            Self::RateLimited { .. } => Some(429),
            _ => None,
        }
    }

    /// True when the caller's request is at fault. A missing path or model is the operator's fault.
    pub fn is_caller_fault(&self) -> bool {
        match self {
            Self::ContextOverflow(_)
            | Self::Unsupported(_)
            | Self::Rejected(_)
            | Self::Actor { .. } => true,
            Self::Refused { status, .. } => *status != 404,
            _ => false,
        }
    }

    /// True when a retry may succeed.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::RateLimited { .. }
                | Self::Timeout
                | Self::Failing { .. }
                | Self::Unreachable(_)
                | Self::Broken(_)
                | Self::Away(_)
                | Self::Busy { .. }
                | Self::Lost(_)
        )
    }

    /// True when the provider had no effect, so that a retry is safe for any call.
    pub fn had_no_effect(&self) -> bool {
        matches!(
            self,
            Self::RateLimited { .. }
                | Self::ContextOverflow(_)
                | Self::Refused { .. }
                | Self::Credential { .. }
                | Self::Unreachable(_)
                | Self::Unsupported(_)
                | Self::Away(_)
                | Self::Busy { .. }
                | Self::Rejected(_)
                | Self::Actor { .. }
        )
    }

    /// The error of an HTTP status. `message`: the redacted text of the provider.
    pub fn of_status(status: StatusCode, headers: &HeaderMap, message: &str) -> Self {
        let is_overflow = says_context_overflow(message);
        let message = shown(message);
        let status_code = status.as_u16();
        match status {
            StatusCode::TOO_MANY_REQUESTS => Self::RateLimited {
                retry_after: retry_after(headers),
            },
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Self::Credential {
                status: status_code,
            },
            StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => Self::Timeout,
            status if status.is_client_error() && is_overflow => Self::ContextOverflow(message),
            status if status.is_client_error() => Self::Refused {
                status: status_code,
                message,
            },
            _ => Self::Failing {
                status: status_code,
                message,
                retry_after: retry_after(headers),
            },
        }
    }
}

impl From<EgressError> for UpstreamError {
    fn from(error: EgressError) -> Self {
        match error {
            EgressError::Connect(_) | EgressError::Blocked { .. } => Self::Unreachable(error),
            EgressError::Timeout => Self::Timeout,
            EgressError::Io(_) => Self::Broken(error),
        }
    }
}

/// `Retry-After` in seconds. A date is ignored, because it depends on the provider's clock.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    let seconds = text.trim().parse().ok()?;
    // A provider must not delay a run for days.
    Some(Duration::from_secs(seconds).min(MAX_WAIT))
}

/// Detects context overflow by the texts of several providers.
fn says_context_overflow(message: &str) -> bool {
    let message = message.to_lowercase();
    [
        "context_length_exceeded",
        "context length",
        "context window",
        "context size",
        "maximum context",
        "prompt is too long",
        "input is too long",
        "exceeds the maximum number of tokens",
        "too many tokens",
        "reduce the length",
    ]
    .iter()
    .any(|words| message.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_http_status_to_errors() {
        let with = |status: u16, message: &str| {
            let status = StatusCode::from_u16(status).unwrap();
            UpstreamError::of_status(status, &HeaderMap::new(), message)
        };
        for (status, message, code, reason, retryable) in [
            (429, "", "rate_limited", "upstream_rate_limited", true),
            (401, "", "runtime_error", "upstream_credential", false),
            (403, "", "runtime_error", "upstream_credential", false),
            (504, "", "deadline_exceeded", "upstream_timeout", true),
            (
                400,
                "bad role",
                "invalid_argument",
                "upstream_refused",
                false,
            ),
            (
                400,
                "This model's maximum context length is 8192 tokens",
                "invalid_argument",
                "context_length_exceeded",
                false,
            ),
            (
                413,
                "prompt is too long: 210000 tokens > 200000 maximum",
                "invalid_argument",
                "context_length_exceeded",
                false,
            ),
            (500, "oops", "runtime_error", "upstream_failing", true),
            (529, "overloaded", "runtime_error", "upstream_failing", true),
        ] {
            let error = with(status, message);
            assert_eq!(error.code(), code, "{status}");
            assert_eq!(error.reason(), reason, "{status}");
            assert_eq!(error.is_retryable(), retryable, "{status}");
        }
    }

    #[test]
    fn parses_bounded_retry_after_seconds() {
        let wait = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            retry_after(&headers)
        };
        assert_eq!(wait("7"), Some(Duration::from_secs(7)));
        assert_eq!(wait("99999999"), Some(MAX_WAIT));
        assert_eq!(wait("Wed, 21 Oct 2026 07:28:00 GMT"), None);
        assert_eq!(wait("-1"), None);
    }
}
