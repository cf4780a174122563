//! The Runner API, called (protocol §1): list, run, cancel. Every request is signed.

pub mod signature;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use domain::json_text::{JsonFault, check_json_text};
use domain::trace::TraceParent;
use egress::{Body, RequestBuilder, Response};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body_util::{BodyExt as _, Full};
use protocol::admin::EndpointMode;
use protocol::foreign_text::shown;
use protocol::id::RunId;
use serde_json::{Value, json};
use url::Url;
use uuid::Uuid;

use crate::signature::SigningSecret;
use base::clock::Clock;
use egress::upstream::retry_after;
use egress::{Egress, EgressError, read_at_most};

/// How long a list of runners may take in all.
pub const LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// How large a list of runners may be.
const LIST_BYTES: usize = 4 * 1024 * 1024;
/// How much of a body is read that is not asked for.
const ASIDE_BYTES: usize = 4 * 1024;

/// An endpoint, ready to be called.
#[derive(Debug)]
pub struct Endpoint {
    pub base_url: Url,
    pub mode: EndpointMode,
    pub secret: SigningSecret,
    /// Static headers: secrets.
    pub headers: HeaderMap,
}

/// One call of the Runner API, not signed yet.
#[derive(Clone)]
pub struct Call {
    pub method: Method,
    pub url: Url,
    /// Never the same for two calls.
    pub webhook_id: String,
    /// What is signed and sent, to the byte.
    pub body: String,
    /// What this call says beside its signature and the endpoint's static headers.
    pub headers: HeaderMap,
}

impl Endpoint {
    /// The list call.
    pub fn list_call(&self) -> Call {
        let (method, url, body) = match self.mode {
            EndpointMode::Standard => (Method::GET, self.url(&["runners"]), String::new()),
            EndpointMode::SingleUrl => (
                Method::POST,
                self.url(&[]),
                json!({"action": "list_runners"}).to_string(),
            ),
        };
        let webhook_id = format!("list_{}", Uuid::now_v7().simple());
        Call::new(method, url, webhook_id, body).with(ACCEPT, "application/json")
    }

    /// The call that starts a run. `body` is the `AgentRunRequest` as JSON.
    pub fn run_call(&self, run: RunId, attempt: u32, trace: TraceParent, body: String) -> Call {
        let hex = run.0.simple().to_string();
        let (url, body) = match self.mode {
            EndpointMode::Standard => (self.url(&["runs"]), body),
            EndpointMode::SingleUrl => (self.url(&[]), with_action("run", &body)),
        };
        Call::new(Method::POST, url, format!("run_{hex}_{attempt}"), body)
            .with(ACCEPT, "text/event-stream")
            .with(HeaderName::from_static("traceparent"), &trace.to_string())
            .with(RUN_ID, &run.to_string())
            .with(ATTEMPT, &attempt.to_string())
    }

    /// The cancel notice.
    pub fn cancel_call(&self, run: RunId, attempt: u32) -> Call {
        let body = json!({"run_id": run.to_string()}).to_string();
        let (url, body) = match self.mode {
            EndpointMode::Standard => (self.url(&["runs", &run.to_string(), "cancel"]), body),
            EndpointMode::SingleUrl => (self.url(&[]), with_action("cancel", &body)),
        };
        let webhook_id = format!("cancel_{}_{attempt}", run.0.simple());
        Call::new(Method::POST, url, webhook_id, body).with(RUN_ID, &run.to_string())
    }

    /// A call as a request that is not signed yet, content type included where there is a body.
    pub fn request(&self, egress: &Egress, call: &Call) -> Result<RequestBuilder, EgressError> {
        let mut request = egress
            .request(call.method.clone(), &call.url)?
            .headers(self.headers.clone())
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
            segments.pop_if_empty().extend(path);
        }
        url
    }
}

const RUN_ID: HeaderName = HeaderName::from_static("runnel-run-id");
const ATTEMPT: HeaderName = HeaderName::from_static("runnel-attempt");

impl Call {
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

    fn with(mut self, name: HeaderName, value: &str) -> Self {
        let value = HeaderValue::from_str(value).expect("ids and media types are header text");
        self.headers.insert(name, value);
        self
    }

    /// The headers that sign this call at `now` (epoch seconds) with `secret`.
    pub fn signature(&self, secret: &SigningSecret, now: i64) -> [(&'static str, String); 3] {
        let signature = secret.sign(&self.webhook_id, now, self.body.as_bytes());
        [
            ("webhook-id", self.webhook_id.clone()),
            ("webhook-timestamp", now.to_string()),
            ("webhook-signature", signature),
        ]
    }
}

/// Calls runner endpoints.
#[derive(Clone)]
pub struct RunnerClient {
    egress: Egress,
    clock: Clock,
}

/// A run that a runner has taken: its results follow.
#[derive(Debug)]
pub struct Started {
    pub response: Response,
    pub format: ResultFormat,
}

/// What follows the head of a runner's answer.
pub type Results = BoxStream<'static, Result<Bytes, EgressError>>;

impl Started {
    /// Lets the head go, and with it the buffer that it was read into: a run may wait for long.
    pub fn into_results(self) -> Results {
        let body = self.response.bytes_stream();
        body.map_err(EgressError::from).boxed()
    }
}

/// The answer to the POST of a run that was taken.
#[derive(Debug)]
pub enum Answer {
    Started(Started),
    /// `202`: the runner appends its results later. Its head says so: the body may stay open for as long as the runner
    /// works.
    Deferred(Aside),
}

/// A body that nobody asked for.
#[derive(Debug)]
pub struct Aside(Response);

impl Aside {
    /// Reads it for the connection's sake: one whose body is over serves the next call, and one whose body is long is
    /// closed. One that stays open is held for as long as this is: its runner may work for as long as it is read.
    pub async fn read_out(self) {
        let _ = read_at_most(self.0, ASIDE_BYTES).await;
    }
}

/// How results are framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultFormat {
    EventStream,
    /// One result a line.
    JsonLines,
    /// `{"results": […]}`.
    Json,
}

/// Why a run was not taken.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the runner cannot be reached")]
    Unreachable(#[source] EgressError),
    /// Sent, but no answer came: the runner may have begun.
    #[error("the connection to the runner broke before it answered")]
    Broken(#[source] EgressError),
    #[error("the runner sent no answer in time")]
    Silent,
    /// Nothing was sent: the endpoint has failed too often of late, and is left alone for `wait` at least.
    #[error("the runner's endpoint failed too often; it is left alone for a while")]
    CircuitOpen { wait: Duration },
    /// There was nothing to send: a fault of ours.
    #[error("the run could not be posted: {0}")]
    Unprepared(&'static str),
    #[error("the runner answered HTTP {status}")]
    Refused {
        status: StatusCode,
        retry_after: Option<Duration>,
    },
    #[error("the runner answered with {0}, not with an event stream")]
    BadContentType(String),
}

/// Why an endpoint has no list.
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
    Bent(JsonFault),
}

impl RunnerClient {
    pub fn new(egress: Egress, clock: Clock) -> Self {
        Self { egress, clock }
    }

    /// Asks an endpoint for its manifests.
    pub async fn list_runners(&self, endpoint: &Endpoint) -> Result<Value, ListError> {
        let call = endpoint.list_call();
        let request = self.signed(endpoint, &call)?.timeout(LIST_TIMEOUT);
        let response = self.egress.send(request).await?;
        if !response.status().is_success() {
            return Err(ListError::Status(response.status()));
        }
        let body = read_at_most(response, LIST_BYTES + 1).await?;
        if body.len() > LIST_BYTES {
            return Err(ListError::TooLarge);
        }
        check_json_text(&body).map_err(ListError::Bent)?;
        serde_json::from_slice(&body).map_err(|_| ListError::NotJson)
    }

    /// Posts a run. `body` is the `AgentRunRequest` as JSON; `sent` says whether its runner may have any of it by now.
    pub async fn start_run(
        &self,
        endpoint: &Endpoint,
        (run, attempt): (RunId, u32),
        trace: TraceParent,
        body: String,
        sent: Arc<AtomicBool>,
    ) -> Result<Answer, StartError> {
        let call = endpoint.run_call(run, attempt, trace, body);
        let request = self
            .signed(endpoint, &call)
            .map_err(StartError::Unreachable)?;
        let length = call.body.len();
        // A body is asked for once there is a connection, and is told of before.
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
        judge_answer(response)
    }

    /// Tells a runner that its run was cancelled. Best effort: a runner may not know the call.
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
        read_at_most(response, ASIDE_BYTES).await.map(drop)
    }

    fn signed(&self, endpoint: &Endpoint, call: &Call) -> Result<RequestBuilder, EgressError> {
        let mut request = endpoint.request(&self.egress, call)?;
        for (name, value) in call.signature(&endpoint.secret, self.clock.now_seconds()) {
            request = request.header(name, value);
        }
        Ok(request)
    }
}

/// The same object with `action` first: what is signed is exactly what is sent.
fn with_action(action: &str, body: &str) -> String {
    format!("{{\"action\":\"{action}\",{}", &body[1..])
}

/// Whether an answer takes a run: its status, content type and encoding.
pub fn judge_answer(response: Response) -> Result<Answer, StartError> {
    if response.status() == StatusCode::ACCEPTED {
        return Ok(Answer::Deferred(Aside(response)));
    }
    judge_head(response).map(Answer::Started)
}

fn judge_head(response: Response) -> Result<Started, StartError> {
    let status = response.status();
    if status != StatusCode::OK {
        let retry_after = retry_after(response.headers());
        return Err(StartError::Refused {
            status,
            retry_after,
        });
    }
    if let Some(encoding) = response.headers().get(CONTENT_ENCODING)
        && encoding != "identity"
    {
        return Err(StartError::BadContentType("a content encoding".to_owned()));
    }
    let content_type = response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let essence = content_type
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    let format = match essence.to_ascii_lowercase().as_str() {
        "text/event-stream" => ResultFormat::EventStream,
        "application/x-ndjson" => ResultFormat::JsonLines,
        "application/json" => ResultFormat::Json,
        "" => return Err(StartError::BadContentType("no content type".to_owned())),
        other => {
            return Err(StartError::BadContentType(shown(other)));
        }
    };
    Ok(Started { response, format })
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

    /// A run that is cancelled meanwhile needs no grace.
    #[tokio::test]
    async fn what_waits_for_its_connection_is_not_sent() {
        for (scheme, is_sent) in [("https", false), ("http", true)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let allow = vec![address.to_string().parse().unwrap()];
            let egress = Egress::new(allow, Duration::from_mins(1)).unwrap();
            let client = RunnerClient::new(egress, Clock::system());
            let url = format!("{scheme}://{address}");
            let endpoint = endpoint(&url, EndpointMode::Standard);
            let sent = Arc::new(AtomicBool::new(false));
            let of = (RunId(Uuid::now_v7()), 1);
            let trace = RunTrace::of(of.0, None).header(false);
            let body = "{}".to_owned();
            let start = client.start_run(&endpoint, of, trace, body, Arc::clone(&sent));
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
    fn paths_stand_below_the_base_url_and_a_single_url_stays_itself() {
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
    fn an_action_stands_before_the_fields_of_its_body() {
        assert_eq!(
            with_action("run", r#"{"a":1}"#),
            r#"{"action":"run","a":1}"#
        );
    }
}
