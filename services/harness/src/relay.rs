//! Credentials relay: a loopback port through which harnesses reach models and the MCP server of their run.
//!
//! A harness holds a key of this relay, not the run token. The key opens only the model faces and the MCP face, and
//! expires with the run. The relay replaces it by the run token and renews the token during long turns.

pub(crate) mod model_faults;
pub(crate) mod tool_gate;

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, RETRY_AFTER, TRANSFER_ENCODING,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode};
use axum::response::{IntoResponse as _, Json, Response};
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use runner_kit::host::Host;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::usage::{Spent, Usage, UsageReader};
use model_faults::ModelFaults;
use tool_gate::ToolGate;

/// Paths of the host API that a key opens; a trailing slash opens all paths below.
const OPEN: [&str; 3] = ["/openai/v1/", "/anthropic/", MCP];
const MCP: &str = "/mcp";
/// Headers that are not forwarded: they belong to one connection, or the relay sets them.
const OWN: [HeaderName; 4] = [HOST, CONNECTION, TRANSFER_ENCODING, AUTHORIZATION];
/// Maximum bytes of an MCP message.
const MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// Bytes of a refusal that are examined and logged.
const REFUSAL_BYTES: usize = 64 * 1024;
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Relay of one service. Clones share its keys.
#[derive(Clone)]
pub struct CredentialRelay(Arc<RelayKeys>);

struct RelayKeys {
    address: SocketAddr,
    runs: Mutex<HashMap<String, OpenRun>>,
    client: reqwest::Client,
}

/// Run that a relay key opens.
#[derive(Clone)]
struct OpenRun {
    host: Host,
    usage: Usage,
    spent: Spent,
    faults: ModelFaults,
    gate: ToolGate,
}

/// Key of one run. Dropping it revokes the key.
pub(crate) struct RelayKey {
    relay: CredentialRelay,
    key: String,
    usage: Usage,
    spent: Spent,
}

impl CredentialRelay {
    /// Listens on a free loopback port. The future serves until `stop` fires.
    #[expect(
        clippy::disallowed_methods,
        reason = "the client speaks to the gateway of each run and to nothing else"
    )]
    pub async fn open_port(
        stop: CancellationToken,
    ) -> io::Result<(Self, impl Future<Output = io::Result<()>> + Send + use<>)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let client = reqwest::Client::builder()
            // The run token goes to the gateway and to no target of a redirect.
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(io::Error::other)?;
        let relay = Self(Arc::new(RelayKeys {
            address: listener.local_addr()?,
            runs: Mutex::default(),
            client,
        }));
        let router = Router::new().fallback(forward).with_state(relay.clone());
        Ok((relay, runner_kit::serve(listener, router, stop)))
    }

    /// Port that a harness may connect to.
    pub(crate) fn port(&self) -> u16 {
        self.0.address.port()
    }

    /// Creates a key for the run of this host.
    pub(crate) fn open(&self, host: Host, faults: ModelFaults, gate: ToolGate) -> RelayKey {
        let key = format!("rk_{}", Uuid::new_v4().simple());
        let (usage, spent) = (Usage::default(), Spent::default());
        let run = OpenRun {
            host,
            usage: usage.clone(),
            spent: spent.clone(),
            faults,
            gate,
        };
        self.runs().insert(key.clone(), run);
        RelayKey {
            relay: self.clone(),
            key,
            usage,
            spent,
        }
    }

    // A panic cannot leave the map inconsistent, so a poisoned lock is usable.
    fn runs(&self) -> MutexGuard<'_, HashMap<String, OpenRun>> {
        self.0.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RelayKey {
    /// The key. It is a secret of the run.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Tokens used with this key.
    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Signal of an exhausted budget.
    pub(crate) fn spent(&self) -> &Spent {
        &self.spent
    }

    /// Base URL of a face, such as `/openai/v1`.
    pub(crate) fn url(&self, face: &str) -> String {
        format!("http://{}{face}", self.relay.0.address)
    }
}

impl Drop for RelayKey {
    fn drop(&mut self) {
        self.relay.runs().remove(&self.key);
    }
}

async fn forward(State(relay): State<CredentialRelay>, request: Request) -> Response {
    let run = key_of(request.headers()).and_then(|key| relay.runs().get(key).cloned());
    let Some(run) = run else {
        return refusal(
            StatusCode::UNAUTHORIZED,
            "the key opens nothing: its run is over",
        );
    };
    let path = request.uri().path();
    let is_open = OPEN.iter().any(|open| match open.strip_suffix('/') {
        Some(_) => path.starts_with(open),
        None => path == *open,
    });
    // The client library normalizes `..` and `%2e`: such a path could leave an open folder.
    if !is_open
        || path.contains("..")
        || path.contains('%') && path.to_ascii_lowercase().contains("%2e")
    {
        return refusal(
            StatusCode::NOT_FOUND,
            "a harness reaches only model faces and the MCP server",
        );
    }
    let is_call = path == MCP && request.method() == Method::POST;
    let (parts, body) = request.into_parts();
    if is_call {
        return call_tool(relay, run, parts, body).await;
    }
    let length = body.size_hint().exact();
    let body = reqwest::Body::wrap_stream(body.into_data_stream());
    pass(relay, run, parts, length, body).await
}

/// Forwards an MCP message after the permission that its tool needs.
async fn call_tool(relay: CredentialRelay, run: OpenRun, parts: Parts, body: Body) -> Response {
    let Ok(bytes) = axum::body::to_bytes(body, MESSAGE_BYTES).await else {
        return refusal(
            StatusCode::PAYLOAD_TOO_LARGE,
            "a message of MCP has at most 16 MiB",
        );
    };
    let message = serde_json::from_slice::<Value>(&bytes);
    let Ok(message @ Value::Object(_)) = message else {
        return refusal(StatusCode::BAD_REQUEST, "a message of MCP is a JSON object");
    };
    let gated = run.gate.gated(&message);
    if gated.is_some() {
        run.usage.record_tools();
    }
    let gate = run.gate.clone();
    // Forward the parsed message, not the original bytes: the gateway could read a duplicate member differently.
    let bytes = message.to_string().into_bytes();
    let length = Some(bytes.len() as u64);
    let passing = pass(relay, run, parts, length, bytes.into());
    match gated {
        Some(call) => gate.answer(call, passing.boxed()).await,
        None => passing.await,
    }
}

/// Forwards a request with the run token. The body has this length, or is chunked.
async fn pass(
    relay: CredentialRelay,
    run: OpenRun,
    parts: Parts,
    length: Option<u64>,
    body: reqwest::Body,
) -> Response {
    let is_mcp = parts.uri.path() == MCP;
    let path = parts
        .uri
        .path_and_query()
        .map_or(parts.uri.path(), |path| path.as_str());
    let url = format!("{}{path}", run.host.base_url());
    // Fetched for each request: the token expires within a long turn.
    let token = run.host.token().await;
    let mut headers = passed(&parts.headers);
    let sent = relay.0.client.request(parts.method, url);
    let sent = if length == Some(0) {
        sent
    } else {
        sent.body(body)
    };
    // Keep a declared length: some proxies in front of a gateway refuse chunked bodies.
    if let Some(length) = length.filter(|length| *length > 0) {
        headers.insert(CONTENT_LENGTH, length.into());
    }
    match sent.headers(headers).bearer_auth(token).send().await {
        Ok(answer) => {
            let (status, mut headers) = (answer.status(), passed(answer.headers()));
            if let Some(length) = answer.headers().get(CONTENT_LENGTH) {
                headers.insert(CONTENT_LENGTH, length.clone());
            }
            let is_fault = !is_mcp && (status.is_client_error() || status.is_server_error());
            if is_fault || status == StatusCode::TOO_MANY_REQUESTS {
                return refused(status, headers, answer, &run).await;
            }
            if is_mcp && status.is_success() {
                run.usage.record_tools();
            } else if status.is_success() {
                run.faults.record_success();
            }
            // Responses stream through; only their usage is read.
            let mut reader = UsageReader::new(run.usage);
            let bytes = answer
                .bytes_stream()
                .inspect_ok(move |bytes| reader.read(bytes));
            (status, headers, Body::from_stream(bytes)).into_response()
        }
        Err(error) => {
            let error = error.without_url();
            tracing::warn!(%error, "the gateway cannot be reached for a harness");
            refusal(StatusCode::BAD_GATEWAY, "the gateway cannot be reached")
        }
    }
}

/// Forwards an error response, logs that of a model, and signals an exhausted budget.
async fn refused(
    status: StatusCode,
    headers: HeaderMap,
    answer: reqwest::Response,
    run: &OpenRun,
) -> Response {
    let is_mcp = answer.url().path().ends_with(MCP);
    let (mut seen, mut parts) = (Vec::new(), Vec::new());
    let mut rest = answer.bytes_stream();
    while seen.len() < REFUSAL_BYTES
        && let Some(part) = rest.next().await
    {
        if let Ok(bytes) = &part {
            seen.extend_from_slice(bytes);
        }
        let is_cut = part.is_err();
        parts.push(part);
        if is_cut {
            break;
        }
    }
    // Harnesses retry this status without end, so an exhausted budget has to end the run.
    if status == StatusCode::TOO_MANY_REQUESTS {
        run.spent.check_refusal(&seen);
    }
    if !is_mcp {
        let wait = headers.get(RETRY_AFTER);
        let wait = wait.and_then(|value| value.to_str().ok());
        run.faults.record_failure(status, wait, &seen).await;
    }
    // Forward the complete body and its read error: otherwise a truncated body would look complete.
    let body = futures_util::stream::iter(parts).chain(rest);
    (status, headers, Body::from_stream(body)).into_response()
}

fn key_of(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.strip_prefix("Bearer "));
    bearer.or_else(|| headers.get(API_KEY)?.to_str().ok())
}

/// Forwarded headers: all except those of the connection, credentials, and body length.
fn passed(headers: &HeaderMap) -> HeaderMap {
    let forwarded = headers
        .iter()
        .filter(|(name, _)| !OWN.contains(name) && **name != API_KEY && **name != CONTENT_LENGTH);
    forwarded
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Error body in a form that clients of all faces parse.
fn refusal(status: StatusCode, message: &str) -> Response {
    let error = json!({"type": "error", "error": {"type": "authentication_error", "code": "harness.refused", "message": message}});
    (status, Json(error)).into_response()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use protocol::resources::AgentResources;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::task::JoinSet;

    use super::*;
    use crate::config::PermissionMode;
    use crate::turn::testing::{results_of, stage};

    /// Relay in front of a gateway with one canned response.
    struct RelayTest {
        opened: RelayKey,
        gateway: TcpListener,
        _relaying: JoinSet<io::Result<()>>,
    }

    impl RelayTest {
        async fn open() -> Self {
            let (relay, relaying) = CredentialRelay::open_port(CancellationToken::new())
                .await
                .unwrap();
            let mut tasks = JoinSet::new();
            tasks.spawn(relaying);
            let gateway = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let base_url = format!("http://{}", gateway.local_addr().unwrap());
            let access = json!({"base_url": base_url, "token": "t", "token_expires_at": 4_000});
            let access = serde_json::from_value(access).unwrap();
            let host = runner_kit::host::HostClient::new().host(access, None, 0);
            let (sender, receiver) = tokio::sync::oneshot::channel();
            results_of(|out| async move {
                let permissions = stage(&out, PermissionMode::ReadOnly).permissions;
                let gate = ToolGate::new(permissions, &AgentResources::default(), out.clone());
                assert!(sender.send((ModelFaults::new(out), gate)).is_ok());
            })
            .await;
            let (faults, gate) = receiver.await.unwrap();
            Self {
                opened: relay.open(host, faults, gate),
                gateway,
                _relaying: tasks,
            }
        }

        /// Sends a request, answers it after `end`, and closes. Returns request and response as received.
        async fn pass(&self, request: &str, end: &str, answer: &str) -> (String, String) {
            let head = format!(
                "authorization: Bearer {}\r\nconnection: close\r\n",
                self.opened.key()
            );
            let request = request.replace("HEAD\r\n", &head);
            let mut harness = TcpStream::connect(self.opened.relay.0.address)
                .await
                .unwrap();
            harness.write_all(request.as_bytes()).await.unwrap();
            let (mut gateway, _) = self.gateway.accept().await.unwrap();
            let mut passed = Vec::new();
            while !passed.ends_with(end.as_bytes()) {
                assert_ne!(gateway.read_buf(&mut passed).await.unwrap(), 0);
            }
            gateway.write_all(answer.as_bytes()).await.unwrap();
            drop(gateway);
            let mut answered = Vec::new();
            harness.read_to_end(&mut answered).await.unwrap();
            let text = |bytes| String::from_utf8(bytes).unwrap().to_ascii_lowercase();
            (text(passed), text(answered))
        }
    }

    const POST: &str = "POST /openai/v1/responses HTTP/1.1\r\nhost: x\r\nHEAD\r\n";

    async fn passed(request: &str, end: &str, answer: &str) -> (String, String) {
        let wire = RelayTest::open().await;
        let passing = wire.pass(request, end, answer);
        tokio::time::timeout(Duration::from_mins(1), passing)
            .await
            .expect("the relay passes it")
    }

    #[tokio::test]
    async fn lengths_of_bodies_pass_both_ways() {
        let request = format!("{POST}content-length: 5\r\n\r\nhello");
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone";
        let (received, answered) = passed(&request, "hello", answer).await;
        assert!(received.contains("\r\ncontent-length: 5\r\n"), "{received}");
        assert!(!received.contains("transfer-encoding"), "{received}");
        assert!(answered.contains("\r\ncontent-length: 4\r\n"), "{answered}");
        assert!(!answered.contains("transfer-encoding") && answered.ends_with("\r\n\r\ndone"));
    }

    #[tokio::test]
    async fn bodies_in_chunks_stay_in_chunks() {
        let request = format!("{POST}transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
        let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\ndone\r\n0\r\n\r\n";
        let (received, answered) = passed(&request, "0\r\n\r\n", answer).await;
        assert!(
            received.contains("5\r\nhello") && !received.contains("content-length"),
            "{received}"
        );
        assert!(answered.ends_with("4\r\ndone\r\n0\r\n\r\n"), "{answered}");
    }

    #[tokio::test]
    async fn forwards_requests_without_body() {
        let request = format!("{POST}content-length: 0\r\n\r\n");
        let answer = "HTTP/1.1 204 No Content\r\n\r\n";
        let (received, answered) = passed(&request, "\r\n\r\n", answer).await;
        assert!(!received.contains("transfer-encoding"), "{received}");
        assert!(answered.starts_with("http/1.1 204"), "{answered}");
    }

    #[tokio::test]
    async fn reports_truncated_responses() {
        let request = format!("{POST}content-length: 5\r\n\r\nhello");
        for status in ["200 OK", "429 Too Many Requests"] {
            for cut in [
                "content-length: 9\r\n\r\nhalf",
                "transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
            ] {
                let answer = format!("HTTP/1.1 {status}\r\n{cut}");
                let (_, answered) = passed(&request, "hello", &answer).await;
                // Either no head arrives, or a head that announces more than the body has.
                let framings = ["content-length: 9\r\n", "chunked\r\n"];
                let is_announced = framings.iter().any(|framing| answered.contains(framing));
                assert!(answered.is_empty() || is_announced, "{answered}");
                assert!(!answered.ends_with("0\r\n\r\n"), "{answered}");
            }
        }
    }

    #[tokio::test]
    async fn forwards_long_error_responses() {
        let request = format!("{POST}content-length: 5\r\n\r\nhello");
        let body = "x".repeat(3 * REFUSAL_BYTES);
        let head = format!(
            "HTTP/1.1 429 Too Many Requests\r\ncontent-length: {}",
            body.len()
        );
        let (_, answered) = passed(&request, "hello", &format!("{head}\r\n\r\n{body}")).await;
        assert!(answered.ends_with(&body));
    }
}
