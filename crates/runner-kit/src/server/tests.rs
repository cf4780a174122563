use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::to_bytes;
use axum::http::Request;
use protocol::JsonObject;
use protocol::sse::{Decoder, SseItem, SseLimits};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::*;
use crate::runner::{ResultStream, RunError};
use crate::testing::{FakeHost, RUN_ID, run_request};
use crate::{results, stream as results_of};
use clock::Clock;

mod resumable;

const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const RUNNER_ID: &str = "plugin:runnel/test/default";
const PATIENCE: Duration = Duration::from_secs(10);

struct ScriptedRunner<F>(F);

impl<F: Fn(RunHandle) -> ResultStream + Send + Sync + 'static> Runner for ScriptedRunner<F> {
    fn manifest(&self) -> AgentRunnerManifest {
        serde_json::from_value(json!({"id": RUNNER_ID, "name": "default", "label": {}})).unwrap()
    }

    fn run(&self, run: RunHandle) -> ResultStream {
        (self.0)(run)
    }
}

fn of(
    run: impl Fn(RunHandle) -> ResultStream + Send + Sync + 'static,
    options: RouterOptions,
) -> Router {
    router_with(vec![Arc::new(ScriptedRunner(run))], secret(), options)
}

fn one_delta() -> Router {
    of(
        |_| stream::iter([Ok(results::delta("a"))]).boxed(),
        RouterOptions::default(),
    )
}

/// Runner that sends "started", awaits its token, and ends without a terminal result.
fn until_cancelled(options: RouterOptions) -> Router {
    let run = |run: RunHandle| {
        results_of(|out| async move {
            out.send(results::log("started")).await;
            run.cancel.cancelled().await;
            Ok(())
        })
    };
    of(run, options)
}

fn secret() -> SigningSecret {
    SECRET.parse().unwrap()
}

fn fresh_id() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn signed(method: &str, path: &str, body: &[u8]) -> Request<Body> {
    signed_as(
        method,
        path,
        body,
        &fresh_id(),
        Clock::system().now_seconds(),
    )
}

fn signed_as(method: &str, path: &str, body: &[u8], id: &str, timestamp: i64) -> Request<Body> {
    Request::builder()
        .method(method)
        .uri(path)
        .header("webhook-id", id)
        .header("webhook-timestamp", timestamp)
        .header("webhook-signature", secret().sign(id, timestamp, body))
        .body(Body::from(body.to_vec()))
        .unwrap()
}

async fn run_body(run_id: &str) -> Vec<u8> {
    let access = FakeHost::start()
        .await
        .unwrap()
        .access(Clock::system().now_seconds());
    let mut request = run_request(RUNNER_ID, "hello", &access).unwrap();
    request.context.run_id = run_id.to_owned();
    serde_json::to_vec(&request).unwrap()
}

async fn text(response: Response) -> String {
    let body = tokio::time::timeout(PATIENCE, to_bytes(response.into_body(), 1 << 20)).await;
    String::from_utf8(body.unwrap().unwrap().to_vec()).unwrap()
}

fn decode(text: &str) -> Vec<Value> {
    let mut decoder = Decoder::new(SseLimits {
        line_bytes: 1 << 20,
        event_bytes: 1 << 20,
    });
    let mut items = Vec::new();
    decoder.push(text.as_bytes(), &mut items).unwrap();
    let data = items.iter().filter_map(|item| match item {
        SseItem::Event(event) => Some(serde_json::from_slice(&event.data).unwrap()),
        SseItem::Comment => None,
    });
    data.collect()
}

async fn check_refused(router: Router, request: Request<Body>, status: u16, code: &str) {
    let what = format!("{} {}", request.method(), request.uri());
    let response = router.oneshot(request).await.unwrap();
    assert_eq!(response.status(), status, "{what}");
    let body: Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(body["error"]["code"], code, "{what}");
    assert!(body["error"]["details"].is_object() && body["error"]["retryable"].is_boolean());
}

#[tokio::test]
async fn requires_signature_except_for_health_check() {
    let unsigned = |method: &str, path: &str| {
        Request::builder()
            .method(method)
            .uri(path)
            .body(Body::empty())
            .unwrap()
    };
    for (method, path) in [
        ("GET", "/runners"),
        ("POST", "/runs"),
        ("POST", "/runs/r-1/cancel"),
        ("POST", "/"),
        ("GET", "/nothing"),
        ("DELETE", "/runs"),
    ] {
        check_refused(one_delta(), unsigned(method, path), 401, "unauthenticated").await;
    }
    let health = one_delta()
        .oneshot(unsigned("GET", "/healthz"))
        .await
        .unwrap();
    assert_eq!(health.status(), 200);
}

#[tokio::test]
async fn rejects_tampered_replayed_and_expired_requests() {
    let router = one_delta();
    let mut tampered = signed("POST", "/runs", &run_body("r-1").await);
    *tampered.body_mut() = Body::from(run_body("r-2").await);
    check_refused(router.clone(), tampered, 401, "unauthenticated").await;

    let old = signed_as(
        "GET",
        "/runners",
        b"",
        "old",
        Clock::system().now_seconds() - 302,
    );
    check_refused(router.clone(), old, 401, "unauthenticated").await;

    let now = Clock::system().now_seconds();
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        let mut repeated = signed_as("GET", "/runners", b"", "repeated", now);
        repeated
            .headers_mut()
            .append(name, "other".parse().unwrap());
        check_refused(router.clone(), repeated, 401, "unauthenticated").await;
    }
    let mut forged = signed_as("GET", "/runners", b"", "twice", now);
    forged
        .headers_mut()
        .insert("webhook-signature", "v1,AAAA".parse().unwrap());
    check_refused(router.clone(), forged, 401, "unauthenticated").await;
    let first = signed_as("GET", "/runners", b"", "twice", now);
    assert_eq!(router.clone().oneshot(first).await.unwrap().status(), 200);
    let second = signed_as("GET", "/runners", b"", "twice", now);
    check_refused(router, second, 409, "conflict").await;
}

#[tokio::test]
async fn rejects_unknown_routes_and_invalid_bodies() {
    let router = one_delta;
    let mut large = vec![b' '; 8 * 1024 * 1024];
    check_refused(
        router(),
        signed("POST", "/runs", &large),
        400,
        "invalid_argument",
    )
    .await;
    large.push(b' ');
    check_refused(
        router(),
        signed("POST", "/runs", &large),
        413,
        "payload_too_large",
    )
    .await;
    check_refused(
        router(),
        signed("POST", "/runs", b"{}"),
        400,
        "invalid_argument",
    )
    .await;
    check_refused(router(), signed("GET", "/nothing", b""), 404, "not_found").await;
    check_refused(
        router(),
        signed("DELETE", "/runs", b""),
        405,
        "invalid_argument",
    )
    .await;
    check_refused(
        router(),
        signed("POST", "/runs/r-1/cancel", b"{}"),
        404,
        "not_found",
    )
    .await;
    let other = String::from_utf8(run_body("r-1").await)
        .unwrap()
        .replace("/test/", "/other/");
    check_refused(
        router(),
        signed("POST", "/runs", other.as_bytes()),
        404,
        "not_found",
    )
    .await;
}

#[tokio::test]
async fn discovery_lists_each_runner_once() {
    let twice: Vec<Arc<dyn Runner>> = vec![
        Arc::new(ScriptedRunner(|_: RunHandle| stream::empty().boxed())),
        Arc::new(ScriptedRunner(|_: RunHandle| stream::empty().boxed())),
    ];
    let router = router(twice, secret());
    let by_get = signed("GET", "/runners", b"");
    let by_post = signed("POST", "/", br#"{"action":"list_runners"}"#);
    for request in [by_get, by_post] {
        let list = text(router.clone().oneshot(request).await.unwrap()).await;
        let list: RunnerList = serde_json::from_str(&list).unwrap();
        assert_eq!(list.runners.len(), 1);
        assert_eq!(list.runners[0].id.to_string(), RUNNER_ID);
    }
}

#[tokio::test]
async fn streams_greeting_and_numbered_results() {
    let run = |_| stream::iter([Ok(results::custom("x.custom", JsonObject::new()))]).boxed();
    let response = of(run, RouterOptions::default())
        .oneshot(signed("POST", "/runs", &run_body(RUN_ID).await))
        .await
        .unwrap();
    assert_eq!(response.headers()[CONTENT_TYPE], "text/event-stream");
    assert_eq!(response.status(), 200);
    assert_eq!(
        text(response).await,
        format!(
            ": hi\n\n\
             event: x.custom\nid: 1\n\
             data: {{\"run_id\":\"{RUN_ID}\",\"type\":\"x.custom\",\"data\":{{}},\"sequence\":1}}\n\n\
             event: run.completed\nid: 2\n\
             data: {{\"run_id\":\"{RUN_ID}\",\"type\":\"run.completed\",\
             \"data\":{{\"finish_reason\":\"stop\"}},\"sequence\":2}}\n\n"
        )
    );
}

#[tokio::test]
async fn serves_runs_and_cancels_on_single_url() {
    let mut run: Value = serde_json::from_slice(&run_body("r-1").await).unwrap();
    run["action"] = "run".into();
    let router = until_cancelled(RouterOptions::default());
    let running = router
        .clone()
        .oneshot(signed("POST", "/", run.to_string().as_bytes()));
    let running = running.await.unwrap();
    let cancel = br#"{"action":"cancel","run_id":"r-1"}"#;
    let cancelled = router
        .clone()
        .oneshot(signed("POST", "/", cancel))
        .await
        .unwrap();
    assert_eq!(cancelled.status(), 202);
    let sent = decode(&text(running).await);
    assert_eq!(sent.last().unwrap()["data"]["code"], "cancelled");
    check_refused(
        router,
        signed("POST", "/", b"{\"action\":\"dance\"}"),
        400,
        "invalid_argument",
    )
    .await;
}

#[tokio::test]
async fn cancel_fires_only_the_runs_token() {
    let router = until_cancelled(RouterOptions::default());
    let start = async |run_id| {
        let request = signed("POST", "/runs", &run_body(run_id).await);
        router.clone().oneshot(request).await.unwrap()
    };
    let cancel = async |run_id: &str| {
        let request = signed("POST", &format!("/runs/{run_id}/cancel"), b"{}");
        router
            .clone()
            .oneshot(request)
            .await
            .unwrap()
            .status()
            .as_u16()
    };
    let (first, second) = (start("r-1").await, start("r-2").await);
    assert_eq!(cancel("r-1").await, 202);
    let kinds: Vec<_> = decode(&text(first).await)
        .iter()
        .map(|sent| sent["type"].clone())
        .collect();
    assert_eq!(kinds, ["processor.log", "run.failed"]);
    assert_eq!(cancel("r-1").await, 404, "it is over");
    drop(second);
    assert_eq!(cancel("r-2").await, 404, "nobody reads it any more");
}

#[tokio::test]
async fn rejects_duplicate_and_excess_runs() {
    let router = until_cancelled(RouterOptions {
        live_runs: 1,
        ..RouterOptions::default()
    });
    let start = async |run_id| signed("POST", "/runs", &run_body(run_id).await);
    let running = router.clone().oneshot(start("r-1").await).await.unwrap();
    check_refused(router.clone(), start("r-1").await, 409, "conflict").await;
    check_refused(router.clone(), start("r-2").await, 503, "rate_limited").await;
    let busy = router.clone().oneshot(start("r-2").await).await.unwrap();
    assert_eq!(busy.headers()["retry-after"], "1");
    drop(running);
    assert_eq!(
        router.oneshot(start("r-2").await).await.unwrap().status(),
        200
    );
}

#[tokio::test]
async fn sends_keepalive_comments() {
    let options = RouterOptions {
        heartbeat: Duration::from_millis(1),
        ..RouterOptions::default()
    };
    let response = until_cancelled(options)
        .oneshot(signed("POST", "/runs", &run_body("r-1").await))
        .await
        .unwrap();
    let mut body = response.into_body().into_data_stream();
    let mut seen = Vec::new();
    while !seen.ends_with(b": heartbeat\n\n: heartbeat\n\n") {
        seen.extend(
            tokio::time::timeout(PATIENCE, body.next())
                .await
                .unwrap()
                .unwrap()
                .unwrap(),
        );
    }
    assert!(seen.starts_with(b": hi\n\n"));
}

#[tokio::test]
async fn fails_run_after_early_panic() {
    let router = of(|_| panic!("on purpose"), RouterOptions::default());
    let response = router
        .oneshot(signed("POST", "/runs", &run_body("r-1").await))
        .await
        .unwrap();
    let sent = decode(&text(response).await);
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0]["data"]["code"], "runner.exception");
}

struct Served {
    address: std::net::SocketAddr,
    stop: CancellationToken,
    server: tokio::task::JoinSet<std::io::Result<()>>,
}

async fn served(router: Router) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let mut server = tokio::task::JoinSet::new();
    server.spawn(serve::serve(listener, router, stop.clone()));
    Served {
        address,
        stop,
        server,
    }
}

/// Starts a run over a socket; the response body is unread.
async fn start_over_socket(served: &Served) -> reqwest::Response {
    let (parts, body) = signed("POST", "/runs", &run_body("r-1").await).into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap();
    let url = format!("http://{}{}", served.address, parts.uri.path());
    let client = HostClient::new();
    let request = client
        .inner()
        .unwrap()
        .post(url)
        .headers(parts.headers)
        .body(body);
    request.send().await.unwrap()
}

#[tokio::test]
async fn bounds_unverified_bodies_of_stalled_senders() {
    const PIECE: usize = 64 * 1024;
    let server = KitServer {
        unverified: UnverifiedBytes::new(4 * PIECE),
        ..KitServer::new(Vec::new(), secret(), RouterOptions::default())
    };
    let router = router_of(server);
    let (answered, mut answers) = tokio::sync::mpsc::channel(8);
    let mut stalled = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let mut request = signed("POST", "/runs", b"another body");
        let piece = Ok::<_, std::io::Error>(Bytes::from(vec![b' '; PIECE]));
        *request.body_mut() = Body::from_stream(stream::iter([piece]).chain(stream::pending()));
        let (router, answered) = (router.clone(), answered.clone());
        stalled.spawn(async move {
            let response = router.oneshot(request).await.unwrap();
            answered.send(response).await.unwrap();
        });
    }
    for _ in 0..2 {
        let response = tokio::time::timeout(PATIENCE, answers.recv()).await;
        let response = response.unwrap().unwrap();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "1");
    }
    check_refused(
        router,
        signed("POST", "/runs", &vec![b' '; 2 * PIECE]),
        400,
        "invalid_argument",
    )
    .await;
}

#[tokio::test]
async fn drops_runner_future_on_disconnect() {
    let dropped = CancellationToken::new();
    let seen = dropped.clone();
    let run = move |_| {
        let guard = seen.clone().drop_guard();
        results_of(|out| async move {
            let _guard = guard;
            out.send(results::delta("a")).await;
            std::future::pending::<Result<(), RunError>>().await
        })
    };
    let served = served(of(run, RouterOptions::default())).await;
    let mut answer = start_over_socket(&served).await;
    assert_eq!(answer.chunk().await.unwrap().unwrap(), ": hi\n\n");
    assert!(!dropped.is_cancelled());
    drop(answer);
    tokio::time::timeout(PATIENCE, dropped.cancelled())
        .await
        .unwrap();
}

#[tokio::test]
async fn shutdown_signals_runs_and_awaits_their_end() {
    let mut served = served(until_cancelled(RouterOptions::default())).await;
    let answer = start_over_socket(&served).await;
    served.stop.cancel();
    let sent = decode(&answer.text().await.unwrap());
    let data = &sent.last().unwrap()["data"];
    assert_eq!(data["code"], "runner.shutdown");
    assert_eq!(data["retryable"], true);
    let message = data["message"].as_str().unwrap();
    assert!(message.contains("post the event again"), "{message}");
    let ended = tokio::time::timeout(PATIENCE, served.server.join_next())
        .await
        .unwrap();
    ended.unwrap().unwrap().unwrap();
}
