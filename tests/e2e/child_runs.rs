//! Child runs: start, follow, and end with the parent.

#[path = "child_runs/bounds.rs"]
mod bounds;
#[path = "child_runs/lifecycle.rs"]
mod lifecycle;
#[path = "child_runs/rights.rs"]
mod rights;

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::gateway::{Agent, Config};
use crate::support::runner::{RUNNER_ID, RecordedRequest, StubRunner, manifest};
use crate::support::script::{Gate, sse_around};
use crate::support::{Engine, Postgres, Sqlite, Stage, until};

/// Agents `main` and `other` may call `helper`, which may call itself.
pub async fn stage(engine: Engine) -> Option<Stage> {
    stage_with(engine, |_| {}).await
}

pub async fn stage_with(engine: Engine, configure: impl FnOnce(&mut Config)) -> Option<Stage> {
    let mut manifest = manifest(RUNNER_ID);
    manifest["permissions"] =
        json!({"history": ["page"], "agents": ["call"], "tools": ["detail", "call"]});
    let runner = StubRunner::start_as(manifest).await;
    Stage::of(engine, runner, |config| {
        config.agents[0].resources = r#"agents = ["helper"], history = ["page"]"#;
        for (name, event_types) in [("helper", "test.helper"), ("other", "test.other")] {
            config.agents.push(Agent {
                name,
                event_types,
                resources: r#"agents = ["helper"]"#,
                ..Agent::default()
            });
        }
        configure(config);
    })
    .await
}

/// A run that pauses until the test releases it, and then sends one delta and ends.
pub struct PausedRun {
    pub run_id: String,
    /// The run request that the runner received.
    pub run_request: Value,
    pub host: Client,
    gate: Gate,
}

impl PausedRun {
    /// Starts a run for `event` that ends with `finish_reason`.
    pub async fn start(stage: &Stage, event: &Value, finish_reason: &'static str) -> Self {
        let gate = Gate::new();
        let hold = gate.clone();
        let event_id = event["event_id"].as_str().unwrap();
        stage.runner.answer(event_id, move |run| {
            let end = json!({"finish_reason": finish_reason}).to_string();
            let body = run.delta(1, "done") + &run.result(2, "run.completed", &end);
            sse_around(&hold, "", body)
        });
        let run_id = stage.client.post(event).await.run_id();
        Self::of(stage, &run_id, gate).await
    }

    pub async fn parent(stage: &Stage) -> Self {
        Self::start(stage, &message("m-1"), "stop").await
    }

    /// Waits for the request of run `run_id`, which pauses at `gate`.
    pub async fn of(stage: &Stage, run_id: &str, gate: Gate) -> Self {
        let run_request = stage.runner.run_request(run_id).await.json();
        Self {
            run_id: run_id.to_owned(),
            host: stage.host_of(run_id).await,
            run_request,
            gate,
        }
    }

    pub fn release(&self) {
        self.gate.cancel();
    }

    pub async fn end(&self, stage: &Stage) -> Value {
        self.release();
        stage.client.finished(&self.run_id).await
    }

    /// Requests a child run of `helper`.
    pub async fn spawn(&self, key: &str, more: &Value) -> ApiResponse {
        let mut request = json!({
            "agent_id": "helper", "input": {"text": "do it"}, "idempotency_key": key,
        });
        let more = more.as_object().unwrap().clone();
        request.as_object_mut().unwrap().extend(more);
        self.host.create("/child-runs", &request).await
    }

    /// Starts a child run and waits until its runner has it.
    pub async fn child(&self, stage: &Stage, key: &str, gate: &Gate) -> Self {
        let run_id = self.spawn(key, &json!({})).await.run_id();
        Self::of(stage, &run_id, gate.clone()).await
    }

    pub async fn follow(&self, child: &str, seconds: u64) -> ApiResponse {
        let path = format!("/child-runs/{child}?wait_seconds={seconds}");
        self.host.get(&path).await
    }
}

/// Lets every run without its own script pause at this gate, then end with `data`.
pub fn hold_children(stage: &Stage, data: &Value) -> Gate {
    let (gate, data) = (Gate::new(), data.to_string());
    let hold = gate.clone();
    stage.runner.answer_all(move |run| {
        let output = json!({"message": {"role": "assistant", "content": "the answer"}}).to_string();
        let body =
            run.result(1, "message.completed", &output) + &run.result(2, "run.completed", &data);
        sse_around(&hold, "", body)
    });
    gate
}

fn completed() -> Value {
    json!({"finish_reason": "stop"})
}

#[rstest]
#[tokio::test]
async fn child_run_answers_its_parent(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let gate = hold_children(
        &stage,
        &json!({"finish_reason": "stop", "outcome": "need_input"}),
    );
    let parent = PausedRun::parent(&stage).await;
    let resources = &parent.run_request["context"]["resources"]["agents"];
    assert_eq!(resources[0]["display_name"], "helper", "{resources}");
    assert_eq!(
        parent.run_request["context"]["context"]["available_apis"]["child_runs"],
        true
    );
    let started = parent.spawn("k", &json!({"context": {"order": 7}})).await;
    let id = started.run_id();
    assert_eq!(started.body["parent_run_id"], parent.run_id.as_str());
    let child = PausedRun::of(&stage, &id, gate).await;

    let event = &child.run_request["context"]["event"];
    assert_eq!(event["data"]["context"], json!({"order": 7}), "{event}");
    assert_eq!(event["data"]["parent_run_id"], parent.run_id.as_str());
    let context = &child.run_request["context"];
    assert_eq!(context["input"]["text"], "do it");
    assert_eq!(context["actor"]["actor_type"], "agent", "{context}");
    assert_eq!(
        context.get("conversation").unwrap_or(&Value::Null),
        &Value::Null
    );
    let trace = |request: &Value| request["context"]["runtime"]["trace_id"].clone();
    assert_eq!(trace(&child.run_request), trace(&parent.run_request));

    let open = parent.follow(&id, 0).await;
    assert_eq!(open.body["status"], "running", "{}", open.body);
    let (ended, ()) = tokio::join!(parent.follow(&id, 30), async { child.release() });
    let body = ended.body;
    assert_eq!(body["status"], "completed", "{body}");
    assert_members!(body, {"finish_reason": "stop", "outcome": "need_input"});
    assert_eq!(body["output"]["content"], "the answer");

    let run = stage.client.run(&id).await;
    assert_eq!(run["parent_run_id"], parent.run_id.as_str());
    assert_eq!(run["conversation_id"], Value::Null);
    let path = format!("/v1/runs?parent_run_id={}", parent.run_id);
    let listed = stage.client.get(&path).await.body;
    let listed = listed["items"].as_array().unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["run_id"], id.as_str());

    let path = format!("/child-runs/{id}/events?after_cursor=1");
    let page = parent.host.get(&path).await.body;
    assert_eq!(page["items"][0]["type"], "run.completed", "{page}");
    let audit = format!("/v1/runs/{}/audit?limit=100", parent.run_id);
    for action in ["child_run_start", "child_run_get", "child_run_events_page"] {
        until(action, async || {
            let audit = stage.client.get(&audit).await.body;
            let mut calls = audit["items"].as_array().unwrap().iter();
            calls.any(|call| call["action"] == action)
        })
        .await;
    }
    parent.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn one_idempotency_key_starts_one_child(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let gate = hold_children(&stage, &completed());
    let parent = PausedRun::parent(&stage).await;
    let nothing = json!({});
    let (one, other) = tokio::join!(parent.spawn("k", &nothing), parent.spawn("k", &nothing));
    assert_eq!(one.run_id(), other.run_id());
    gate.cancel();
    parent.follow(&one.run_id(), 30).await;
    let again = parent.spawn("k", &json!({})).await;
    assert_eq!(again.run_id(), one.run_id());
    assert_eq!(again.body["status"], "completed");
    let mismatch = parent.spawn("k", &json!({"input": {"text": "else"}})).await;
    mismatch.assert_detail(409, "reason", "idempotency_mismatch");
    parent.end(&stage).await;
}

#[tokio::test]
async fn rejects_invalid_requests_by_pointer() {
    let stage = stage(Sqlite).await.unwrap();
    let parent = PausedRun::parent(&stage).await;
    for (more, pointer) in [
        (json!({"idempotency_key": ""}), "/idempotency_key"),
        (json!({"deadline_seconds": 0}), "/deadline_seconds"),
        (json!({"input": {}}), "/input"),
        (
            json!({"input": {"attachments": [{"artifact_id": "x"}]}}),
            "/input/attachments/0/id",
        ),
        (json!({"grants": {"tools": "*"}}), "/grants/tools"),
    ] {
        let refused = parent.spawn("k", &more).await.expect(400);
        assert_eq!(refused.detail("pointer"), pointer, "{}", refused.body);
    }
    let path = format!("/child-runs/{}?wait_seconds=31", parent.run_id);
    assert_eq!(parent.host.get(&path).await.status, 400);
    parent.end(&stage).await;
}

/// Asserts that a run ends as cancelled, and returns the reason.
pub async fn cancelled(stage: &Stage, run_id: &str) -> Value {
    let run = stage.client.finished(run_id).await;
    assert_eq!(run["status"], "cancelled", "{run}");
    run["status_reason"].clone()
}

#[rstest]
#[tokio::test]
async fn parent_cancels_one_child(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let gate = hold_children(&stage, &completed());
    let parent = PausedRun::parent(&stage).await;
    let child = parent.child(&stage, "k", &gate).await;
    let path = format!("/child-runs/{}/cancel", child.run_id);
    let refused = parent.host.create(&path, &json!({"reason": ""})).await;
    assert_eq!(refused.detail("pointer"), "/reason");
    let taken = parent
        .host
        .create(&path, &json!({"reason": "enough"}))
        .await;
    assert_eq!(taken.status, 200, "{}", taken.body);
    assert_eq!(cancelled(&stage, &child.run_id).await, "enough");
    let by = &stage.client.run(&child.run_id).await["cancelled_by"];
    assert_eq!(*by, json!({"kind": "run", "id": parent.run_id}));
    let body = parent.follow(&child.run_id, 0).await.body;
    assert_eq!(body["status"], "cancelled");
    assert_eq!(body["finish_reason"], Value::Null);
    parent.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn mcp_tool_waits_for_the_answer(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let gate = hold_children(&stage, &completed());
    let parent = PausedRun::parent(&stage).await;
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let listed = parent.host.create("/mcp", &list).await.body;
    let tools = listed["result"]["tools"].as_array().unwrap();
    let tool = tools.iter().find(|tool| tool["name"] == "child_run");
    let schema = &tool.unwrap()["inputSchema"];
    assert_eq!(schema["properties"]["agent"]["enum"], json!(["helper"]));
    let call = |agent: &str| {
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": {"name": "child_run", "arguments": {"agent": agent, "prompt": "do it"}}})
    };
    let (answered, host) = (call("helper"), &parent.host);
    let (answered, ()) = tokio::join!(host.create("/mcp", &answered), async {
        let is_child = |request: &RecordedRequest| {
            request.is_run() && request.json()["context"]["actor"]["actor_type"] == "agent"
        };
        stage
            .runner
            .wait_for_request("the child run", is_child)
            .await;
        gate.cancel();
    });
    let result = &answered.body["result"];
    assert_eq!(
        result["content"][0]["text"], "the answer",
        "{}",
        answered.body
    );
    assert_ne!(result["isError"], true);
    assert_eq!(result["structuredContent"]["status"], "completed");
    let refused = parent.host.create("/mcp", &call("stranger")).await.body;
    let error = &refused["error"]["data"]["error"];
    assert_eq!(error["code"], "unauthorized", "{refused}");
    parent.end(&stage).await;
}

/// Sends a request with the token of a finished run.
pub async fn after_end(held: &PausedRun, method: Method, path: &str) -> ApiResponse {
    let request = held.host.request(method, path);
    send(request.json(&json!({
        "agent_id": "helper", "input": {"text": "do it"}, "idempotency_key": "late",
    })))
    .await
    .unwrap()
}

/// Waits until the parent sees this status of a child run.
pub async fn shows(held: &PausedRun, child: &str, status: &str) {
    until("the status", async || {
        held.follow(child, 0).await.body["status"] == status
    })
    .await;
}
