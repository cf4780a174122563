//! Why a provider (a model, a tool, a knowledge base) gave nothing, in one vocabulary for all of them.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use protocol::foreign_text::shown;

use crate::EgressError;

/// The longest wait that a runner or a provider may ask for.
const LONGEST_WAIT: Duration = Duration::from_hours(1);

/// A call of a provider that brought no answer. Its texts hold no secret of ours: whoever makes one has
/// them redacted.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    #[error("the provider asks to wait")]
    RateLimited { retry_after: Option<Duration> },
    #[error("the provider was silent for too long")]
    Timeout,
    /// The messages are longer than the model's window.
    #[error("the request is larger than the model's context window: {0}")]
    ContextOverflow(String),
    /// It understood, and will not: something in the caller's request.
    #[error("the provider refused the request (HTTP {status}): {message}")]
    Refused { status: u16, message: String },
    /// It does not know us: the operator's business.
    #[error(
        "the provider refused the gateway's credential (HTTP {status}); its operator must renew it"
    )]
    Credential { status: u16 },
    #[error("the provider failed (HTTP {status}): {message}")]
    Failing { status: u16, message: String },
    #[error("the provider cannot be reached: {0}")]
    Unreachable(EgressError),
    /// Something had been sent, perhaps something had come back.
    #[error("the connection to the provider broke: {0}")]
    Broken(EgressError),
    #[error("the provider's answer is larger than {most} bytes")]
    TooLarge { most: usize },
    #[error("the provider's answer cannot be read: {0}")]
    Malformed(String),
    /// What it is asked for is not among what it does.
    #[error("{0}")]
    Unsupported(String),
    /// Nothing was sent: nobody is there. For providers that are no URL.
    #[error("the provider is away: {0}")]
    Away(String),
    /// Nothing was sent: other calls have all places that this one may have.
    #[error("{message}")]
    Busy {
        reason: &'static str,
        message: &'static str,
    },
    /// It went while it was asked.
    #[error("the provider went away before it answered: {0}")]
    Lost(String),
    /// It understood, and will not. For protocols that have no HTTP status.
    #[error("the provider refused the request: {0}")]
    Rejected(String),
    /// It failed, and says so. For protocols that have no HTTP status.
    #[error("the provider failed: {0}")]
    Faulty(String),
}

impl UpstreamError {
    /// The code of the error that the caller sees, and of the audit.
    pub fn code(&self) -> &'static str {
        match self {
            Self::RateLimited { .. } | Self::Busy { .. } => "rate_limited",
            Self::Timeout => "deadline_exceeded",
            Self::ContextOverflow(_)
            | Self::Refused { .. }
            | Self::Unsupported(_)
            | Self::Rejected(_) => "invalid_argument",
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

    /// Which of the causes it is, for programs: `details.reason`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::RateLimited { .. } => "upstream_rate_limited",
            Self::Busy { reason, .. } => reason,
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

    /// The HTTP status that the provider answered, where that is known.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. }
            | Self::Credential { status }
            | Self::Failing { status, .. } => Some(*status),
            Self::RateLimited { .. } => Some(429),
            _ => None,
        }
    }

    /// Whether the caller's request is at fault. A path or a model that is not there is the operator's.
    pub fn is_callers(&self) -> bool {
        match self {
            Self::ContextOverflow(_) | Self::Unsupported(_) | Self::Rejected(_) => true,
            Self::Refused { status, .. } => *status != 404,
            _ => false,
        }
    }

    /// Whether the same call may go well later.
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

    /// Whether the provider surely did nothing: the same call may be made again, whatever it does.
    pub fn is_undone(&self) -> bool {
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
        )
    }

    /// An answer that is no success. `message`: what it says, redacted.
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

/// `Retry-After` in seconds; a date would need the other's clock to be right, and is taken for none.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    let seconds = text.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_WAIT))
}

/// Every provider says it in its own words.
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
    fn a_status_becomes_what_the_caller_can_act_on() {
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
    fn a_wait_is_seconds_and_has_a_bound() {
        let wait = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            retry_after(&headers)
        };
        assert_eq!(wait("7"), Some(Duration::from_secs(7)));
        assert_eq!(wait("99999999"), Some(LONGEST_WAIT));
        assert_eq!(wait("Wed, 21 Oct 2026 07:28:00 GMT"), None);
        assert_eq!(wait("-1"), None);
    }
}
