//! Requests to the collector.

use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use prost::Message as _;
use secrecy::ExposeSecret as _;
use url::Url;

use super::Collector;
use super::wire::ExportResponse;
use egress::read_up_to;
use egress::upstream::retry_after;
use egress::{Egress, EgressError};

/// Timeout of a request, including its response.
const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum number of bytes read of a response.
const ANSWER_BYTES: usize = 64 * 1024;
/// Pause before a retry, and its maximum if the collector names one.
const PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// One signal of a collector: traces, metrics or logs.
pub(super) struct CollectorConnection {
    egress: Egress,
    url: Url,
    headers: HeaderMap,
}

/// A failed export. Shows nothing of the response body.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExportFailure {
    #[error("it cannot be reached")]
    Egress(#[from] EgressError),
    #[error("it answered HTTP {status}")]
    Status {
        status: StatusCode,
        wait: Option<Duration>,
    },
}

impl CollectorConnection {
    /// `signal`: `traces`, `metrics` or `logs`.
    pub(super) fn new(egress: Egress, collector: &Collector, signal: &str) -> Self {
        let mut url = collector.endpoint.clone();
        // A URL without a path cannot be a base; the request then fails and is logged.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(["v1", signal]);
        }
        let mut headers = HeaderMap::new();
        for (name, value) in &collector.headers {
            let value = HeaderValue::from_str(value.expose_secret());
            if let (Ok(name), Ok(mut value)) = (name.parse::<HeaderName>(), value) {
                // Keeps secrets out of debug output.
                value.set_sensitive(true);
                headers.insert(name, value);
            }
        }
        Self {
            egress,
            url,
            headers,
        }
    }

    /// Sends one request. Returns the number of rejected spans, points or records.
    pub(super) async fn post(&self, body: Vec<u8>) -> Result<u64, ExportFailure> {
        let request = self
            .egress
            .request(Method::POST, &self.url)?
            .headers(self.headers.clone())
            .header(CONTENT_TYPE, "application/x-protobuf")
            .timeout(DEADLINE)
            .body(body);
        let response = self.egress.send(request).await?;
        let status = response.status();
        if !status.is_success() {
            let headers = response.headers();
            // Without the header only the status decides on the retry.
            let wait = headers.get(RETRY_AFTER).and_then(|_| retry_after(headers));
            return Err(ExportFailure::Status { status, wait });
        }
        // Bounded: a hostile collector could send an endless response.
        let answer = read_up_to(response, ANSWER_BYTES).await?;
        let answer = ExportResponse::decode(answer.as_slice()).unwrap_or_default();
        // A successful response may still reject a part.
        let refused = answer.partial_success.unwrap_or_default().rejected;
        Ok(u64::try_from(refused).unwrap_or(0))
    }
}

impl ExportFailure {
    /// Pause before a retry. `None`: the failure is permanent.
    pub(super) fn wait(&self) -> Option<Duration> {
        match self {
            // The egress policy does not change between tries.
            Self::Egress(EgressError::Blocked { .. }) => None,
            Self::Egress(_) => Some(PAUSE),
            Self::Status { status, wait } => match *status {
                StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT => Some(wait.unwrap_or(PAUSE).min(MAX_PAUSE)),
                _ => None,
            },
        }
    }
}
