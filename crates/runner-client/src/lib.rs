//! Client of the Runner API (`docs/protocol.md`, Discovery and `RUN_AGENT`): list, run, resume, cancel. It signs every
//! request.

mod error;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use domain::json_text::check_json_text;
use domain::trace::TraceParent;
use egress::{Body, RequestBuilder, Response};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body_util::{BodyExt as _, Full};
use protocol::admin::EndpointMode;
use protocol::id::RunId;
use protocol::peer_text::shown;
use serde_json::{Value, json};
use url::Url;
use uuid::Uuid;

pub use error::{ListError, StartError};

use clock::Clock;
use egress::upstream::retry_after;
use egress::{Egress, EgressError, read_up_to};
use secrets::signature::SigningSecret;

/// Timeout of the list call, including its response.
pub const LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a list of runners.
const LIST_BYTES: usize = 4 * 1024 * 1024;
/// Start of an error response that is stored for operators.
const EXCERPT_BYTES: usize = 200;
const EXCERPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of bytes read of an unused body.
const TRAILING_BODY_BYTES: usize = 4 * 1024;

/// A runner endpoint and its credentials.
#[derive(Debug)]
pub struct Endpoint {
    pub base_url: Url,
    pub mode: EndpointMode,
    pub secret: SigningSecret,
    /// Static headers, which are secrets.
    pub headers: HeaderMap,
}

/// One unsigned call of the Runner API.
#[derive(Clone)]
pub struct SignedCall {
    pub method: Method,
    pub url: Url,
    /// Unique for each call.
    pub webhook_id: String,
    /// The exact bytes that are signed and sent.
    pub body: String,
    /// Headers besides the signature and the static ones.
    pub headers: HeaderMap,
}

impl Endpoint {
    /// The call that lists the endpoint's runners. Its id is new each time.
    pub fn list_call(&self) -> SignedCall {
        let (method, url, body) = match self.mode {
            EndpointMode::Standard => (Method::GET, self.url(&["runners"]), String::new()),
            EndpointMode::SingleUrl => (
                Method::POST,
                self.url(&[]),
                json!({"action": "list_runners"}).to_string(),
            ),
        };
        let webhook_id = format!("list_{}", Uuid::now_v7().simple());
        SignedCall::new(method, url, webhook_id, body).with(ACCEPT, "application/json")
    }

    /// The call that starts a run. `body` is the `AgentRunRequest` as JSON.
    pub fn run_call(
        &self,
        run: RunId,
        attempt: u32,
        trace: TraceParent,
        body: String,
    ) -> SignedCall {
        // A new id for each attempt: the runner's replay protection would reject a repeated one.
        let hex = run.0.simple().to_string();
        let (url, body) = match self.mode {
            EndpointMode::Standard => (self.url(&["runs"]), body),
            EndpointMode::SingleUrl => (self.url(&[]), with_action("run", &body)),
        };
        SignedCall::new(Method::POST, url, format!("run_{hex}_{attempt}"), body)
            .of_attempt(run, attempt, trace)
    }

    /// The call that attaches to a live run. `body` is the `ResumeRequest` as JSON.
    pub fn resume_call(
        &self,
        run: RunId,
        attempt: u32,
        trace: TraceParent,
        body: String,
    ) -> SignedCall {
        let (url, body) = match self.mode {
            EndpointMode::Standard => (self.url(&["runs", &run.to_string(), "resume"]), body),
            EndpointMode::SingleUrl => (self.url(&[]), with_action("resume", &body)),
        };
        let webhook_id = format!("resume_{}_{attempt}", run.0.simple());
        SignedCall::new(Method::POST, url, webhook_id, body).of_attempt(run, attempt, trace)
    }

    /// The cancel notice. A repeated notice for an attempt has the same id.
    pub fn cancel_call(&self, run: RunId, attempt: u32) -> SignedCall {
        let body = json!({"run_id": run.to_string()}).to_string();
        let (url, body) = match self.mode {
            EndpointMode::Standard => (self.url(&["runs", &run.to_string(), "cancel"]), body),
            EndpointMode::SingleUrl => (self.url(&[]), with_action("cancel", &body)),
        };
        let webhook_id = format!("cancel_{}_{attempt}", run.0.simple());
        SignedCall::new(Method::POST, url, webhook_id, body).with(RUN_ID, &run.to_string())
    }

    /// A call as an unsigned request. A body gets a content type.
    pub fn request(
        &self,
        egress: &Egress,
        call: &SignedCall,
    ) -> Result<RequestBuilder, EgressError> {
        let mut request = egress
            .request(call.method.clone(), &call.url)?
            .headers(self.headers.clone())
            // The client does not decompress: a small compressed body could expand without a bound.
            .header(ACCEPT_ENCODING, "identity");
        for (name, value) in &call.headers {
            request = request.header(name, value);
        }
        if call.method == Method::POST {
            request = request.body(call.body.clone());
        }
        Ok(request)
    }

    fn url(&self, path: &[&str]) -> Url {
        let mut url = self.base_url.clone();
        if self.mode == EndpointMode::Standard
            && let Ok(mut segments) = url.path_segments_mut()
        {
            // A base URL may end with `/`, which would leave an empty segment.
            segments.pop_if_empty().extend(path);
        }
        url
    }
}

const RUN_ID: HeaderName = HeaderName::from_static("runnel-run-id");
const ATTEMPT: HeaderName = HeaderName::from_static("runnel-attempt");

impl SignedCall {
    fn new(method: Method, url: Url, webhook_id: String, body: String) -> Self {
        let call = Self {
            method,
            url,
            webhook_id,
            body,
            headers: HeaderMap::new(),
        };
        if call.method == Method::POST {
            call.with(CONTENT_TYPE, "application/json")
        } else {
            call
        }
    }

    /// Adds the headers of a call that results answer.
    fn of_attempt(self, run: RunId, attempt: u32, trace: TraceParent) -> Self {
        self.with(ACCEPT, "text/event-stream")
            .with(HeaderName::from_static("traceparent"), &trace.to_string())
            .with(RUN_ID, &run.to_string())
            .with(ATTEMPT, &attempt.to_string())
    }

    fn with(mut self, name: HeaderName, value: &str) -> Self {
        let value = HeaderValue::from_str(value).expect("ids and media types are header text");
        self.headers.insert(name, value);
        self
    }

    /// Signature headers of this call at `now` (epoch seconds).
    pub fn signature(&self, secret: &SigningSecret, now: i64) -> [(&'static str, String); 3] {
        let signature = secret.sign(&self.webhook_id, now, self.body.as_bytes());
        [
            ("webhook-id", self.webhook_id.clone()),
            ("webhook-timestamp", now.to_string()),
            ("webhook-signature", signature),
        ]
    }
}

/// Client for runner endpoints.
#[derive(Clone)]
pub struct RunnerClient {
    egress: Egress,
    clock: Clock,
}

/// A run that the runner has accepted. Its results follow.
#[derive(Debug)]
pub struct Started {
    pub response: Response,
    pub format: ResultFormat,
}

/// Body of an accepted run.
pub type Results = BoxStream<'static, Result<Bytes, EgressError>>;

impl Started {
    /// Drops the response head and its buffer, since a run may take long.
    pub fn into_results(self) -> Results {
        let body = self.response.bytes_stream();
        body.map_err(EgressError::from).boxed()
    }
}

/// Response to the POST of an accepted run.
#[derive(Debug)]
pub enum Answer {
    Started(Started),
    /// `202`: the runner appends its results later. The body may stay open while the runner works.
    Deferred(TrailingBody),
}

/// A body without relevant content.
#[derive(Debug)]
pub struct TrailingBody(Response);

impl TrailingBody {
    /// Reads the body so that the connection can be reused. A long body closes the connection. An open body is
    /// held until this is dropped, so that its runner can keep working.
    pub async fn discard(self) {
        // The run is accepted; a broken body only costs the connection.
        let _ = read_up_to(self.0, TRAILING_BODY_BYTES).await;
    }
}

/// Framing of results, by the response's content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultFormat {
    EventStream,
    /// One result per line.
    JsonLines,
    /// `{"results": […]}`.
    Json,
}

impl RunnerClient {
    pub fn new(egress: Egress, clock: Clock) -> Self {
        Self { egress, clock }
    }

    /// Requests the manifests of an endpoint.
    pub async fn list_runners(&self, endpoint: &Endpoint) -> Result<Value, ListError> {
        let call = endpoint.list_call();
        let request = self.signed(endpoint, &call)?.timeout(LIST_TIMEOUT);
        let response = self.egress.send(request).await?;
        if !response.status().is_success() {
            return Err(ListError::Status(response.status()));
        }
        // One byte more than the limit, to tell a full list from a truncated one.
        let body = read_up_to(response, LIST_BYTES + 1).await?;
        if body.len() > LIST_BYTES {
            return Err(ListError::TooLarge);
        }
        check_json_text(&body).map_err(ListError::Malformed)?;
        serde_json::from_slice(&body).map_err(|_| ListError::NotJson)
    }

    /// Sends a call that results answer: [`Endpoint::run_call`] or [`Endpoint::resume_call`]. `sent` becomes true once
    /// the runner may have received a part of it.
    pub async fn start_run(
        &self,
        endpoint: &Endpoint,
        call: SignedCall,
        sent: Arc<AtomicBool>,
    ) -> Result<Answer, StartError> {
        let request = self
            .signed(endpoint, &call)
            .map_err(StartError::Unreachable)?;
        let length = call.body.len();
        // The body is polled once the connection is open; its length is declared before.
        let body = Full::new(Bytes::from(call.body)).map_frame(move |frame| {
            sent.store(true, Ordering::Release);
            frame
        });
        let request = request
            .header(CONTENT_LENGTH, length)
            .body(Body::wrap(body));
        let response = self
            .egress
            .send(request)
            .await
            .map_err(|error| match error {
                EgressError::Connect(_) | EgressError::Blocked { .. } => {
                    StartError::Unreachable(error)
                }
                EgressError::Timeout | EgressError::Io(_) => StartError::Broken(error),
            })?;
        classify_response(response).await
    }

    /// Notifies a runner that its run is cancelled. Best effort: the runner may not support the call.
    pub async fn cancel_run(
        &self,
        endpoint: &Endpoint,
        run: RunId,
        attempt: u32,
        patience: Duration,
    ) -> Result<(), EgressError> {
        let call = endpoint.cancel_call(run, attempt);
        let request = self.signed(endpoint, &call)?.timeout(patience);
        let response = self.egress.send(request).await?;
        read_up_to(response, TRAILING_BODY_BYTES).await.map(drop)
    }

    fn signed(
        &self,
        endpoint: &Endpoint,
        call: &SignedCall,
    ) -> Result<RequestBuilder, EgressError> {
        let mut request = endpoint.request(&self.egress, call)?;
        for (name, value) in call.signature(&endpoint.secret, self.clock.now_seconds()) {
            request = request.header(name, value);
        }
        Ok(request)
    }
}

/// Inserts `action` as the first member. The result is signed and sent as it is.
fn with_action(action: &str, body: &str) -> String {
    format!("{{\"action\":\"{action}\",{}", &body[1..])
}

/// Checks status, content type and encoding of a response to a run.
pub async fn classify_response(response: Response) -> Result<Answer, StartError> {
    let status = response.status();
    // Checked before the content type: a 202 may have any body.
    if status == StatusCode::ACCEPTED {
        return Ok(Answer::Deferred(TrailingBody(response)));
    }
    if status != StatusCode::OK {
        return Err(StartError::Refused {
            status,
            retry_after: retry_after(response.headers()),
            excerpt: excerpt_of(response).await,
        });
    }
    match format_of(response.headers()) {
        Ok(format) => Ok(Answer::Started(Started { response, format })),
        Err(content_type) => Err(StartError::BadContentType {
            content_type,
            excerpt: excerpt_of(response).await,
        }),
    }
}

async fn excerpt_of(response: Response) -> Vec<u8> {
    // Bounded, because the body belongs to a runner that refused the run and may stall.
    let reading = read_up_to(response, EXCERPT_BYTES);
    match tokio::time::timeout(EXCERPT_TIMEOUT, reading).await {
        Ok(Ok(excerpt)) => excerpt,
        Ok(Err(_)) | Err(_) => Vec::new(),
    }
}

/// The framing, or the unusable content type.
fn format_of(headers: &HeaderMap) -> Result<ResultFormat, String> {
    if let Some(encoding) = headers.get(CONTENT_ENCODING)
        && encoding != "identity"
    {
        // The request declared `identity`, so the frames cannot be read.
        return Err("a content encoding".to_owned());
    }
    let content_type = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let essence = content_type
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    match essence.to_ascii_lowercase().as_str() {
        "text/event-stream" => Ok(ResultFormat::EventStream),
        "application/x-ndjson" => Ok(ResultFormat::JsonLines),
        "application/json" => Ok(ResultFormat::Json),
        "" => Err("no content type".to_owned()),
        other => Err(shown(other)),
    }
}

#[cfg(test)]
mod tests {
    use domain::trace::RunTrace;
    use secrecy::SecretString;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    fn endpoint(base_url: &str, mode: EndpointMode) -> Endpoint {
        let secret = SecretString::from("whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=");
        Endpoint {
            base_url: Url::parse(base_url).unwrap(),
            mode,
            secret: SigningSecret::parse(&secret).unwrap(),
            headers: HeaderMap::new(),
        }
    }

    /// A run that is cancelled before the connection opens needs no grace period.
    #[tokio::test]
    async fn bodies_count_as_sent_only_after_connecting() {
        for (scheme, is_sent) in [("https", false), ("http", true)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let allow = vec![address.to_string().parse().unwrap()];
            let egress = Egress::new(allow, Duration::from_mins(1)).unwrap();
            let client = RunnerClient::new(egress, Clock::system());
            let url = format!("{scheme}://{address}");
            let endpoint = endpoint(&url, EndpointMode::Standard);
            let sent = Arc::new(AtomicBool::new(false));
            let run = RunId(Uuid::now_v7());
            let trace = RunTrace::of(run, None).header(Some(0.0));
            let body = "{}".to_owned();
            let call = endpoint.run_call(run, 1, trace, body);
            let start = client.start_run(&endpoint, call, Arc::clone(&sent));
            let greeted = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.read_u8().await.unwrap();
                stream
            };
            let _unanswered = tokio::select! {
                answer = start => panic!("{answer:?}"),
                stream = greeted => stream,
            };
            assert_eq!(sent.load(Ordering::Acquire), is_sent, "{scheme}");
        }
    }

    #[test]
    fn standard_paths_extend_base_url_single_url_stays() {
        let check = |base: &str, mode, expected: &str| {
            assert_eq!(
                endpoint(base, mode).url(&["runs", "a/b"]).as_str(),
                expected
            );
        };
        check(
            "http://h:1",
            EndpointMode::Standard,
            "http://h:1/runs/a%2Fb",
        );
        check(
            "http://h:1/base/",
            EndpointMode::Standard,
            "http://h:1/base/runs/a%2Fb",
        );
        check(
            "http://h:1/f?x=1",
            EndpointMode::SingleUrl,
            "http://h:1/f?x=1",
        );
    }

    #[test]
    fn resume_calls_name_run_and_attempt() {
        let run = RunId(Uuid::now_v7());
        let trace = RunTrace::of(run, None).header(Some(0.0));
        let call = |mode| {
            let body = r#"{"attempt":2}"#.to_owned();
            endpoint("http://h:1/base", mode).resume_call(run, 2, trace, body)
        };
        let standard = call(EndpointMode::Standard);
        assert_eq!(
            standard.url.as_str(),
            format!("http://h:1/base/runs/{run}/resume")
        );
        let id = format!("resume_{}_2", run.0.simple());
        assert_eq!(standard.webhook_id, id);
        let single = call(EndpointMode::SingleUrl);
        assert_eq!(single.url.as_str(), "http://h:1/base");
        assert_eq!(single.body, r#"{"action":"resume","attempt":2}"#);
        assert_eq!(single.headers[ATTEMPT], "2");
    }

    #[test]
    fn inserts_action_as_first_member() {
        assert_eq!(
            with_action("run", r#"{"a":1}"#),
            r#"{"action":"run","a":1}"#
        );
    }
}
