//! Fail closed: while the authority table cannot be read, a run gets no data, and no upstream gets a request.
//! I8.

use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::json;

use super::stage_of;
use crate::isolation::{ResourceIds, request};
use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::proxy::{NetworkFault, Proxy};
use crate::support::routes::{Face, Operation, operations};
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::tool_server::ToolServer;
use crate::support::upstream::{Upstream, UpstreamReply};
use crate::support::{OwnStage, until};

const ALL: &str = r#"models = "*", tools = "*", knowledge_bases = "*", history = ["page", "search"],
    events = ["get", "page"], storage = ["plugin"], artifacts = ["metadata", "read", "create"]"#;

/// A run with all permissions, and the servers of its model and its tool.
struct AuthorityStage {
    stage: OwnStage,
    proxy: Proxy,
    model: Upstream,
    tools: ToolServer,
    run: HeldRun,
    reads: Vec<Operation>,
    ids: ResourceIds,
}

fn runner() -> serde_json::Value {
    let mut manifest = manifest(RUNNER_ID);
    manifest["permissions"] = json!({
        "models": ["invoke"], "tools": ["detail", "call"], "knowledge_bases": ["list"],
        "history": ["page"], "events": ["get", "page"], "storage": ["plugin"],
        "artifacts": ["metadata", "read", "create"],
    });
    manifest
}

impl AuthorityStage {
    async fn new(lease_seconds: u64) -> Option<Self> {
        let (model, tools) = (Upstream::start().await, ToolServer::start().await);
        let configure = |config: &mut Config| {
            config.runs = format!("lease_seconds = {lease_seconds}");
            // Tokens are bound to this name, so all replicas share it.
            "public_url = \"http://runnel.invalid\"".clone_into(&mut config.server);
            config.agents[0].resources = ALL;
            config.rest = format!(
                "[[model_providers]]\nname = \"p\"\nkind = \"openai\"\nbase_url = \"{}/v1\"\n\
                 [[models]]\nmodel_id = \"m\"\nprovider = \"p\"\n\
                 [[tools]]\ntool_name = \"search\"\nurl = \"{}/echo\"\n\
                 [[knowledge_bases]]\nkb_id = \"handbook\"\n\
                 [[budgets]]\nname = \"each-run\"\nscope = \"run\"\ncalls = 100\n",
                model.url, tools.url
            );
        };
        let (stage, proxy) = stage_of(StubRunner::start_as(runner()).await, configure).await?;
        let run = HeldRun::start(&stage, &message("m-1")).await;
        let mut reads = operations(&stage.client).await;
        // These have no data: the event brought no prompt, and the run has no interaction, action, child run or stored
        // response.
        let answers_nothing = [
            "get_prompt",
            "await_interaction",
            "await_platform_action",
            "get_response",
            "get_child_run",
            "page_child_run_events",
        ];
        reads.retain(|one| {
            let answers = !answers_nothing.contains(&one.id.as_str());
            one.face == Face::Host && one.method == Method::GET && answers
        });
        let mut house = Self {
            stage,
            proxy,
            model,
            tools,
            ids: ResourceIds::new(),
            run,
            reads,
        };
        house.write_data().await;
        Some(house)
    }

    /// Writes the data for the read operations.
    async fn write_data(&mut self) {
        let host = self.host(&self.stage.client);
        let state = host.request(Method::PUT, "/host/v1/state/conversation/k");
        let value = json!({"value": 1, "lease_seconds": 3600, "bodies": {"k": 1}});
        assert_eq!(send(state.json(&value)).await.unwrap().status, 200);
        let blob = host.request(Method::PUT, "/host/v1/storage/plugin/k");
        assert_eq!(send(blob.body("\"mark\"")).await.unwrap().status, 204);
        let checkpoint = host.request(Method::PUT, "/host/v1/checkpoint");
        let checkpoint = send(checkpoint.json(&json!({"value": 1}))).await.unwrap();
        assert_eq!(checkpoint.status, 200);
        let artifact = host.request(Method::POST, "/host/v1/artifacts");
        let made = send(artifact.body("\"mark\"")).await.unwrap();
        self.ids = ResourceIds::from([
            ("run_id", self.run.run_id.clone()),
            ("event_id", "m-1".to_owned()),
            (
                "artifact_id",
                made.body["artifact_id"].as_str().unwrap().to_owned(),
            ),
        ]);
    }

    /// A client with the run's token for this replica.
    fn host(&self, replica: &Client) -> Client {
        Client::new(&replica.url, &self.run.token)
    }

    fn reads(&self, replica: &Client) -> Vec<(String, RequestBuilder)> {
        let host = self.host(replica);
        let read = |one: &Operation| (one.id.clone(), request(&host, one, &self.ids));
        self.reads.iter().map(read).collect()
    }

    /// One call of the model and one of the tool.
    fn calls(&self, replica: &Client) -> Vec<(String, RequestBuilder)> {
        let host = self.host(replica);
        let says = json!({"messages": [{"role": "user", "content": "hi"}]});
        let calls = [
            ("/host/v1/models/m/invoke", says),
            ("/host/v1/tools/search/call", json!({"parameters": {}})),
        ];
        let call = |(path, body): (&str, serde_json::Value)| {
            (
                path.to_owned(),
                host.request(Method::POST, path).json(&body),
            )
        };
        calls.map(call).into()
    }

    fn everything(&self, replica: &Client) -> Vec<(String, RequestBuilder)> {
        let mut all = self.reads(replica);
        all.extend(self.calls(replica));
        all
    }

    /// Requests to the model server and to the tool server.
    fn requests(&self) -> [usize; 2] {
        [self.model.requests().len(), self.tools.seen("/").len()]
    }

    /// This replica grants every request; the model and the tool each get one request.
    async fn assert_open(&self, replica: &Client) {
        let done = json!({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]});
        self.model.reply(UpstreamReply::Json(200, done));
        let before = self.requests();
        for (what, answer) in answers(self.everything(replica)).await {
            assert_eq!(answer.status, 200, "{what}: {}", answer.body);
        }
        assert_eq!(self.requests(), before.map(|count| count + 1));
    }
}

/// Sends all requests concurrently and returns the responses.
async fn answers(requests: Vec<(String, RequestBuilder)>) -> Vec<(String, ApiResponse)> {
    let asking = requests
        .into_iter()
        .map(|(what, request)| async move { (what, send(request).await.unwrap()) });
    futures_util::future::join_all(asking).await
}

async fn assert_denied(requests: Vec<(String, RequestBuilder)>) {
    for (what, answer) in answers(requests).await {
        // The Anthropic API has a status and format of its own.
        if what.contains("gemini") {
            let outcome = (answer.status, answer.error("status"));
            assert_eq!(
                outcome,
                (503, &json!("UNAVAILABLE")),
                "{what}: {}",
                answer.body
            );
            continue;
        }
        if what.contains("anthropic") {
            assert_eq!(answer.status, 529, "{what}: {}", answer.body);
            assert_eq!(answer.error("type"), &json!("overloaded_error"), "{what}");
            continue;
        }
        let outcome = (
            answer.status,
            answer.error("code"),
            answer.error("retryable"),
        );
        let expected = (503, &json!("runtime_error"), &json!(true));
        assert_eq!(outcome, expected, "{what}: {}", answer.body);
        assert!(answer.headers.contains_key("retry-after"), "{what}");
    }
}

/// The lease holder knows that the run is live. Other replicas and budget reservations read the authority table.
#[rstest]
#[case::refused(NetworkFault::Refusing)]
#[case::silent(NetworkFault::Holding)]
#[tokio::test]
async fn fails_closed_when_authority_is_unreadable(#[case] wire: NetworkFault) {
    let house = or_skip!(AuthorityStage::new(60).await);
    let (owner, second) = (
        house.stage.client.clone(),
        house.stage.gateway.start_replica().await,
    );
    assert!(house.reads.len() > 20, "{}", house.reads.len());
    house.assert_open(&owner).await;
    house.assert_open(&second.client).await;
    let request = house.requests();

    house.proxy.set(wire);
    let mut requests = house.everything(&second.client);
    requests.extend(house.calls(&owner));
    assert_denied(requests).await;
    assert_eq!(house.requests(), request, "no upstream gets a request");

    house.proxy.set(NetworkFault::Forwarding);
    for replica in [&owner, &second.client] {
        until("the replica to be ready", async || {
            replica.get("/readyz").await.status == 200
        })
        .await;
        house.assert_open(replica).await;
    }
    assert_eq!(house.run.end(&house.stage).await.ending(), "completed");
}

#[rstest]
#[case::refused(NetworkFault::Refusing)]
#[case::silent(NetworkFault::Holding)]
#[tokio::test]
async fn denies_run_whose_lease_expired_in_outage(#[case] wire: NetworkFault) {
    let house = or_skip!(AuthorityStage::new(2).await);
    let owner = house.stage.client.clone();
    house.assert_open(&owner).await;
    let requests = house.requests();

    house.proxy.set(wire);
    until("the run to be let go", async || {
        house.stage.gateway.log().contains("its lease expired")
    })
    .await;
    assert_denied(house.everything(&owner)).await;

    house.proxy.set(NetworkFault::Forwarding);
    let outcome = house.stage.outcome(&house.run.run_id).await;
    assert_eq!(outcome.ending(), "failed host.orphaned");
    for (what, answer) in answers(house.everything(&owner)).await {
        assert_eq!(answer.status, 401, "{what}: {}", answer.body);
    }
    assert_eq!(house.requests(), requests, "no upstream gets a request");
}
