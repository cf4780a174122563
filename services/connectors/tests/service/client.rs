//! The service, and a gateway as its client.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use connectors::service::{ConnectorService, ServedIds};
use connectors::upstream::config::{SecretHosts, SecretSource};
use egress::{Egress, Response};
use protocol::request::AgentRunRequest;
use protocol::sse::{Decoder, SseItem, SseLimits};
use runner_kit::testing::{FakeHost, run_request};
use runner_kit::{CancellationToken, SigningSecret, router, serve};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use url::Url;

const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
/// Timeout of one step of a test, longer than any step takes.
const PATIENCE: Duration = Duration::from_mins(1);
/// The value of each variable of the service's environment.
pub(crate) const KEY: &str = "secret-of-test";

/// Stopped on drop.
pub(crate) struct ConnectorsProcess {
    url: Url,
    client: Egress,
    secret: SigningSecret,
    pub(crate) host: FakeHost,
    _server: JoinSet<std::io::Result<()>>,
}

/// The results of a run in the order of their arrival.
pub(crate) struct StreamedResults {
    response: Response,
    decoder: Decoder,
    waiting: Vec<Value>,
}

/// A gateway for tests: loopback is open.
fn egress() -> Egress {
    let allow = vec!["127.0.0.0/8".parse().unwrap()];
    Egress::new(allow, Duration::from_secs(10)).unwrap()
}

impl ConnectorsProcess {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let secrets = SecretSource {
            prefix: "CONNECTOR_".to_owned(),
            hosts: SecretHosts::Any,
            lookup: Arc::new(|_| Some(KEY.to_owned())),
        };
        let egress_of_service = egress();
        let service = ConnectorService {
            egress: egress_of_service,
            secrets,
        };
        let secret: SigningSecret = SECRET.parse().unwrap();
        let router = router(service.runners(ServedIds::LangBot), secret.clone());
        let mut server = JoinSet::new();
        server.spawn(serve(listener, router, CancellationToken::new()));
        Self {
            url: url.parse().unwrap(),
            client: egress(),
            secret,
            host: FakeHost::start().await.unwrap(),
            _server: server,
        }
    }

    /// The request of a run of a platform with this configuration.
    pub(crate) fn request(&self, platform: &str, config: &Value) -> AgentRunRequest {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let id = format!("plugin:runnel/{platform}/default");
        let access = self.host.access(now());
        let mut request = run_request(&id, "Hi", &access).unwrap();
        request.context.run_id = format!("run-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let config = config.as_object().unwrap();
        request.context.config.clone_from(config);
        request
    }

    pub(crate) async fn begin(&self, request: &AgentRunRequest) -> StreamedResults {
        let body = serde_json::to_vec(request).unwrap();
        let response = self.post("/runs", body).await;
        assert_eq!(response.status(), 200);
        let limits = SseLimits {
            line_bytes: 1 << 20,
            event_bytes: 1 << 20,
        };
        StreamedResults {
            response,
            decoder: Decoder::new(limits),
            waiting: Vec::new(),
        }
    }

    /// All results of a run.
    pub(crate) async fn run(&self, request: &AgentRunRequest) -> Vec<Value> {
        let mut results = self.begin(request).await;
        results.rest().await
    }

    /// All results of a run of a platform with this configuration.
    pub(crate) async fn run_with(&self, platform: &str, config: &Value) -> Vec<Value> {
        self.run(&self.request(platform, config)).await
    }

    pub(crate) async fn cancel(&self, run_id: &str) {
        let body = json!({"reason": "test"}).to_string().into_bytes();
        let response = self.post(&format!("/runs/{run_id}/cancel"), body).await;
        assert_eq!(response.status(), 202);
    }

    async fn post(&self, path: &str, body: Vec<u8>) -> Response {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let id = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let url = self.url.join(path).unwrap();
        let request = self.client.request(http::Method::POST, &url).unwrap();
        let signed_at = now();
        let request = request
            .header("webhook-signature", self.secret.sign(&id, signed_at, &body))
            .header("webhook-id", id)
            .header("webhook-timestamp", signed_at.to_string())
            .body(body);
        self.client.send(request).await.unwrap()
    }
}

impl StreamedResults {
    /// The next result; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        while self.waiting.is_empty() {
            let chunk = timeout(PATIENCE, self.response.chunk()).await;
            let chunk = chunk.expect("a result in time").unwrap()?;
            let mut items = Vec::new();
            self.decoder.push(&chunk, &mut items).unwrap();
            let results = items.iter().filter_map(|item| match item {
                SseItem::Event(event) => Some(serde_json::from_slice(&event.data).unwrap()),
                SseItem::Comment => None,
            });
            self.waiting.extend(results);
        }
        Some(self.waiting.remove(0))
    }

    /// The results up to the next one of a type.
    pub(crate) async fn until(&mut self, kind: &str) -> Value {
        loop {
            let result = self.next().await.expect("the run has a further result");
            if result["type"] == kind {
                return result;
            }
        }
    }

    /// All further results.
    pub(crate) async fn rest(&mut self) -> Vec<Value> {
        let mut results = Vec::new();
        while let Some(result) = self.next().await {
            results.push(result);
        }
        results
    }
}

/// The code of a run that failed, or `completed`.
pub(crate) fn ending(results: &[Value]) -> &str {
    let last = results.last().expect("a terminal");
    match last["type"].as_str().unwrap() {
        "run.completed" => "completed",
        "run.failed" => last["data"]["code"].as_str().unwrap(),
        other => panic!("{other} is no terminal"),
    }
}

/// The data of results of that type.
pub(crate) fn of<'a>(results: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let found = results.iter().filter(|result| result["type"] == kind);
    found.map(|result| &result["data"]).collect()
}

/// Epoch seconds.
#[expect(clippy::disallowed_methods, reason = "signatures have the time of day")]
fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_secs()).unwrap()
}
