//! The Runner API, called (protocol §1): list, run, cancel. Every request is signed.

use std::time::Duration;

use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Method, StatusCode};
use protocol::admin::EndpointMode;
use protocol::id::RunId;
use reqwest::Response;
use serde_json::{Value, json};
use url::Url;
use uuid::Uuid;

use crate::clock::Clock;
use crate::outbound::egress::{Egress, EgressError};
use crate::outbound::signature::SigningSecret;

/// How long a list of runners may take in all.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// How large a list of runners may be.
const LIST_BYTES: usize = 4 * 1024 * 1024;
/// How much of a refusal's body is read.
const REFUSAL_BYTES: usize = 4 * 1024;
/// The longest wait that a runner may ask for.
const LONGEST_WAIT: Duration = Duration::from_hours(1);

/// An endpoint, ready to be called.
#[derive(Debug)]
pub struct Endpoint {
    pub base_url: Url,
    pub mode: EndpointMode,
    pub secret: SigningSecret,
    /// Static headers: secrets.
    pub headers: HeaderMap,
}

impl Endpoint {
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
}

impl RunnerClient {
    pub fn new(egress: Egress, clock: Clock) -> Self {
        Self { egress, clock }
    }

    /// Asks an endpoint for its manifests.
    pub async fn list_runners(&self, endpoint: &Endpoint) -> Result<Value, ListError> {
        let id = format!("list_{}", Uuid::now_v7().simple());
        let (method, url, body) = match endpoint.mode {
            EndpointMode::Standard => (Method::GET, endpoint.url(&["runners"]), String::new()),
            EndpointMode::SingleUrl => (
                Method::POST,
                endpoint.url(&[]),
                json!({"action": "list_runners"}).to_string(),
            ),
        };
        let request = self
            .signed(endpoint, &method, &url, &id, body)?
            .timeout(LIST_TIMEOUT);
        let response = self
            .egress
            .send(request.header(ACCEPT, "application/json"))
            .await?;
        if !response.status().is_success() {
            return Err(ListError::Status(response.status()));
        }
        let body = read_at_most(response, LIST_BYTES + 1).await?;
        if body.len() > LIST_BYTES {
            return Err(ListError::TooLarge);
        }
        serde_json::from_slice(&body).map_err(|_| ListError::NotJson)
    }

    /// Posts a run. `body` is the `AgentRunRequest` as JSON.
    pub async fn start_run(
        &self,
        endpoint: &Endpoint,
        run: RunId,
        attempt: u32,
        body: String,
    ) -> Result<Started, StartError> {
        let hex = run.0.simple().to_string();
        let id = format!("run_{hex}_{attempt}");
        let (url, body) = match endpoint.mode {
            EndpointMode::Standard => (endpoint.url(&["runs"]), body),
            EndpointMode::SingleUrl => (endpoint.url(&[]), with_action("run", &body)),
        };
        let request = self
            .signed(endpoint, &Method::POST, &url, &id, body)
            .map_err(StartError::Unreachable)?
            .header(ACCEPT, "text/event-stream")
            .header("traceparent", format!("00-{hex}-{}-01", &hex[16..]))
            .header("runnel-run-id", run.to_string())
            .header("runnel-attempt", attempt.to_string());
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
        judge_head(response)
    }

    /// Tells a runner that its run was cancelled. Best effort: a runner may not know the call.
    pub async fn cancel_run(
        &self,
        endpoint: &Endpoint,
        run: RunId,
        attempt: u32,
        patience: Duration,
    ) -> Result<(), EgressError> {
        let id = format!("cancel_{}_{attempt}", run.0.simple());
        let body = json!({"run_id": run.to_string()}).to_string();
        let (url, body) = match endpoint.mode {
            EndpointMode::Standard => (endpoint.url(&["runs", &run.to_string(), "cancel"]), body),
            EndpointMode::SingleUrl => (endpoint.url(&[]), with_action("cancel", &body)),
        };
        let request = self
            .signed(endpoint, &Method::POST, &url, &id, body)?
            .timeout(patience);
        let response = self
            .egress
            .send(request.header("runnel-run-id", run.to_string()))
            .await?;
        read_at_most(response, REFUSAL_BYTES).await.map(drop)
    }

    fn signed(
        &self,
        endpoint: &Endpoint,
        method: &Method,
        url: &Url,
        id: &str,
        body: String,
    ) -> Result<reqwest::RequestBuilder, EgressError> {
        let now = self.clock.now_seconds();
        let signature = endpoint.secret.sign(id, now, body.as_bytes());
        let mut request = self
            .egress
            .request(method.clone(), url)?
            .headers(endpoint.headers.clone())
            .header(ACCEPT_ENCODING, "identity")
            .header("webhook-id", id)
            .header("webhook-timestamp", now.to_string())
            .header("webhook-signature", signature);
        if *method == Method::POST {
            request = request.header(CONTENT_TYPE, "application/json").body(body);
        }
        Ok(request)
    }
}

/// The same object with `action` first: what is signed is exactly what is sent.
fn with_action(action: &str, body: &str) -> String {
    format!("{{\"action\":\"{action}\",{}", &body[1..])
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
        // The header is the runner's text: a short, plain name of it is enough.
        other => {
            return Err(StartError::BadContentType(
                other.chars().take(100).collect(),
            ));
        }
    };
    Ok(Started { response, format })
}

/// Only the form in seconds: a date would need the runner's clock to be right.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers
        .get(RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_WAIT))
}

async fn read_at_most(mut response: Response, most: usize) -> Result<Vec<u8>, EgressError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        let room = most - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() == most {
            break;
        }
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

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
