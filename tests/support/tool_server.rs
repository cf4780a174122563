//! A tool server whose behavior the path selects, with the parts of MCP that tests need.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, LOCATION};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;

use super::upstream::DisconnectCounter;
use super::within;

/// Closes its connections on drop.
pub struct ToolServer {
    pub url: String,
    shared: Arc<ToolServerState>,
    _tasks: JoinSet<()>,
}

struct ToolServerState {
    seen: watch::Sender<Vec<ToolRequest>>,
    tools: Mutex<Value>,
    pushed: broadcast::Sender<String>,
    /// Ignores answers to its own requests.
    ignores_answers: AtomicBool,
    streams: watch::Sender<usize>,
    left: watch::Sender<u32>,
    /// Number of the current session, and the error for requests with an older one.
    session: Mutex<(u32, SessionError)>,
    /// `nextCursor` of each page.
    cursor: Mutex<Option<String>>,
}

/// Error response to a request with an expired session.
#[derive(Clone, Debug, Default)]
pub struct SessionError {
    pub status: u16,
    /// `ID` is replaced by the id of the request.
    pub body: String,
    pub kind: String,
}

/// A recorded request.
#[derive(Clone, Debug)]
pub struct ToolRequest {
    pub method: String,
    /// Path with query.
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Value,
}

impl ToolRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(header, _)| header == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// A tool in the format of an MCP tool list.
pub fn listed(name: &str, properties: &Value) -> Value {
    json!({"name": name, "description": format!("Does {name}."),
        "inputSchema": {"type": "object", "properties": properties}})
}

impl ToolServer {
    pub async fn start() -> Self {
        Self::start_at("127.0.0.1:0").await
    }

    pub async fn start_at(address: &str) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(ToolServerState {
            seen: watch::Sender::default(),
            tools: Mutex::new(json!([listed(
                "echo",
                &json!({"text": {"type": "string"}})
            )])),
            pushed: broadcast::Sender::new(16),
            ignores_answers: AtomicBool::new(false),
            streams: watch::Sender::default(),
            left: watch::Sender::default(),
            session: Mutex::default(),
            cursor: Mutex::default(),
        });
        let router = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&shared));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            url,
            shared,
            _tasks: tasks,
        }
    }

    /// Requests to this path so far.
    pub fn seen(&self, path: &str) -> Vec<ToolRequest> {
        let seen = self.shared.seen.borrow();
        let of_path = |one: &&ToolRequest| one.path.starts_with(path);
        seen.iter().filter(of_path).cloned().collect()
    }

    /// Waits for the first request that matches.
    pub async fn wait_for_match(
        &self,
        what: &str,
        is: impl Fn(&ToolRequest) -> bool,
    ) -> ToolRequest {
        let mut seen = self.shared.seen.subscribe();
        let found = within(what, seen.wait_for(|all| all.iter().any(&is))).await;
        found.unwrap().iter().find(|one| is(one)).unwrap().clone()
    }

    /// Waits until clients have disconnected from `count` slow calls.
    pub async fn left(&self, count: u32) {
        let mut left = self.shared.left.subscribe();
        let waiting = left.wait_for(|gone| *gone >= count);
        within("the caller to leave", waiting).await.unwrap();
    }

    /// Replaces the tool list and notifies connected clients.
    pub async fn list(&self, tools: Value) {
        let mut streams = self.shared.streams.subscribe();
        let open = streams.wait_for(|open| *open > 0);
        within("the gateway to listen", open).await.unwrap();
        *self.shared.tools.lock().unwrap() = tools;
        let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
        self.push(&changed.to_string());
    }

    /// Expires the session and answers requests under it with this error.
    pub fn forget_session(&self, status: u16, kind: &str, body: &str) {
        let mut session = self.shared.session.lock().unwrap();
        let (body, kind) = (body.to_owned(), kind.to_owned());
        *session = (session.0 + 1, SessionError { status, body, kind });
    }

    /// Returns this `nextCursor` with each page.
    pub fn repeat_cursor(&self, cursor: &str) {
        *self.shared.cursor.lock().unwrap() = Some(cursor.to_owned());
    }

    /// Sends `times` pings to connected clients at once, and ignores answers from then on.
    pub fn ping_and_ignore_answers(&self, times: usize) {
        self.shared.ignores_answers.store(true, Ordering::Relaxed);
        let ping = |id: usize| json!({"jsonrpc": "2.0", "id": id, "method": "ping"}).to_string();
        let pings: Vec<_> = (0..times).map(ping).collect();
        self.push(&pings.join("\n\ndata: "));
    }

    fn push(&self, message: &str) {
        self.shared.pushed.send(message.to_owned()).unwrap();
    }
}

async fn answer(State(shared): State<Arc<ToolServerState>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 4 << 20).await.unwrap();
    let header = |(name, value): (&reqwest::header::HeaderName, &reqwest::header::HeaderValue)| {
        (
            name.to_string(),
            value.to_str().unwrap_or_default().to_owned(),
        )
    };
    let seen = ToolRequest {
        method: parts.method.to_string(),
        path: parts.uri.to_string(),
        headers: parts.headers.iter().map(header).collect(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    shared.seen.send_modify(|all| all.push(seen.clone()));
    let first = parts.uri.path().split('/').nth(1).unwrap_or_default();
    match (first, seen.method.as_str()) {
        ("mcp", "GET") => stream(&shared),
        ("mcp", "POST") => mcp(&shared, &seen).await,
        ("mcp", _) => StatusCode::OK.into_response(),
        ("stateless", _) => stateless(&seen, "2026-07-28"),
        ("later", _) => stateless(&seen, "2027-03-01"),
        ("slow", _) => {
            let _leaving = DisconnectCounter(shared.left.clone());
            std::future::pending().await
        }
        (behaviour, _) => behave(behaviour, &seen).await,
    }
}

/// Responses of any HTTP server, correct or faulty.
async fn behave(behaviour: &str, seen: &ToolRequest) -> Response {
    match behaviour {
        "huge" => "x".repeat(5 << 20).into_response(),
        "long" => "y".repeat(300 << 10).into_response(),
        "drop" => {
            let broken = async { Err::<Bytes, _>(std::io::Error::other("cut")) };
            let parts = futures_util::stream::once(async { Ok(Bytes::from_static(b"{")) });
            let body = parts.chain(futures_util::stream::once(broken));
            (
                [(CONTENT_TYPE, "application/json")],
                Body::from_stream(body),
            )
                .into_response()
        }
        "redirect" => {
            let away = [(LOCATION, "http://169.254.169.254/latest/meta-data")];
            (StatusCode::FOUND, away).into_response()
        }
        "fail" => {
            let credential = seen.header("authorization").unwrap_or_default().to_owned();
            (StatusCode::INTERNAL_SERVER_ERROR, credential).into_response()
        }
        "refuse" => (StatusCode::BAD_REQUEST, "no such thing").into_response(),
        "busy" => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "7")]).into_response(),
        "binary" => ([(CONTENT_TYPE, "image/png")], "x").into_response(),
        "bent" => ([(CONTENT_TYPE, "application/json")], "{").into_response(),
        _ => axum::Json(json!({
            "method": seen.method, "path": seen.path, "body": seen.body,
            "authorization": seen.header("authorization"),
        }))
        .into_response(),
    }
}

/// Streams pushed messages until the client disconnects.
fn stream(shared: &Arc<ToolServerState>) -> Response {
    let pushed = shared.pushed.subscribe();
    shared.streams.send_modify(|open| *open += 1);
    let events = futures_util::stream::unfold(pushed, |mut pushed| async {
        let message = pushed.recv().await.ok()?;
        let event = format!("data: {message}\n\n");
        Some((Ok::<_, std::io::Error>(event), pushed))
    });
    // Send a comment first: the response head is sent with the first bytes.
    let hello = futures_util::stream::once(async { Ok(": hello\n\n".to_owned()) });
    let body = Body::from_stream(hello.chain(events));
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// An MCP server that speaks this revision only, without handshake and session.
fn stateless(seen: &ToolRequest, revision: &str) -> Response {
    let message = &seen.body;
    let (method, params) = (&message["method"], &message["params"]);
    let named = &params["_meta"]["io.modelcontextprotocol/protocolVersion"];
    let is_named = named == revision && seen.header("mcp-protocol-version") == Some(revision);
    let answer = |status, key: &str, value: Value| {
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], key: value});
        (status, axum::Json(answer)).into_response()
    };
    match method.as_str().unwrap_or_default() {
        method if method == "initialize" || !is_named => {
            let error = json!({"code": -32022, "message": "Unsupported protocol version",
                "data": {"supported": [revision], "requested": named}});
            answer(StatusCode::BAD_REQUEST, "error", error)
        }
        "tools/list" => {
            let tools = [listed("echo", &json!({"text": {"type": "string"}}))];
            let result = json!({"tools": tools, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"});
            answer(StatusCode::OK, "result", result)
        }
        "tools/call" => {
            let text = params["arguments"].to_string();
            let result =
                json!({"content": [{"type": "text", "text": text}], "resultType": "complete"});
            answer(StatusCode::OK, "result", result)
        }
        _ => {
            let error = json!({"code": -32601, "message": "Method not found"});
            answer(StatusCode::NOT_FOUND, "error", error)
        }
    }
}

async fn mcp(shared: &ToolServerState, seen: &ToolRequest) -> Response {
    let message = &seen.body;
    let (method, params) = (
        message["method"].as_str().unwrap_or_default(),
        &message["params"],
    );
    let (session, refusal) = shared
        .session
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let session = format!("s-{session}");
    let is_current_session = seen.header("mcp-session-id") == Some(&session);
    if method != "initialize" && !is_current_session {
        let body = refusal.body.replace("ID", &message["id"].to_string());
        let status = StatusCode::from_u16(refusal.status).unwrap();
        return (status, [(CONTENT_TYPE, refusal.kind)], body).into_response();
    }
    let result = match method {
        "ping" => json!({}),
        "initialize" => json!({"protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {"listChanged": true}},
            "serverInfo": {"name": "stub", "version": "1"}}),
        "tools/list" => {
            let tools = shared.tools.lock().unwrap_or_else(PoisonError::into_inner);
            let cursor = shared.cursor.lock().unwrap_or_else(PoisonError::into_inner);
            json!({"tools": *tools, "nextCursor": *cursor})
        }
        "tools/call" => match params["name"].as_str().unwrap() {
            "slow" => std::future::pending().await,
            "drop" | "redirect" | "fail" => {
                return behave(params["name"].as_str().unwrap(), seen).await;
            }
            "garbled" => {
                let head = format!(r#"{{"jsonrpc":"2.0","id":{},"result":"#, message["id"]);
                let text = br#"{"content":[{"type":"text","text":"a\ud83db\u0000c"#;
                let body = [head.as_bytes(), text, b"\xFFd\"}]}}"].concat();
                return ([(CONTENT_TYPE, "application/json")], body).into_response();
            }
            "no_id" => {
                let error =
                    r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"who is it"}}"#;
                return ([(CONTENT_TYPE, "application/json")], error).into_response();
            }
            "no_id_event" => {
                let error = "data: {\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32600,\"message\":\"who is it\"}}\n\n";
                let first = futures_util::stream::iter([Ok::<_, std::io::Error>(error)]);
                let body = Body::from_stream(first.chain(futures_util::stream::pending()));
                return ([(CONTENT_TYPE, "text/event-stream")], body).into_response();
            }
            "huge" => json!({"content": [{"type": "text", "text": "x".repeat(5 << 20)}]}),
            "many" => json!({"content": [], "structuredContent": {"many": vec![0; 200_000]}}),
            "wrong" => json!({"content": [{"type": "text", "text": "no"}], "isError": true}),
            "card" => {
                json!({"content": [{"type": "text", "text": "3 rows"}, {"type": "ui_card", "title": "x"}]})
            }
            _ => json!({"content": [{"type": "text", "text": params["arguments"].to_string()}]}),
        },
        _ if !message["result"].is_null() && shared.ignores_answers.load(Ordering::Relaxed) => {
            return std::future::pending().await;
        }
        _ => return StatusCode::ACCEPTED.into_response(),
    };
    let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
    // A client with a session opens the stream of list changes.
    ([("mcp-session-id", session)], axum::Json(answer)).into_response()
}

/// Timeout of slow tools in tests.
pub const TIMEOUT: Duration = Duration::from_secs(2);
