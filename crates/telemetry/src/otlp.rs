//! OTLP/HTTP export of spans in batches. A slow, failing or hostile collector can only cause lost spans.

mod wire;

use std::collections::BTreeMap;
use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use prost::Message as _;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::metrics::spans_exported;
use crate::spans::{Exported, Span};
use egress::read_up_to;
use egress::upstream::retry_after;
use egress::{Egress, EgressError};

/// Maximum number of spans per request.
const BATCH: usize = 512;
/// Maximum time that the first span of a batch waits for others.
const GATHER: Duration = Duration::from_secs(1);
/// Timeout of a request, including its response.
const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum number of bytes read of a response.
const ANSWER_BYTES: usize = 64 * 1024;
/// Retries: attempts per request, and the pause between them.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Time for the remaining spans at shutdown.
const LAST: Duration = Duration::from_millis(500);

/// A trace collector and the export settings.
#[derive(Clone)]
pub struct Collector {
    /// Without `/v1/traces`.
    pub endpoint: Url,
    /// Headers of each request; each may be a secret.
    pub headers: BTreeMap<String, SecretString>,
    pub sample_ratio: f64,
    pub service_name: String,
}

/// Exports spans to a collector.
pub struct Exporter {
    egress: Egress,
    url: Url,
    headers: HeaderMap,
    resource: wire::Resource,
    spans: mpsc::Receiver<Span>,
    batch: Vec<Span>,
    is_away: bool,
}

/// A failed export. Shows nothing of the response body.
#[derive(Debug, thiserror::Error)]
enum ExportFailure {
    #[error("it cannot be reached")]
    Egress(#[from] EgressError),
    #[error("it answered HTTP {status}")]
    Status {
        status: StatusCode,
        wait: Option<Duration>,
    },
}

impl Exporter {
    /// Exports `spans`; `instance` is the id of this process.
    pub fn new(
        egress: Egress,
        collector: &Collector,
        instance: &str,
        spans: mpsc::Receiver<Span>,
    ) -> Self {
        let mut url = collector.endpoint.clone();
        // A URL without a path cannot be a base; the request then fails and is logged.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(["v1", "traces"]);
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
            resource: wire::resource(&collector.service_name, instance),
            spans,
            batch: Vec::new(),
            is_away: false,
        }
    }

    /// Exports until `closing`, then flushes the remaining spans.
    pub async fn run(mut self, closing: CancellationToken) {
        loop {
            let exporting = async {
                self.gather().await;
                self.tell().await;
            };
            if closing.run_until_cancelled(exporting).await.is_none() {
                break;
            }
        }
        // An interrupted batch may be sent twice; collectors deduplicate by span id.
        let rest = async {
            while self.take_rest() {
                let outcome = self.post().await;
                self.note(outcome);
            }
        };
        if tokio::time::timeout(LAST, rest).await.is_err() {
            // Counted, so an operator sees that the trace is incomplete.
            let lost = self.batch.len() + self.spans.len();
            spans_exported(Exported::Failed, lost as u64);
        }
    }

    /// Waits for a span and then for a batch. Cancel-safe.
    async fn gather(&mut self) {
        if self.batch.is_empty() && self.spans.recv_many(&mut self.batch, BATCH).await == 0 {
            // All senders are gone.
            std::future::pending::<()>().await;
        }
        let others = async {
            while self.batch.len() < BATCH {
                let free = BATCH - self.batch.len();
                if self.spans.recv_many(&mut self.batch, free).await == 0 {
                    break;
                }
            }
        };
        // The first span waits at most this long; a timeout is the usual end of a small batch.
        let _ = tokio::time::timeout(GATHER, others).await;
    }

    /// Fills the batch with queued spans. False: there are none.
    fn take_rest(&mut self) -> bool {
        while self.batch.len() < BATCH
            && let Ok(span) = self.spans.try_recv()
        {
            self.batch.push(span);
        }
        !self.batch.is_empty()
    }

    /// Exports the batch and retries failures that may be temporary.
    async fn tell(&mut self) {
        for tried in 1.. {
            let outcome = self.post().await;
            let wait = outcome.as_ref().err().and_then(ExportFailure::wait);
            match wait.filter(|_| tried < TRIES) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return self.note(outcome),
            }
        }
    }

    /// Sends one request. Returns the number of rejected spans.
    async fn post(&self) -> Result<u64, ExportFailure> {
        let body = wire::request(&self.resource, &self.batch).encode_to_vec();
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
        let answer = wire::ExportResponse::decode(answer.as_slice()).unwrap_or_default();
        // A successful response may still reject spans.
        let refused = answer.partial_success.unwrap_or_default().rejected_spans;
        Ok(u64::try_from(refused).unwrap_or(0))
    }

    /// Clears the batch, counts its results, and logs a change of state once.
    fn note(&mut self, outcome: Result<u64, ExportFailure>) {
        let count = self.batch.len() as u64;
        self.batch.clear();
        let refused = match &outcome {
            Ok(refused) => (*refused).min(count),
            // The collector chooses the number; a larger one would make the difference negative.
            Err(_) => count,
        };
        spans_exported(Exported::Taken, count - refused);
        spans_exported(Exported::Failed, refused);
        match outcome {
            Err(error) if !self.is_away => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the trace collector accepts no spans; they are dropped until it recovers"
            ),
            Ok(_) if self.is_away => tracing::info!("the trace collector accepts spans again"),
            _ => {}
        }
        self.is_away = refused == count;
    }
}

impl ExportFailure {
    /// Pause before a retry. `None`: the failure is permanent.
    fn wait(&self) -> Option<Duration> {
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
