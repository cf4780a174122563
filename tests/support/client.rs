//! HTTP client of the gateway: posts events and reads runs.

use std::time::Duration;

use reqwest::header::{ACCEPT, HeaderMap};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::ledger::Ledger;
use super::stream::Stream;
use super::within;

/// Pause before a repeated connection.
const RECONNECT_AFTER: Duration = Duration::from_millis(20);

#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    pub url: String,
    pub key: String,
}

#[derive(Debug)]
pub struct ApiResponse {
    pub status: u16,
    pub headers: HeaderMap,
    /// JSON body, null if there is none.
    pub body: Value,
}

impl ApiResponse {
    /// The body without an id, for a comparison with the answer about another object.
    pub fn body_without(&self, id: &str) -> String {
        self.body.to_string().replace(id, "")
    }

    /// Code of the error. Google's form has it in its details.
    pub fn code(&self) -> &Value {
        let code = self.error("code");
        let of_google = &self.error("details")[0]["metadata"]["code"];
        if of_google.is_null() { code } else { of_google }
    }

    pub fn error(&self, member: &str) -> &Value {
        &self.body["error"][member]
    }

    pub fn detail(&self, member: &str) -> &Value {
        &self.error("details")[member]
    }

    /// The answer, which must have this status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.body);
        self
    }

    /// Checks the status and a member of the body.
    #[track_caller]
    pub fn assert_body(&self, status: u16, member: &str, value: impl Into<Value>) {
        let found = (self.status, &self.body[member]);
        assert_eq!(found, (status, &value.into()), "{}", self.body);
    }

    /// Checks the status and a member of the error.
    #[track_caller]
    pub fn assert_error(&self, status: u16, member: &str, value: &str) {
        let found = (self.status, self.error(member));
        assert_eq!(found, (status, &json!(value)), "{}", self.body);
    }

    /// Checks the status and a member of the error's details.
    #[track_caller]
    pub fn assert_detail(&self, status: u16, member: &str, value: &str) {
        let found = (self.status, self.detail(member));
        assert_eq!(found, (status, &json!(value)), "{}", self.body);
    }

    #[track_caller]
    pub fn run_id(&self) -> String {
        assert_eq!(self.status, 202, "{}", self.body);
        self.body["run_id"].as_str().unwrap().to_owned()
    }

    pub fn is_replay(&self) -> bool {
        self.headers
            .get("idempotent-replayed")
            .is_some_and(|value| value == "true")
    }
}

/// A message event in a conversation. The stub runner selects its script by `event_id`.
pub fn message(event_id: &str) -> Value {
    json!({
        "event_type": "message.received",
        "event_id": event_id,
        "conversation": {"conversation_id": "c-7"},
        "actor": {"actor_type": "user", "actor_id": "u-1"},
        "input": {"text": "hello big world"},
    })
}

impl Client {
    pub fn new(url: &str, key: &str) -> Self {
        // No connection pool: a pooled connection could belong to a killed gateway.
        let http = reqwest::Client::builder()
            .no_proxy()
            .pool_max_idle_per_host(0);
        let http = http.build().unwrap();
        Self {
            http,
            url: url.to_owned(),
            key: key.to_owned(),
        }
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.anonymous(method, path).bearer_auth(&self.key)
    }

    pub fn anonymous(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url))
    }

    pub fn posting(&self, event: &Value) -> RequestBuilder {
        self.request(Method::POST, "/v1/events").json(event)
    }

    pub async fn get(&self, path: &str) -> ApiResponse {
        send(self.request(Method::GET, path)).await.unwrap()
    }

    pub async fn call(&self, method: Method, path: &str, body: &Value) -> ApiResponse {
        send(self.request(method, path).json(body)).await.unwrap()
    }

    pub async fn create(&self, path: &str, object: &Value) -> ApiResponse {
        self.call(Method::POST, path, object).await
    }

    pub async fn delete(&self, path: &str) -> ApiResponse {
        send(self.request(Method::DELETE, path)).await.unwrap()
    }

    pub async fn post(&self, event: &Value) -> ApiResponse {
        send(self.posting(event)).await.unwrap()
    }

    /// Posts the event and reads the run's stream from the same response.
    pub async fn post_streaming(&self, event: &Value) -> Stream {
        let stream = stream(self.posting(event)).await.unwrap();
        assert_eq!(stream.response.status(), 200);
        stream
    }

    pub async fn cancel(&self, run_id: &str) -> ApiResponse {
        let path = format!("/v1/runs/{run_id}/cancel");
        send(self.request(Method::POST, &path)).await.unwrap()
    }

    pub fn following(&self, run_id: &str) -> RequestBuilder {
        self.request(Method::GET, &format!("/v1/runs/{run_id}/events"))
    }

    /// The run's stream after event `after`.
    pub async fn follow(&self, run_id: &str, after: u64) -> Stream {
        let request = self.following(run_id).header("last-event-id", after);
        stream(request).await.unwrap()
    }

    pub async fn run(&self, run_id: &str) -> Value {
        self.get(&format!("/v1/runs/{run_id}"))
            .await
            .expect(200)
            .body
    }

    /// Waits until the run ends and returns it.
    pub async fn finished(&self, run_id: &str) -> Value {
        self.follow(run_id, 0).await.rest().await;
        self.run(run_id).await
    }

    /// All events of the run, collected over all pages.
    pub async fn ledger(&self, run_id: &str) -> Ledger {
        let mut events = Vec::new();
        loop {
            let path = format!("/v1/runs/{run_id}/events?limit=100&after={}", events.len());
            let request = self
                .request(Method::GET, &path)
                .header(ACCEPT, "application/json");
            let response = within("a page", request.send()).await.unwrap();
            assert_eq!(response.status(), 200);
            let page: Page = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap();
            events.extend(page.items.iter().map(|item| item.get().to_owned()));
            if !page.has_more {
                return Ledger(events);
            }
        }
    }

    pub async fn rejections(&self, run_id: &str) -> Vec<Value> {
        let answer = self.get(&format!("/v1/runs/{run_id}/rejections")).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body["items"].as_array().unwrap().clone()
    }
}

#[derive(Deserialize)]
struct Page {
    items: Vec<Box<RawValue>>,
    has_more: bool,
}

/// Fails if the gateway is unreachable or exits before it answers.
pub async fn send(request: RequestBuilder) -> reqwest::Result<ApiResponse> {
    let response = within("an answer", request.send()).await?;
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let bytes = within("the answer's body", body_of(response)).await?;
    let body = if bytes.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&bytes).unwrap()
    };
    Ok(ApiResponse {
        status,
        headers,
        body,
    })
}

/// The body of a response; of the feed, which has no end, its first frame.
pub async fn body_of(mut response: Response) -> reqwest::Result<Vec<u8>> {
    let is_endless = response.status() == 200 && response.url().path() == "/v1/feed";
    if is_endless {
        let first = response.chunk().await?;
        return Ok(first.unwrap_or_default().into());
    }
    Ok(response.bytes().await?.into())
}

/// Like `send`, but returns the body as a stream of frames.
pub async fn stream(request: RequestBuilder) -> reqwest::Result<Stream> {
    let request = request.header(ACCEPT, "text/event-stream");
    Ok(Stream::new(
        within("the head of a stream", request.send()).await?,
    ))
}

/// A run's stream that was read over several connections.
#[derive(Default)]
pub struct ReconnectedStream {
    /// The events, byte for byte.
    pub events: Vec<String>,
    /// Connections that ended before the terminal.
    pub breaks: usize,
}

impl ReconnectedStream {
    fn has_ended(&self) -> bool {
        self.events.last().is_some_and(|last| {
            let last: Value = serde_json::from_str(last).unwrap();
            last["type"].as_str().unwrap().starts_with("run.")
        })
    }
}

/// Reads a run's stream to its terminal, each connection after the last event of the one before. `replica` selects the
/// client of each connection.
pub async fn read_through(run_id: &str, mut replica: impl FnMut() -> Client) -> ReconnectedStream {
    let mut read = ReconnectedStream::default();
    while !read.has_ended() {
        let request = replica()
            .following(run_id)
            .header("last-event-id", read.events.len());
        match stream(request).await {
            Ok(mut stream) if stream.response.status() == StatusCode::OK => {
                while let Some(event) = stream.event().await {
                    read.events.push(event.data);
                }
                read.breaks += usize::from(!read.has_ended());
            }
            Ok(stream) => {
                let status = stream.response.status();
                assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
            }
            // The gateway is down.
            Err(_) => {}
        }
        if !read.has_ended() {
            tokio::time::sleep(RECONNECT_AFTER).await;
        }
    }
    read
}
