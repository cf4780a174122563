//! Test helpers for runners: a host API on a loopback port, and a run request.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Json, Response};
use futures_util::stream;
use protocol::request::{AgentRunRequest, HostAccess};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::host::{Host, HostClient, ResumeTerms};
use crate::server::serve::serve;

/// Run token of a [`FakeHost`].
pub const TOKEN: &str = "test-run-token";
/// Run id of [`run_request`].
pub const RUN_ID: &str = "01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e61";

/// Host API that records calls and returns scripted responses. Dropping it closes it.
#[derive(Debug)]
pub struct FakeHost {
    address: SocketAddr,
    script: Arc<Mutex<ResponseScript>>,
    _server: JoinSet<io::Result<()>>,
}

/// Request that a [`FakeHost`] has received.
#[derive(Clone, Debug, PartialEq)]
pub struct FakeHostCall {
    pub method: Method,
    /// Path and query after `/host/v1`, unparsed.
    pub path: String,
    pub headers: HeaderMap,
    /// JSON body; null without one.
    pub body: Value,
}

#[derive(Debug, Default)]
struct ResponseScript {
    calls: Vec<FakeHostCall>,
    answers: VecDeque<ScriptedResponse>,
}

#[derive(Debug)]
enum ScriptedResponse {
    Json(StatusCode, Value),
    Silence,
    Cut,
}

impl FakeHost {
    /// Listens on a free port. Calls without a scripted response get [`run_record`].
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let script = Arc::<Mutex<ResponseScript>>::default();
        let router = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&script));
        let mut server = JoinSet::new();
        server.spawn(serve(listener, router, CancellationToken::new()));
        Ok(Self {
            address,
            script,
            _server: server,
        })
    }

    /// Appends a scripted response.
    pub fn answer(&self, status: u16, body: Value) {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        self.push(ScriptedResponse::Json(status, body));
    }

    /// Leaves the next call without a response.
    pub fn stay_silent(&self) {
        self.push(ScriptedResponse::Silence);
    }

    /// Breaks the connection of the next call after the response head.
    pub fn cut(&self) {
        self.push(ScriptedResponse::Cut);
    }

    /// Received calls, oldest first.
    pub fn calls(&self) -> Vec<FakeHostCall> {
        lock(&self.script).calls.clone()
    }

    /// Host access for a run. The token expires an hour after `now_seconds`.
    pub fn access(&self, now_seconds: i64) -> HostAccess {
        HostAccess {
            base_url: format!("http://{}/host/v1", self.address),
            token: TOKEN.to_owned(),
            token_expires_at: now_seconds + 3600,
        }
    }

    fn push(&self, answer: ScriptedResponse) {
        lock(&self.script).answers.push_back(answer);
    }
}

async fn answer(
    State(script): State<Arc<Mutex<ResponseScript>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path = uri
        .path_and_query()
        .map(ToString::to_string)
        .unwrap_or_default();
    let path = path.strip_prefix("/host/v1").unwrap_or(&path).to_owned();
    let body = serde_json::from_slice(&body).unwrap_or_default();
    let answer = {
        let mut script = lock(&script);
        script.calls.push(FakeHostCall {
            method,
            path,
            headers,
            body,
        });
        script.answers.pop_front()
    };
    match answer {
        None => Json(run_record()).into_response(),
        Some(ScriptedResponse::Json(status, Value::Null)) => status.into_response(),
        Some(ScriptedResponse::Json(status, body)) => (status, Json(body)).into_response(),
        Some(ScriptedResponse::Silence) => std::future::pending().await,
        Some(ScriptedResponse::Cut) => {
            let error = io::Error::from(io::ErrorKind::ConnectionAborted);
            Body::from_stream(stream::iter([Err::<Bytes, _>(error)])).into_response()
        }
    }
}

fn lock(script: &Mutex<ResponseScript>) -> std::sync::MutexGuard<'_, ResponseScript> {
    script.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Response of `GET /run` for a live run without a cancel request.
pub fn run_record() -> Value {
    json!({
        "run_id": RUN_ID, "event_id": "m-1001", "agent_id": "01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e62",
        "runner_id": "plugin:runnel/echo/default", "workspace_id": "default",
        "conversation_id": "c-7", "thread_id": null, "bot_id": null,
        "status": "running", "status_reason": null, "created_at": 1_795_291_200,
        "started_at": 1_795_291_200, "finished_at": null, "deadline_at": 1_795_291_500,
        "cancel_requested_at": null, "dispatch_attempts": 1, "last_sequence": 0,
        "output": null, "error": null, "usage": null, "metadata": {},
    })
}

/// Host access of a run that calls no host: nothing listens at its address.
pub fn offline_access() -> HostAccess {
    HostAccess {
        base_url: "http://127.0.0.1:9/host/v1".to_owned(),
        token: TOKEN.to_owned(),
        token_expires_at: 0,
    }
}

/// Host API of a resumable run at its first attempt. Calls wait up to `within` for [`resume`].
pub fn resumable_host(access: HostAccess, within: Duration) -> Host {
    let terms = ResumeTerms {
        attempt: 1,
        within,
        deadline_at: None,
        now_seconds: 0,
    };
    HostClient::new().resumable_host(access, terms)
}

/// Gives the host the access of the next attempt, as the resume of its run does.
pub fn resume(host: &Host, access: HostAccess) {
    host.resume(access, host.attempt() + 1);
}

/// Run request to `runner_id` with one message of conversation `c-7`.
pub fn run_request(
    runner_id: &str,
    text: &str,
    host: &HostAccess,
) -> serde_json::Result<AgentRunRequest> {
    serde_json::from_value(json!({
        "runner_id": runner_id,
        "runner_name": runner_id.rsplit('/').next(),
        "host": host,
        "context": {
            "run_id": RUN_ID,
            "trigger": { "type": "message.received", "source": "api" },
            "event": { "event_id": "m-1001", "event_type": "message.received", "source": "api" },
            "conversation": { "conversation_id": "c-7" },
            "input": { "text": text, "contents": [{ "type": "text", "text": text }] },
            "delivery": { "surface": "api", "supports_streaming": true },
            "resources": {},
            "runtime": { "host": "runnel", "protocol_version": "1" },
        },
    }))
}
