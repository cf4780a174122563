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
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, RETRY_AFTER, TRANSFER_ENCODING,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse as _, Json, Response};
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use runner_kit::host::{CallAccess, Host};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::usage::{Spent, Usage, UsageReader};
use model_faults::ModelFaults;
use tool_gate::{Repetition, ToolGate};

/// Paths of the host API that a key opens; a trailing slash opens all paths below.
const OPEN: [&str; 3] = ["/openai/v1/", "/anthropic/", MCP];
const MCP: &str = "/mcp";
/// Headers that are not forwarded: they belong to one connection, or the relay sets them.
const OWN: [HeaderName; 4] = [HOST, CONNECTION, TRANSFER_ENCODING, AUTHORIZATION];
/// Maximum bytes of a request, as of a model request at the gateway.
const MESSAGE_BYTES: usize = 20 * 1024 * 1024;
/// Error code for the token of an earlier attempt.
const RUN_MOVED: &str = "run_moved";
/// Bytes of a refusal that are examined and logged.
const REFUSAL_BYTES: usize = 64 * 1024;
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

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
    // In memory, because a request is sent again after a restart of the gateway.
    let Ok(body) = axum::body::to_bytes(body, MESSAGE_BYTES).await else {
        return refusal(
            StatusCode::PAYLOAD_TOO_LARGE,
            "a request has at most 20 MiB",
        );
    };
    if is_call {
        return call_tool(relay, run, parts, &body).await;
    }
    pass(relay, run, parts, body, None).await
}

/// Forwards an MCP message after the permission that its tool needs.
async fn call_tool(
    relay: CredentialRelay,
    run: OpenRun,
    mut parts: Parts,
    body: &[u8],
) -> Response {
    let message = serde_json::from_slice::<Value>(body);
    let Ok(message @ Value::Object(_)) = message else {
        return refusal(StatusCode::BAD_REQUEST, "a message of MCP is a JSON object");
    };
    let gated = run.gate.gated(&message);
    if gated.is_some() {
        run.usage.record_tools();
    }
    let gate = run.gate.clone();
    // Forward the parsed message, not the original bytes: the gateway could read a duplicate member differently.
    let bytes = message.to_string().into();
    parts.headers.remove(IDEMPOTENCY_KEY);
    let repetition = gate.repetition(&message);
    if repetition == Repetition::ByKey {
        // One key for all repetitions: the gateway makes the call once, or knows that its outcome is unknown.
        let key = HeaderValue::from_str(&Uuid::new_v4().simple().to_string());
        let key = key.expect("hexadecimal digits are a valid header");
        parts.headers.insert(IDEMPOTENCY_KEY, key);
    }
    let passing = pass(
        relay,
        run,
        parts,
        bytes,
        (repetition != Repetition::Free).then(|| tool_gate::outcome_unknown(&message)),
    );
    match gated {
        Some(call) => gate.answer(call, passing.boxed()).await,
        None => passing.await,
    }
}

/// Forwards a request with the run token. A request that loses its gateway is sent again after the resume of the run. One
/// that has an effect and no idempotency key is answered with `unknown` once it was sent.
async fn pass(
    relay: CredentialRelay,
    run: OpenRun,
    parts: Parts,
    body: Bytes,
    unknown: Option<Value>,
) -> Response {
    let mut failing_since = None;
    let is_repeatable = unknown.is_none() || parts.headers.contains_key(IDEMPOTENCY_KEY);
    let sent = loop {
        let access = run.host.access().await;
        let sent = send(&relay, &access, &parts, body.clone()).await;
        let is_lost = match &sent {
            Ok(SentRequest::Moved(_)) => true,
            Ok(SentRequest::Answered(_)) => false,
            Err(error) => error.is_connect() || is_repeatable,
        };
        let since = *failing_since.get_or_insert_with(Instant::now);
        if !is_lost || !run.host.wait_to_repeat(&access, since).await {
            break sent;
        }
    };
    match sent {
        Ok(SentRequest::Answered(answer) | SentRequest::Moved(answer)) => {
            answered(parts.uri.path(), answer, run).await
        }
        Err(error) => {
            let (is_sent, error) = (!error.is_connect(), error.without_url());
            tracing::warn!(%error, "the gateway cannot be reached for a harness");
            match unknown.filter(|_| is_sent) {
                Some(unknown) => Json(unknown).into_response(),
                None => refusal(StatusCode::BAD_GATEWAY, "the gateway cannot be reached"),
            }
        }
    }
}

/// Response of the gateway to a forwarded request.
enum SentRequest {
    Answered(reqwest::Response),
    /// The token is of an earlier attempt: the request had no effect.
    Moved(reqwest::Response),
}

async fn send(
    relay: &CredentialRelay,
    access: &CallAccess,
    parts: &Parts,
    body: Bytes,
) -> reqwest::Result<SentRequest> {
    let path = parts.uri.path_and_query();
    let path = path.map_or(parts.uri.path(), |path| path.as_str());
    let url = format!("{}{path}", access.base_url);
    let request = relay.0.client.request(parts.method.clone(), url);
    let request = if body.is_empty() {
        request
    } else {
        request.body(body)
    };
    let request = request.headers(passed(&parts.headers));
    let answer = request.bearer_auth(&access.token).send().await?;
    if answer.status() != StatusCode::UNAUTHORIZED {
        return Ok(SentRequest::Answered(answer));
    }
    let (status, headers) = (answer.status(), answer.headers().clone());
    let bytes = answer.bytes().await?;
    // The faces have error bodies of their own form; the code is in each of them.
    let is_moved = String::from_utf8_lossy(&bytes).contains(RUN_MOVED);
    let mut answer = axum::http::Response::new(bytes);
    (*answer.status_mut(), *answer.headers_mut()) = (status, headers);
    Ok(if is_moved {
        SentRequest::Moved(answer.into())
    } else {
        SentRequest::Answered(answer.into())
    })
}

/// Forwards a response. It streams through; only its usage is read.
async fn answered(path: &str, answer: reqwest::Response, run: OpenRun) -> Response {
    let is_mcp = path == MCP;
    let (status, mut headers) = (answer.status(), passed(answer.headers()));
    if let Some(length) = answer.headers().get(CONTENT_LENGTH) {
        headers.insert(CONTENT_LENGTH, length.clone());
    }
    let is_fault = !is_mcp && (status.is_client_error() || status.is_server_error());
    if is_fault || status == StatusCode::TOO_MANY_REQUESTS {
        return refused(path, headers, answer, &run).await;
    }
    if is_mcp && status.is_success() {
        run.usage.record_tools();
    } else if status.is_success() {
        run.faults.record_success();
    }
    let mut reader = UsageReader::new(run.usage);
    let bytes = answer
        .bytes_stream()
        .inspect_ok(move |bytes| reader.read(bytes));
    (status, headers, Body::from_stream(bytes)).into_response()
}

/// Forwards an error response, logs that of a model, and signals an exhausted budget.
async fn refused(
    path: &str,
    headers: HeaderMap,
    answer: reqwest::Response,
    run: &OpenRun,
) -> Response {
    let (is_mcp, status) = (path == MCP, answer.status());
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

    use protocol::request::HostAccess;
    use protocol::resources::AgentResources;
    use runner_kit::testing::{FakeHost, resumable_host, resume};
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
            let gateway = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let host = runner_kit::host::HostClient::new().host(access_to(&gateway), None, 0);
            Self::of(host, gateway).await
        }

        /// Relay for a run of this host.
        async fn of(host: Host, gateway: TcpListener) -> Self {
            Self::granted(host, gateway, AgentResources::default()).await
        }

        /// Relay for a run with these resources, in mode `full`.
        async fn granted(host: Host, gateway: TcpListener, resources: AgentResources) -> Self {
            let (relay, relaying) = CredentialRelay::open_port(CancellationToken::new())
                .await
                .unwrap();
            let mut tasks = JoinSet::new();
            tasks.spawn(relaying);
            let (sender, receiver) = tokio::sync::oneshot::channel();
            results_of(|out| async move {
                let permissions = stage(&out, PermissionMode::Full).permissions;
                let gate = ToolGate::new(permissions, &resources, out.clone());
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
            let mut harness = self.send(request).await;
            let (mut gateway, _) = self.gateway.accept().await.unwrap();
            let mut passed = Vec::new();
            while !passed.ends_with(end.as_bytes()) {
                assert_ne!(gateway.read_buf(&mut passed).await.unwrap(), 0);
            }
            gateway.write_all(answer.as_bytes()).await.unwrap();
            drop(gateway);
            let passed = String::from_utf8(passed).unwrap().to_ascii_lowercase();
            (passed, answer_to(&mut harness).await)
        }

        /// Sends a request with the key of the run.
        async fn send(&self, request: &str) -> TcpStream {
            let head = format!(
                "authorization: Bearer {}\r\nconnection: close\r\n",
                self.opened.key()
            );
            let request = request.replace("HEAD\r\n", &head);
            let mut harness = TcpStream::connect(self.opened.relay.0.address)
                .await
                .unwrap();
            harness.write_all(request.as_bytes()).await.unwrap();
            harness
        }
    }

    fn access_to(gateway: &TcpListener) -> HostAccess {
        HostAccess {
            base_url: format!("http://{}", gateway.local_addr().unwrap()),
            token: "t".to_owned(),
            token_expires_at: 4_000,
        }
    }

    /// Response as received, in lower case.
    async fn answer_to(harness: &mut TcpStream) -> String {
        let mut answered = Vec::new();
        let reading = harness.read_to_end(&mut answered);
        let read = tokio::time::timeout(Duration::from_mins(1), reading).await;
        read.expect("the relay answers").unwrap();
        String::from_utf8(answered).unwrap().to_ascii_lowercase()
    }

    /// Relay for a resumable run, in front of a gateway.
    async fn resumable() -> (RelayTest, Host) {
        let gateway = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let host = resumable_host(access_to(&gateway), Duration::from_mins(1));
        (RelayTest::of(host.clone(), gateway).await, host)
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
    async fn forwards_chunked_requests_with_length() {
        let request = format!("{POST}transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
        let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\ndone\r\n0\r\n\r\n";
        let (received, answered) = passed(&request, "hello", answer).await;
        assert!(
            received.ends_with("\r\n\r\nhello") && received.contains("content-length: 5"),
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

    #[tokio::test]
    async fn lost_model_requests_wait_for_resume() {
        let moved = r#"{"error": {"code": "run_moved", "message": "m"}}"#;
        let length = moved.len();
        let moved = format!("HTTP/1.1 401 Unauthorized\r\ncontent-length: {length}\r\n\r\n{moved}");
        // The gateway dies with the request, or another one has the run.
        for end in ["", &moved] {
            let (wire, host) = resumable().await;
            let request = format!("{POST}content-length: 5\r\n\r\nhello");
            let mut harness = wire.send(&request).await;
            let (mut gateway, _) = wire.gateway.accept().await.unwrap();
            let mut received = Vec::new();
            while !received.ends_with(b"hello") {
                assert_ne!(gateway.read_buf(&mut received).await.unwrap(), 0);
            }
            gateway.write_all(end.as_bytes()).await.unwrap();
            drop((gateway, wire.gateway));
            let next = FakeHost::start().await.unwrap();
            next.answer(200, json!({"id": "resumed"}));
            resume(&host, next.access(0));
            let answered = answer_to(&mut harness).await;
            assert!(answered.starts_with("http/1.1 200") && answered.contains("resumed"));
            assert_eq!(next.calls().len(), 1);
            assert_eq!(next.calls()[0].path, "/openai/v1/responses");
        }
    }

    #[tokio::test]
    async fn lost_granted_calls_are_repeated_with_their_key() {
        let resources = json!({"tools": [{"tool_name": "post"}]});
        let gateway = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let host = resumable_host(access_to(&gateway), Duration::from_mins(1));
        let resources = serde_json::from_value(resources).unwrap();
        let wire = RelayTest::granted(host.clone(), gateway, resources).await;
        let call =
            json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "post"}});
        let call = call.to_string();
        let length = call.len();
        let head = "POST /mcp HTTP/1.1\r\nhost: x\r\nHEAD\r\n";
        let request = format!("{head}content-length: {length}\r\n\r\n{call}");
        let mut harness = wire.send(&request).await;
        let (mut gateway, _) = wire.gateway.accept().await.unwrap();
        let mut received = Vec::new();
        while !received.ends_with(b"}") {
            assert_ne!(gateway.read_buf(&mut received).await.unwrap(), 0);
        }
        drop((gateway, wire.gateway));
        let next = FakeHost::start().await.unwrap();
        next.answer(200, json!({"id": 7, "result": {}}));
        resume(&host, next.access(0));
        let answered = answer_to(&mut harness).await;
        assert!(answered.starts_with("http/1.1 200"), "{answered}");
        let received = String::from_utf8(received).unwrap();
        let key = received
            .lines()
            .find_map(|line| line.strip_prefix("idempotency-key: "));
        let calls = next.calls();
        assert_eq!(calls.len(), 1);
        assert_eq!(
            Some(calls[0].headers[IDEMPOTENCY_KEY].to_str().unwrap()),
            key
        );
    }

    #[tokio::test]
    async fn lost_tool_calls_have_unknown_outcome() {
        let (wire, _host) = resumable().await;
        let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "activate"}});
        let call = call.to_string();
        let length = call.len();
        let head = "POST /mcp HTTP/1.1\r\nhost: x\r\nHEAD\r\n";
        let request = format!("{head}content-length: {length}\r\n\r\n{call}");
        let (_, answered) = wire.pass(&request, "}", "").await;
        assert!(answered.contains("\"iserror\":true") && answered.contains("may have happened"));
        assert!(answered.contains("\"id\":7"), "{answered}");
    }
}
