//! A fake provider that answers from a queue of replies and records requests.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, Uri};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{serve, within};

/// Response to one request.
pub enum UpstreamReply {
    Json(u16, Value),
    /// Status, headers and body.
    Headed(u16, Vec<(&'static str, String)>, String),
    /// Server-sent events, then a clean end.
    Events(Vec<String>),
    /// Server-sent events, then a broken connection.
    Cut(Vec<String>),
    /// Server-sent events, then silence while the client stays connected.
    Hold(Vec<String>),
    /// Server-sent events, then comments while the connection is open.
    Beats(Vec<String>),
    /// An event stream, byte for byte.
    Raw(Vec<u8>),
}

/// A recorded request.
#[derive(Clone, Debug)]
pub struct UpstreamRequest {
    pub path: String,
    pub query: Option<String>,
    pub headers: HeaderMap,
    pub body: Value,
}

#[derive(Clone, Default)]
struct UpstreamState {
    replies: Arc<Mutex<VecDeque<UpstreamReply>>>,
    requests: Arc<Mutex<Vec<UpstreamRequest>>>,
    left: watch::Sender<u32>,
}

/// Stops the server on drop.
pub struct Upstream {
    pub url: String,
    shared: UpstreamState,
    _server: JoinSet<()>,
}

impl Upstream {
    pub async fn start() -> Self {
        let shared = UpstreamState::default();
        let router = Router::new().fallback(answer).with_state(shared.clone());
        let (url, server) = serve(router).await;
        Self {
            url,
            shared,
            _server: server,
        }
    }

    /// Queues a response to the next unanswered request.
    pub fn reply(&self, reply: UpstreamReply) {
        self.shared.replies.lock().unwrap().push_back(reply);
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<UpstreamRequest> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Waits until clients have disconnected from `count` held responses.
    pub async fn left(&self, count: u32) {
        let mut left = self.shared.left.subscribe();
        let waiting = left.wait_for(|gone| *gone >= count);
        within("the caller to leave", waiting).await.unwrap();
    }
}

async fn answer(
    State(shared): State<UpstreamState>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    shared.requests.lock().unwrap().push(UpstreamRequest {
        path: uri.path().to_owned(),
        query: uri.query().map(str::to_owned),
        headers,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    });
    let reply = shared.replies.lock().unwrap().pop_front();
    let head = |status: u16| Response::builder().status(status);
    let streamed = || head(200).header("content-type", "text/event-stream");
    let frames = |events: Vec<String>| {
        let frames = events.into_iter().map(|event| format!("{event}\n\n"));
        stream::iter(frames.map(Ok::<_, std::io::Error>).collect::<Vec<_>>())
    };
    let response = match reply.expect("more requests than scripted replies") {
        UpstreamReply::Json(status, body) => head(status)
            .header("content-type", "application/json")
            .body(Body::from(body.to_string())),
        UpstreamReply::Headed(status, headers, body) => {
            let mut response = head(status);
            for (name, value) in headers {
                response = response.header(name, value);
            }
            response.body(Body::from(body))
        }
        UpstreamReply::Events(events) => streamed().body(Body::from_stream(frames(events))),
        UpstreamReply::Cut(events) => {
            let cut = stream::once(async {
                // Let earlier chunks reach the client first.
                tokio::time::sleep(Duration::from_millis(100)).await;
                Err(std::io::Error::other("cut"))
            });
            streamed().body(Body::from_stream(frames(events).chain(cut)))
        }
        UpstreamReply::Beats(events) => {
            let beats = stream::repeat_with(|| Ok(": still here\n\n".to_owned()));
            let beats = beats.then(|beat| async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                beat
            });
            streamed().body(Body::from_stream(frames(events).chain(beats)))
        }
        UpstreamReply::Raw(body) => streamed().body(Body::from(body)),
        UpstreamReply::Hold(events) => {
            let leaving = DisconnectCounter(shared.left.clone());
            let hold = stream::once(async move {
                let _leaving = leaving;
                std::future::pending::<Result<String, Infallible>>().await
            });
            let hold = hold.map(|_| Ok(String::new()));
            streamed().body(Body::from_stream(frames(events).chain(hold)))
        }
    };
    response.unwrap()
}

/// Counts a disconnected client on drop.
pub struct DisconnectCounter(pub watch::Sender<u32>);

impl Drop for DisconnectCounter {
    fn drop(&mut self) {
        self.0.send_modify(|left| *left += 1);
    }
}
