//! Errors of the Runner API.

use std::time::Duration;

use domain::json_text::JsonTextFault;
use egress::EgressError;
use http::StatusCode;

/// Failure to start a run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the runner cannot be reached")]
    Unreachable(#[source] EgressError),
    /// The request was sent without a response, so the runner may have started the run.
    #[error("the connection to the runner broke before it answered")]
    Broken(#[source] EgressError),
    #[error("the runner sent no answer in time")]
    Silent,
    /// Not sent: the endpoint's circuit is open for at least `wait`.
    #[error("the runner's endpoint failed too often; its circuit is open, and runs are posted again in {} s", seconds_of(*wait))]
    CircuitOpen { wait: Duration },
    /// Not sent: an internal error.
    #[error("the run could not be posted: {0}")]
    Unprepared(&'static str),
    #[error("the runner answered HTTP {status}")]
    Refused {
        status: StatusCode,
        retry_after: Option<Duration>,
        /// The first 200 bytes of the body.
        excerpt: Vec<u8>,
    },
    #[error("the runner answered with {content_type}, not with an event stream")]
    BadContentType {
        content_type: String,
        /// The first 200 bytes of the body.
        excerpt: Vec<u8>,
    },
}

impl StartError {
    /// The start of the response that was no stream of results.
    pub fn excerpt(&self) -> Option<&[u8]> {
        match self {
            Self::Refused { excerpt, .. } | Self::BadContentType { excerpt, .. } => Some(excerpt),
            _ => None,
        }
        .filter(|excerpt| !excerpt.is_empty())
        .map(Vec::as_slice)
    }
}

/// Rounded up, at least one.
fn seconds_of(wait: Duration) -> u128 {
    wait.as_millis().div_ceil(1000).max(1)
}

/// Failure to list runners.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error("the endpoint cannot be reached")]
    Egress(#[from] EgressError),
    #[error("the endpoint answered HTTP {0}")]
    Status(StatusCode),
    #[error("the endpoint's answer is larger than 4 MiB")]
    TooLarge,
    #[error("the endpoint's answer is not JSON")]
    NotJson,
    #[error("the endpoint's answer {0}")]
    Malformed(JsonTextFault),
}
