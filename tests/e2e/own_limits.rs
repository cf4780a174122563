//! Limits of API keys and agents: rate and live runs, on every route that starts runs.

use futures_util::future::join_all;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::isolation::ask;
use crate::pipeline_adapter::query;
use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::gateway::Agent;
use crate::support::held::HeldRun;
use crate::support::runner::StubRunner;
use crate::support::script::{Gate, sse, sse_around};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, until};

const CHAT: &str = "/faces/openai/v1/chat/completions";

async fn stage(engine: Engine) -> Option<OwnStage> {
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    OwnStage::of(engine, runner, |_| {}).await
}

async fn create_key(stage: &OwnStage, role: &str, limits: &Value) -> ApiResponse {
    let spec = json!({"name": "limited", "role": role, "limits": limits});
    stage.admin.create("/v1/api-keys", &spec).await
}

async fn limited_to(stage: &OwnStage, limits: &Value) -> Client {
    let made = create_key(stage, "client", limits).await.expect(201);
    assert_eq!(made.body["limits"], *limits);
    Client::new(&stage.client.url, made.body["key"].as_str().unwrap())
}

fn retry_after(answer: &ApiResponse) -> u64 {
    let wait = &answer.headers["retry-after"];
    wait.to_str().unwrap().parse().unwrap()
}

/// The limiter of the only limited key.
async fn limiter(client: &Client) -> Value {
    let listed = client.get("/v1/limits").await.expect(200).body;
    let [limiter] = &listed["items"].as_array().unwrap()[..] else {
        panic!("one limiter expected: {listed}");
    };
    limiter.clone()
}

/// Requests that start runs of the agent `main`.
async fn starts(stage: &OwnStage, run_id: &str) -> Vec<(String, Value)> {
    let interaction = ask(stage, "default", run_id, "q").await;
    let chat = json!({"model": "main", "messages": [{"role": "user", "content": "hi"}]});
    let parts = json!([{"text": "hi"}]);
    let sent = json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": parts}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": sent});
    let input = json!({"threadId": "t", "runId": "r", "tools": [], "context": [], "state": {},
        "forwardedProps": {}, "messages": [{"id": "m", "role": "user", "content": "hi"}]});
    vec![
        ("/v1/events".to_owned(), message("late-1")),
        ("/v1/runs/stream".to_owned(), message("late-2")),
        ("/v1/adapters/pipeline/queries".to_owned(), query(1)),
        ("/v1/adapters/pipeline/queries/stream".to_owned(), query(2)),
        (CHAT.to_owned(), chat),
        (
            "/faces/openai/v1/responses".to_owned(),
            json!({"model": "main", "input": "hi"}),
        ),
        ("/faces/ag-ui/main".to_owned(), input),
        ("/faces/a2a/main".to_owned(), call),
        ("/faces/a2a/main/message:send".to_owned(), sent.clone()),
        ("/faces/a2a/main/message:stream".to_owned(), sent),
        (format!("/v1/runs/{run_id}/retry"), json!({})),
        (
            format!("/v1/interactions/{interaction}/submit"),
            json!({"interaction_id": "q"}),
        ),
    ]
}

#[rstest]
#[tokio::test]
async fn rate_of_a_key_covers_every_start(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let client = limited_to(&stage, &json!({"rate": 1, "burst": 1})).await;
    let run_id = client.post(&message("m-1")).await.run_id();
    client.finished(&run_id).await;
    let (mut refused, mut admitted) = (0, Vec::new());
    for (path, body) in starts(&stage, &run_id).await {
        let request = client.request(Method::POST, &path).json(&body);
        let answer = send(request.header("a2a-version", "1.0")).await.unwrap();
        let text = answer.body.to_string();
        if answer.status == 429 && text.contains("starts runs too fast") {
            assert!((1..=60).contains(&retry_after(&answer)), "{path}");
            refused += 1;
        } else {
            admitted.push(format!("{path}: {} {text}", answer.status));
        }
    }
    assert!(admitted.is_empty(), "{admitted:#?}");
    let event = json!({"specversion": "1.0", "id": "7", "source": "/shop", "type": "message.received",
        "data": {"input": {"text": "hi"}}});
    let batch = client.request(Method::POST, "/v1/event-batches");
    let batch = batch.body(json!([event]).to_string());
    let batch = batch.header("content-type", "application/cloudevents-batch+json");
    let item = send(batch).await.unwrap().expect(207).body["items"][0].clone();
    assert_eq!(item["error"]["details"]["reason"], "key_rate", "{item}");
    let posted = client.post(&message("late-3")).await;
    posted.assert_detail(429, "reason", "key_rate");
    posted.assert_error(429, "code", "rate_limited");
    assert_eq!(posted.error("retryable"), true);
    // Reads are free, and another key has its own limits.
    assert_eq!(client.get("/v1/runs").await.status, 200);
    stage.client.post(&message("m-2")).await.run_id();
    let limiter = limiter(&stage.admin).await;
    assert_members!(limiter, {"kind": "api_key", "name": "limited", "limit": "rate", "max": 1});
    assert_members!(limiter, {"burst": 1, "in_flight": Value::Null, "queued": 0, "refused": refused + 2});
}

#[rstest]
#[tokio::test]
async fn live_runs_of_a_key_are_bounded(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let client = limited_to(&stage, &json!({"concurrency": 2})).await;
    let [one, two] = ["m-1", "m-2"].map(|id| {
        let (stage, client) = (&stage, &client);
        async move { HeldRun::start_as(stage, client, &message(id)).await }
    });
    let (one, two) = (one.await, two.await);
    let refused = client.post(&message("m-3")).await;
    refused.assert_detail(429, "reason", "key_runs");
    assert_eq!(
        (refused.detail("limit"), retry_after(&refused)),
        (&json!(2), 5)
    );
    let chat = json!({"model": "main", "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(client.create(CHAT, &chat).await.status, 429);
    // A repeated event starts no run, and another key has its own limits.
    let again = client.post(&message("m-1")).await;
    assert!(again.is_replay());
    assert_eq!(again.run_id(), one.run_id);
    stage.client.post(&message("m-4")).await.run_id();
    let full = limiter(&stage.admin).await;
    assert_members!(full, {"limit": "concurrency", "max": 2, "burst": Value::Null, "in_flight": 2, "refused": 2});
    one.end(&stage).await;
    two.end(&stage).await;
    // Of simultaneous starts exactly as many pass as the key may have.
    let gate = Gate::new();
    let hold = gate.clone();
    let script =
        move |run: &crate::support::script::Run| sse_around(&hold, "", run.talk(1).concat());
    stage.runner.answer_all(script);
    let events: Vec<_> = (0..8).map(|n| message(&format!("n-{n}"))).collect();
    let answers = join_all(events.iter().map(|event| client.post(event))).await;
    let passed = answers.iter().filter(|answer| answer.status == 202);
    assert_eq!(passed.count(), 2);
    gate.cancel();
    until("a free slot", async || {
        client.post(&message("m-5")).await.status == 202
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn live_runs_of_an_agent_are_bounded(#[values(Sqlite, Postgres)] engine: Engine) {
    let runner = StubRunner::start().await;
    let stage = OwnStage::of(engine, runner, |config| {
        let limited = Agent {
            limits: "concurrency = 2",
            ..Agent::default()
        };
        let free = Agent {
            name: "free",
            event_types: "group.joined",
            ..Agent::default()
        };
        config.agents = vec![limited, free];
    });
    let stage = or_skip!(stage.await);
    let one = HeldRun::start(&stage, &message("m-1")).await;
    let two = HeldRun::start(&stage, &message("m-2")).await;
    let refused = stage.client.post(&message("m-3")).await;
    refused.assert_detail(429, "reason", "agent_runs");
    assert_eq!(
        (refused.detail("limit"), refused.detail("name")),
        (&json!(2), &json!("main"))
    );
    assert_eq!(retry_after(&refused), 5);
    let event = message("m-3");
    let tried = stage.admin.create("/v1/agents/dry-run", &event);
    let tried = tried.await.expect(200).body;
    assert_eq!(tried["error"]["details"]["reason"], "agent_runs");
    let capacity = &tried["agent"]["admission"]["agent"];
    assert_eq!(*capacity, json!({"live": 2, "most": 2}));
    // A repeated event starts no run, and another agent has its own limits.
    assert!(stage.client.post(&message("m-1")).await.is_replay());
    let mut other = message("m-4");
    other["event_type"] = json!("group.joined");
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    stage.client.post(&other).await.run_id();
    let full = limiter(&stage.admin).await;
    assert_members!(full, {"kind": "agent", "name": "main", "limit": "concurrency", "max": 2});
    assert_members!(full, {"in_flight": 2, "available": Value::Null, "refused": 1});
    one.end(&stage).await;
    two.end(&stage).await;
    // Of simultaneous starts exactly as many pass as the agent may have.
    let gate = Gate::new();
    let hold = gate.clone();
    let script =
        move |run: &crate::support::script::Run| sse_around(&hold, "", run.talk(1).concat());
    stage.runner.answer_all(script);
    let events: Vec<_> = (0..8).map(|n| message(&format!("n-{n}"))).collect();
    let answers = join_all(events.iter().map(|event| stage.client.post(event))).await;
    let passed = answers.iter().filter(|answer| answer.status == 202);
    assert_eq!(passed.count(), 2);
    gate.cancel();
}

#[tokio::test]
async fn rate_of_an_agent_counts_new_runs() {
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let limits = "rate = 1, burst = 2";
    let stage = OwnStage::of(Sqlite, runner, |config| config.agents[0].limits = limits);
    let stage = stage.await.unwrap();
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    stage.client.finished(&run_id).await;
    assert!(stage.client.post(&message("m-1")).await.is_replay());
    // A dry run counts nothing.
    let event = message("m-2");
    let tried = stage.admin.create("/v1/agents/dry-run", &event);
    assert_eq!(tried.await.expect(200).body["outcome"], "created");
    stage.client.post(&message("m-2")).await.run_id();
    let refused = stage.client.post(&message("m-3")).await;
    refused.assert_detail(429, "reason", "agent_rate");
    assert_eq!(refused.detail("name"), "main");
    assert!((1..=60).contains(&retry_after(&refused)));
    let limiter = limiter(&stage.admin).await;
    assert_members!(limiter, {"kind": "agent", "limit": "rate", "max": 1, "burst": 2, "refused": 1});
}

#[tokio::test]
async fn refuses_invalid_limits() {
    let stage = stage(Sqlite).await.unwrap();
    for (role, limits, pointer) in [
        ("client", json!({}), "/limits"),
        ("client", json!({"rate": 0}), "/limits/rate"),
        ("client", json!({"rate": "fast"}), "/limits/rate"),
        ("client", json!({"burst": 5}), "/limits/burst"),
        (
            "operator",
            json!({"concurrency": 1_000_001}),
            "/limits/concurrency",
        ),
        (
            "client",
            json!({"tokens_per_minute": 0}),
            "/limits/tokens_per_minute",
        ),
        ("viewer", json!({"rate": 1}), "/limits"),
    ] {
        let refused = create_key(&stage, role, &limits).await;
        refused.assert_detail(400, "pointer", pointer);
    }
    let mut spec = Agent {
        name: "other",
        ..Agent::default()
    }
    .spec();
    for (limits, pointer) in [
        (json!({}), "/limits"),
        (json!({"burst": 5}), "/limits/burst"),
        (json!({"tokens": 5}), "/limits/tokens"),
    ] {
        spec["limits"] = limits;
        let refused = stage.admin.create("/v1/agents", &spec).await;
        refused.assert_detail(400, "pointer", pointer);
    }
    let limits =
        json!({"rate": 60, "burst": 10, "concurrency": 8, "tokens_per_minute": 1_000_000_000});
    let client = limited_to(&stage, &limits).await;
    assert_eq!(
        client.get("/v1/whoami").await.expect(200).body["limits"],
        limits
    );
    assert_eq!(
        stage.client.get("/v1/whoami").await.body["limits"],
        Value::Null
    );
    assert_eq!(client.get("/v1/limits").await.status, 403);
    assert_eq!(
        stage.admin.get("/v1/limits").await.expect(200).body["items"],
        json!([])
    );
}
