//! Harness of the checks: sends calls like the gateway.

mod plans;
mod resources;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use protocol::result::ResultType;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::mock_host::MockHost;
use super::options::{ConformError, ConformOptions};
use super::report::Redaction;
use clock::Clock;
use egress::upstream::retry_after;
use egress::{Egress, EgressError, RequestBuilder, Response, read_up_to};
use runner_client::{Answer, SignedCall, StartError, Started, TrailingBody, classify_response};
use runs::RunLimits;
use secrets::signature::SigningSecret;

pub(super) use plans::{PreparedRun, RunPlan};

const CONNECT: Duration = Duration::from_secs(10);
/// Bytes that are read of the body of a refused call.
const EXCERPT_BYTES: usize = 4096;
const EXCERPT_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct CheckHarness {
    pub(super) options: ConformOptions,
    pub(super) host: MockHost,
    /// Base URL of the mock host API for runners.
    pub(super) callback_url: String,
    pub(super) limits: RunLimits,
    pub(super) clock: Clock,
    pub(super) redaction: Redaction,
    egress: Mutex<Egress>,
    completed_runs: AtomicUsize,
}

/// Signature of a call.
pub(super) enum SignatureKind<'a> {
    Right,
    Missing,
    With(&'a SigningSecret),
    /// A timestamp with this offset in seconds.
    Off(i64),
    /// The signature of the same call with another body.
    OfAnotherBody,
}

/// Result of a POST.
pub(super) enum DispatchResult {
    Started {
        started: Started,
        after: Duration,
    },
    /// The runner appends its results later. The rest of the body is discarded.
    Deferred {
        trailing: TrailingBody,
        after: Duration,
    },
    Refused(RefusedAnswer),
    BadContentType(String),
    Silent(Duration),
    Broken(String),
}

/// The answer to a call that was refused.
pub(super) struct RefusedAnswer {
    pub(super) status: StatusCode,
    pub(super) retry_after: Option<Duration>,
    /// Start of the body, redacted; may be empty.
    pub(super) excerpt: String,
}

impl RefusedAnswer {
    /// `Retry-After` of a runner at capacity.
    pub(super) fn busy_wait(&self) -> Option<Duration> {
        let busy = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::SERVICE_UNAVAILABLE,
        ];
        self.retry_after.filter(|_| busy.contains(&self.status))
    }

    pub(super) fn in_words(&self) -> String {
        let status = self.status.as_u16();
        if self.excerpt.is_empty() {
            format!("HTTP {status}")
        } else {
            format!("HTTP {status}: {}", self.excerpt)
        }
    }
}

impl DispatchResult {
    pub(super) fn is_taken(&self) -> bool {
        matches!(self, Self::Started { .. } | Self::Deferred { .. })
    }
}

impl CheckHarness {
    pub(super) fn new(
        options: ConformOptions,
        listening: SocketAddr,
    ) -> Result<Self, ConformError> {
        let url = &options.endpoint.base_url;
        let rule = match (url.host_str(), url.port_or_known_default()) {
            (Some(host), Some(port)) => format!("{host}:{port}").parse().ok(),
            _ => None,
        };
        // The operator named this address, so it is the only allowed destination.
        let egress = Egress::new(rule.into_iter().collect(), CONNECT);
        let egress = egress.map_err(ConformError::Refused)?;
        let limits = options.limits.clone();
        let clock = Clock::system();
        let origin = match &options.callback_url {
            Some(url) => url.as_str().trim_end_matches('/').to_owned(),
            None => format!("http://{listening}"),
        };
        Ok(Self {
            host: MockHost::new(clock, limits.results, limits.append_lease, egress.clone()),
            callback_url: format!("{origin}/host/v1"),
            redaction: Redaction::new(&options.secrets),
            options,
            limits,
            clock,
            egress: Mutex::new(egress),
            completed_runs: AtomicUsize::new(0),
        })
    }

    /// Number of runs that ended with `run.completed`.
    pub(super) fn completed_runs(&self) -> usize {
        self.completed_runs.load(Ordering::Relaxed)
    }

    pub(super) fn count_completed(&self) {
        self.completed_runs.fetch_add(1, Ordering::Relaxed);
    }

    /// Timeout for the first byte of a response.
    pub(super) fn first_byte(&self) -> Duration {
        self.limits.first_byte.min(self.options.timeout)
    }

    /// Sends a call. The response body is unread.
    pub(super) async fn send(
        &self,
        call: &SignedCall,
        signing: &SignatureKind<'_>,
    ) -> Result<Response, EgressError> {
        let egress = self.egress();
        let request = self.request(&egress, call, signing)?;
        // The client's timeout would cover the body as well; this one ends with the head.
        let sending = tokio::time::timeout(self.first_byte(), egress.send(request));
        let sent = sending.await.unwrap_or(Err(EgressError::Timeout));
        self.note_answer(&sent);
        sent
    }

    fn egress(&self) -> Egress {
        let egress = self.egress.lock();
        egress.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Many servers close the connection after an error, so the next call gets a new one. Otherwise that call would
    /// fail for the error before it.
    fn note_answer(&self, answer: &Result<Response, EgressError>) {
        let is_good = answer
            .as_ref()
            .is_ok_and(|answer| answer.status().is_success());
        if is_good {
            return;
        }
        let mut egress = self.egress.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(renewed) = egress.with_new_connections() {
            *egress = renewed;
        }
    }

    /// The answer of a refused call, with the start of its body.
    pub(super) async fn refused(&self, response: Response) -> RefusedAnswer {
        let (status, retry_after) = (response.status(), retry_after(response.headers()));
        // The body of an error is optional evidence, so a failure to read it is not reported.
        let body = tokio::time::timeout(EXCERPT_TIMEOUT, read_up_to(response, EXCERPT_BYTES));
        let body = body.await.ok().and_then(Result::ok).unwrap_or_default();
        RefusedAnswer {
            status,
            retry_after,
            excerpt: self.redaction.excerpt(&String::from_utf8_lossy(&body)),
        }
    }

    /// Status of a response, or a description of the failure.
    pub(super) async fn status(
        &self,
        call: &SignedCall,
        signing: &SignatureKind<'_>,
    ) -> Result<StatusCode, String> {
        let answer = self.send(call, signing).await;
        answer
            .map(|answer| answer.status())
            .map_err(|error| in_words(&error))
    }

    fn request(
        &self,
        egress: &Egress,
        call: &SignedCall,
        signing: &SignatureKind<'_>,
    ) -> Result<RequestBuilder, EgressError> {
        let endpoint = &self.options.endpoint;
        let now = self.clock.now_seconds();
        let signature = match signing {
            SignatureKind::Missing => None,
            SignatureKind::Right => Some(call.signature(&endpoint.secret, now)),
            SignatureKind::With(secret) => Some(call.signature(secret, now)),
            SignatureKind::Off(seconds) => Some(call.signature(&endpoint.secret, now + seconds)),
            SignatureKind::OfAnotherBody => {
                // Valid for its own body, so only a check of the digest detects it.
                let other = with_other_text(call);
                Some(other.signature(&endpoint.secret, now))
            }
        };
        let mut request = endpoint.request(egress, call)?;
        for (name, value) in signature.into_iter().flatten() {
            request = request.header(name, value);
        }
        Ok(request)
    }

    /// Unsigned GET of a path below the base URL.
    pub(super) async fn get(&self, path: &str) -> Result<StatusCode, String> {
        let mut url = self.options.endpoint.base_url.clone();
        // A base URL may end with a slash, which would leave an empty segment.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push(path);
        }
        let egress = self.egress();
        let request = egress.request(http::Method::GET, &url);
        let request = request.map_err(|error| in_words(&error))?;
        let request = request
            .headers(self.options.endpoint.headers.clone())
            .timeout(self.first_byte());
        let answer = egress.send(request).await;
        self.note_answer(&answer);
        answer
            .map(|answer| answer.status())
            .map_err(|error| in_words(&error))
    }

    /// Posts a run with a valid signature.
    pub(super) async fn post(&self, opened: &PreparedRun) -> DispatchResult {
        let sent = Instant::now();
        let response = match self.send(&opened.call, &SignatureKind::Right).await {
            Ok(response) => response,
            Err(EgressError::Timeout) => return DispatchResult::Silent(sent.elapsed()),
            Err(error) => return DispatchResult::Broken(in_words(&error)),
        };
        let after = sent.elapsed();
        let status = response.status();
        // Other 2xx statuses are refusals for the gateway, too.
        if !matches!(status, StatusCode::OK | StatusCode::ACCEPTED) {
            return DispatchResult::Refused(self.refused(response).await);
        }
        match classify_response(response).await {
            Ok(Answer::Started(started)) => DispatchResult::Started { started, after },
            Ok(Answer::Deferred(trailing)) => {
                // The runner may append at once, so the host must know it before the body is read.
                self.host.defer(&opened.token);
                DispatchResult::Deferred { trailing, after }
            }
            Err(StartError::BadContentType { content_type, .. }) => {
                DispatchResult::BadContentType(content_type)
            }
            Err(error) => DispatchResult::Broken(in_words(&error)),
        }
    }

    /// Changes the content type to an equivalent one.
    pub(super) fn with_charset(opened: &mut PreparedRun) {
        let value = HeaderValue::from_static("application/json; charset=utf-8");
        opened.call.headers.insert(CONTENT_TYPE, value);
    }
}

/// The call of a run with another text.
fn with_other_text(call: &SignedCall) -> SignedCall {
    let mut body: Value = serde_json::from_str(&call.body).unwrap_or_default();
    if let Some(text) = body.pointer_mut("/context/input/text") {
        *text = json!("something else");
    }
    SignedCall {
        body: body.to_string(),
        ..call.clone()
    }
}

/// True if the result type ends a run.
pub(super) fn is_terminal(kind: &str) -> bool {
    ResultType::parse(kind).is_some_and(ResultType::is_terminal)
}

/// As [`is_terminal`], for a raw result.
pub(super) fn says_terminal(raw: &[u8]) -> bool {
    let result = serde_json::from_slice::<serde_json::Value>(raw).unwrap_or_default();
    result["type"].as_str().is_some_and(is_terminal)
}

/// An error and its causes.
pub(super) fn in_words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words.push_str(": ");
        words.push_str(&error.to_string());
        cause = error.source();
    }
    words
}
