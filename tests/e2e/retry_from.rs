//! Retry of an ended run from one of its results: the record answers its earlier tool calls.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::deferred::Deferred;
use crate::support::gateway::{Config, GatewayProcess};
use crate::support::python::{example, python_with_httpx};
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::{Run, ScriptStep, sse};
use crate::support::tool_server::ToolServer;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, until};
use crate::tools::tools_at;

async fn retry(stage: &Stage, run_id: &str, from: &Value) -> ApiResponse {
    let path = format!("/v1/runs/{run_id}/retry");
    let body = json!({ "from": from });
    stage.client.call(Method::POST, &path, &body).await
}

/// A stage with a resumable runner that may call the tool `echo` of this server.
async fn stage_with(engine: Engine, server: &ToolServer) -> Option<OwnStage> {
    let mut manifest = manifest(RUNNER_ID);
    manifest["capabilities"]["resumable"] = json!(true);
    manifest["permissions"] = json!({"tools": ["call"]});
    let runner = StubRunner::start_as(manifest).await;
    OwnStage::of(engine, runner, |config| {
        config.agents[0].resources = r#"tools = "*""#;
        config.rest = tools_at(server, "effect = \"write\"", &["echo", "drop"]);
    })
    .await
}

async fn call(host: &Client, key: Option<&str>, step: u64) -> ApiResponse {
    call_of("echo", host, key, step).await
}

async fn call_of(tool: &str, host: &Client, key: Option<&str>, step: u64) -> ApiResponse {
    let request = host.request(Method::POST, &format!("/tools/{tool}/call"));
    let request = match key {
        Some(key) => request.header("idempotency-key", key),
        None => request,
    };
    let body = json!({"parameters": {"step": step}});
    send(request.json(&body)).await.unwrap()
}

/// Appends the result of a step, and waits until the ledger has it.
async fn append_step(stage: &Stage, run: &Deferred, step: u64) {
    let data = json!({"tool_call_id": format!("t-{step}"), "tool_name": "echo", "result": {}});
    let result = run.result(step, "tool.call.completed", &data);
    run.accepted(&[result], step).await;
    until("the result", async || {
        stage.client.run(&run.run_id).await["last_sequence"] == step
    })
    .await;
}

async fn fail(stage: &Stage, run: &Deferred, sequence: u64) {
    let data = json!({"code": "boom", "message": "it broke"});
    let end = run.result(sequence, "run.failed", &data);
    run.accepted(&[end], sequence).await;
    let ended = stage.client.finished(&run.run_id).await;
    assert_eq!(ended["status"], "failed", "{ended}");
}

/// A failed run of three steps, each a tool call and its result. Returns also the answers of the tool.
async fn failed_run(stage: &Stage) -> (String, Vec<Value>) {
    let run = Deferred::start(stage, &message("m-1")).await;
    let mut answers = Vec::new();
    for step in 1..=3 {
        let key = format!("k-{step}");
        let called = call(&run.host, Some(&key), step).await.expect(200);
        answers.push(called.body);
        append_step(stage, &run, step).await;
    }
    fail(stage, &run, 4).await;
    (run.run_id, answers)
}

/// Retries a run from a result, and waits for the run request of the new run.
async fn retried(stage: &Stage, run_id: &str, from: u64) -> Deferred {
    let answer = retry(stage, run_id, &json!(from)).await.expect(202);
    let new = answer.body["run_id"].as_str().unwrap().to_owned();
    Deferred {
        host: stage.host_of(&new).await,
        run_id: new,
    }
}

/// Runs and sequences of the results in the context of a run.
async fn origin_of(stage: &Stage, run_id: &str) -> Value {
    let context = stage.runner.context_of(run_id).await;
    let from = &context["runtime"]["from"];
    let results = from["results"].as_array().unwrap().iter();
    let results: Vec<_> = results
        .map(|result| json!([result["run_id"], result["sequence"], result["type"]]))
        .collect();
    json!({"run_id": from["run_id"], "after": from["after"], "results": results})
}

/// The runs that answered calls of this run from the record.
async fn recorded_rules(stage: &Stage, run_id: &str) -> Vec<String> {
    let audit = stage.client.get(&format!("/v1/runs/{run_id}/audit")).await;
    let items = audit.body["items"].as_array().unwrap().iter();
    let rules = items.filter_map(|row| row["rule"].as_str());
    let rules = rules.filter_map(|rule| rule.strip_prefix("recorded in run "));
    rules.map(str::to_owned).collect()
}

#[rstest]
#[tokio::test]
async fn record_answers_calls_before_the_result(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = ToolServer::start().await;
    let stage = or_skip!(stage_with(engine, &server).await);
    let (old, answers) = failed_run(&stage).await;
    let calls = || server.seen("/echo").len();
    assert_eq!(calls(), 3);

    let new = retried(&stage, &old, 2).await;
    let step = "tool.call.completed";
    let expected = json!({"run_id": old, "after": 2, "results": [[old, 1, step], [old, 2, step]]});
    assert_eq!(origin_of(&stage, &new.run_id).await, expected);
    // Other keys than those of the ended run, and none.
    let first = call(&new.host, Some("n-1"), 1).await.expect(200);
    assert_eq!(first.body, answers[0]);
    let second = call(&new.host, None, 2).await.expect(200);
    assert_eq!(second.body, answers[1]);
    let again = call(&new.host, Some("n-1"), 1).await.expect(200);
    assert_eq!(again.body, answers[0]);
    assert_eq!(calls(), 3, "recorded calls reach no tool");
    let other = call(&new.host, Some("n-1"), 2).await;
    other.assert_detail(409, "reason", "idempotency_mismatch");
    assert_eq!(
        recorded_rules(&stage, &new.run_id).await,
        vec![old.clone(); 4]
    );

    // The call after the result, one with other parameters, and a further equal call.
    for (step, live) in [(3, 4), (9, 5), (1, 6)] {
        call(&new.host, None, step).await.expect(200);
        assert_eq!(calls(), live, "step {step}");
    }
    assert_eq!(recorded_rules(&stage, &new.run_id).await.len(), 4);
    fail(&stage, &new, 1).await;
}

#[rstest]
#[tokio::test]
async fn both_runs_name_each_other(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = ToolServer::start().await;
    let stage = or_skip!(stage_with(engine, &server).await);
    let (old, _) = failed_run(&stage).await;
    assert_eq!(stage.client.run(&old).await["retried_as"], Value::Null);
    let new = retried(&stage, &old, 2).await.run_id;
    let run = stage.client.run(&new).await;
    assert_members!(run, {"retry_of": old, "retry_from": 2});
    assert_eq!(stage.client.run(&old).await["retried_as"], new.as_str());

    let again = retry(&stage, &old, &json!(2)).await.expect(200);
    assert_eq!(again.body["run_id"], new.as_str());
    let other = retry(&stage, &old, &json!(1)).await;
    other.assert_detail(409, "reason", "already_retried");
    assert_eq!(other.detail("run_id"), new.as_str());
}

#[rstest]
#[tokio::test]
async fn retry_of_retry_continues_both_records(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = ToolServer::start().await;
    let stage = or_skip!(stage_with(engine, &server).await);
    let (first, answers) = failed_run(&stage).await;
    let second = retried(&stage, &first, 2).await;
    let live = call(&second.host, Some("n-3"), 3).await.expect(200).body;
    append_step(&stage, &second, 1).await;
    fail(&stage, &second, 2).await;
    let calls = server.seen("/echo").len();

    let third = retried(&stage, &second.run_id, 1).await;
    let (step, second) = ("tool.call.completed", second.run_id);
    let results = json!([[first, 1, step], [first, 2, step], [second, 1, step]]);
    let expected = json!({"run_id": second, "after": 1, "results": results});
    assert_eq!(origin_of(&stage, &third.run_id).await, expected);
    for (step, recorded) in [(1, &answers[0]), (2, &answers[1]), (3, &live)] {
        let answer = call(&third.host, None, step).await.expect(200);
        assert_eq!(&answer.body, recorded, "step {step}");
    }
    assert_eq!(server.seen("/echo").len(), calls);
    let rules = recorded_rules(&stage, &third.run_id).await;
    assert_eq!(rules, [first.clone(), first, second]);
}

#[rstest]
#[tokio::test]
async fn withdrawn_tool_is_not_answered(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = ToolServer::start().await;
    let mut stage = or_skip!(stage_with(engine, &server).await);
    let (old, _) = failed_run(&stage).await;
    stage
        .gateway
        .reconfigure(|config| config.agents[0].resources = "tools = []");
    stage.gateway.stop().await;
    stage.gateway.restart().await;
    let new = retried(&stage, &old, 2).await;
    call(&new.host, Some("n-1"), 1).await.expect(403);
    assert_eq!(recorded_rules(&stage, &new.run_id).await, [""; 0]);
    assert_eq!(server.seen("/echo").len(), 3);
}

fn one_step_then_failed(run: &Run) -> Vec<ScriptStep> {
    let step = r#"{"tool_call_id":"t-1","tool_name":"echo","result":{}}"#;
    sse([
        run.delta(1, "working"),
        run.result(2, "tool.call.completed", step),
        run.failed(3),
    ]
    .concat())
}

#[tokio::test]
async fn refuses_points_that_are_no_results() {
    let runner = StubRunner::start_resumable(20).await;
    let stage = Stage::of(Sqlite, runner, |_| {}).await.unwrap();
    let failed = stage.start(one_step_then_failed).await;
    stage.client.finished(&failed).await;
    for (from, why) in [
        (json!(0), "no event"),
        (json!(1), "a delta"),
        (json!(3), "the end"),
        (json!(99), "no event"),
        (json!(-1), "no sequence"),
        (json!("2"), "no number"),
    ] {
        let refused = retry(&stage, &failed, &from).await;
        assert_eq!(refused.status, 400, "{why}: {}", refused.body);
        assert_eq!(refused.detail("pointer"), "/from", "{why}");
    }
    let held = Deferred::start(&stage, &message("m-2")).await;
    let live = retry(&stage, &held.run_id, &json!(1)).await;
    live.assert_detail(409, "reason", "run_live");
    fail(&stage, &held, 1).await;
    retry(&stage, &failed, &json!(2)).await.expect(202);
}

#[tokio::test]
async fn refuses_runner_that_is_not_resumable() {
    let stage = Stage::new().await;
    let failed = stage.start(one_step_then_failed).await;
    stage.client.finished(&failed).await;
    let refused = retry(&stage, &failed, &json!(2)).await;
    refused.assert_detail(400, "reason", "not_resumable");
    assert_eq!(refused.detail("pointer"), "/from");
    let plain = retry(&stage, &failed, &Value::Null).await.expect(202);
    assert_eq!(plain.body.get("retry_from"), None, "{}", plain.body);
}

#[tokio::test]
async fn refuses_another_runner_after_a_result() {
    const OTHER: &str = "plugin:tests/other/default";
    let manifests = [RUNNER_ID, OTHER].map(|id| {
        let mut manifest = manifest(id);
        manifest["capabilities"]["resumable"] = json!(true);
        manifest
    });
    let runner = StubRunner::start_listing(json!(manifests)).await;
    let mut stage = OwnStage::of(Sqlite, runner, |_| {}).await.unwrap();
    let failed = stage.start(one_step_then_failed).await;
    stage.client.finished(&failed).await;
    stage
        .gateway
        .reconfigure(|config| config.agents[0].runner_id = OTHER);
    stage.gateway.stop().await;
    stage.gateway.restart().await;
    let refused = retry(&stage, &failed, &json!(2)).await;
    refused.assert_detail(409, "reason", "runner_changed");
    assert_eq!(refused.detail("runner_id"), OTHER);
}

#[rstest]
#[tokio::test]
async fn deleted_record_is_not_called_again(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = ToolServer::start().await;
    let mut stage = or_skip!(stage_with(engine, &server).await);
    let (old, _) = failed_run(&stage).await;
    let new = retried(&stage, &old, 2).await;
    stage.gateway.reconfigure(|config| {
        "lease_seconds = 1.5".clone_into(&mut config.runs);
        "retention_days = 0.000001".clone_into(&mut config.ledger);
    });
    stage.gateway.stop().await;
    stage.gateway.restart().await;
    let events = format!("/v1/runs/{old}/events");
    until("the events to go", async || {
        stage.client.get(&events).await.status == 410
    })
    .await;
    let gone = call(&new.host, Some("n-1"), 1).await;
    gone.assert_detail(409, "reason", "record_gone");
    assert_eq!(server.seen("/echo").len(), 3);
    append_step(&stage, &new, 1).await;
    fail(&stage, &new, 2).await;
    let late = retry(&stage, &new.run_id, &json!(1)).await;
    late.assert_detail(400, "pointer", "/from");
    assert_contains!(late.error("message").as_str().unwrap(), "retention");
}

#[rstest]
#[tokio::test]
async fn unknown_outcome_of_the_record_is_not_repeated(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = ToolServer::start().await;
    let stage = or_skip!(stage_with(engine, &server).await);
    let old = Deferred::start(&stage, &message("m-1")).await;
    let dropped = call_of("drop", &old.host, Some("k-1"), 1).await;
    assert_ne!(dropped.status, 200);
    append_step(&stage, &old, 1).await;
    fail(&stage, &old, 2).await;

    let new = retried(&stage, &old.run_id, 1).await;
    let repeated = call_of("drop", &new.host, Some("n-1"), 1).await;
    repeated.assert_detail(409, "reason", "outcome_unknown");
    assert_eq!(server.seen("/drop").len(), 1);
    fail(&stage, &new, 1).await;
}

/// A result of 200 KiB fits into the context of a retry, two do not.
#[tokio::test]
async fn refuses_results_beyond_context_limit() {
    let runner = StubRunner::start_resumable(20).await;
    let stage = Stage::of(Sqlite, runner, |_| {}).await.unwrap();
    let text = "x".repeat(200 << 10);
    let large =
        format!(r#"{{"tool_call_id":"t","tool_name":"echo","result":{{"text":"{text}"}}}}"#);
    let failed = stage
        .start(move |run| {
            let results = [1, 2].map(|n| run.result(n, "tool.call.completed", &large));
            sse([results.concat(), run.failed(3)].concat())
        })
        .await;
    stage.client.finished(&failed).await;
    let refused = retry(&stage, &failed, &json!(2)).await;
    refused.assert_detail(400, "pointer", "/from");
    assert_contains!(refused.error("message").as_str().unwrap(), "262144 bytes");
    retry(&stage, &failed, &json!(1)).await.expect(202);
}

/// A gateway whose agent has the order runner. Its tool `ship` is at this path of the server.
fn order_config(config: &mut Config, server: &ToolServer, ship: &str) {
    config.agents[0].runner_id = "plugin:runnel/order-python/default";
    config.agents[0].resources = r#"tools = "*""#;
    let tool = |name: &str, path: &str| {
        format!(
            "[[tools]]\ntool_name = \"{name}\"\nurl = \"{}{path}\"\neffect = \"write\"\n",
            server.url
        )
    };
    config.rest = [
        tool("reserve", "/echo/reserve"),
        tool("charge", "/echo/charge"),
        tool("ship", ship),
    ]
    .concat();
}

#[tokio::test]
async fn order_example_continues_with_failed_step() {
    let python = or_skip!(python_with_httpx().await);
    let runner = or_skip!(example(python, "order_runner.py").await);
    let server = ToolServer::start().await;
    let mut config = Config::for_runner_at(&runner.url);
    order_config(&mut config, &server, "/refuse");
    let mut gateway = GatewayProcess::start(Sqlite, config).await.unwrap();
    let client = gateway.client();
    let run_id = client.post(&message("m-1")).await.run_id();
    let failed = client.finished(&run_id).await;
    assert_eq!(failed["status"], "failed", "{failed}");
    gateway.reconfigure(|config| order_config(config, &server, "/echo/ship"));
    gateway.stop().await;
    gateway.restart().await;

    let events = client.ledger(&run_id).await.types();
    let charged = events
        .iter()
        .rposition(|kind| kind == "tool.call.completed");
    let body = json!({"from": charged.unwrap() + 1});
    let path = format!("/v1/runs/{run_id}/retry");
    let new = client.call(Method::POST, &path, &body).await.expect(202);
    let ended = client.finished(&new.run_id()).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    assert_eq!(ended["output"]["content"], "Shipped.");
    for step in ["reserve", "charge", "ship"] {
        assert_eq!(server.seen(&format!("/echo/{step}")).len(), 1, "{step}");
    }
}
