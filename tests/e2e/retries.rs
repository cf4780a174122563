//! Retry of ended runs: a new run of the same event.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::child_runs::{PausedRun, hold_children, stage as stage_of_children};
use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::script::{Run, ScriptStep, sse};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage};

async fn retry(client: &Client, run_id: &str) -> ApiResponse {
    let path = format!("/v1/runs/{run_id}/retry");
    send(client.request(Method::POST, &path)).await.unwrap()
}

fn fails(run: &Run) -> Vec<ScriptStep> {
    sse(run.failed(1))
}

fn talks(run: &Run) -> Vec<ScriptStep> {
    sse(run.talk(1).concat())
}

#[rstest]
#[tokio::test]
async fn retries_run_of_killed_gateway(#[values(Sqlite, Postgres)] engine: Engine) {
    let lease = |config: &mut Config| config.runs = "lease_seconds = 2".into();
    let mut stage = or_skip!(OwnStage::on(engine, lease).await);
    let lost = HeldRun::start(&stage, &message("m-1")).await.run_id;
    stage.gateway.kill().await;
    stage.gateway.restart().await;
    let outcome = stage.outcome(&lost).await;
    assert_eq!(outcome.ending(), "failed host.orphaned");
    let advice = outcome.run["error"]["message"].as_str().unwrap();
    assert!(advice.contains("/retry"), "{advice}");

    stage.runner.answer("m-1", talks);
    let retried = retry(&stage.client, &lost).await.expect(202);
    let run_id = retried.body["run_id"].as_str().unwrap();
    assert_eq!(retried.body["retry_of"], lost.as_str());
    assert_eq!(retried.body["event_id"], "m-1");
    assert_eq!(retried.headers["location"], format!("/v1/runs/{run_id}"));
    let outcome = stage.outcome(run_id).await;
    outcome.assert("completed", &["message.delta", "run.completed"]);

    let path = "/v1/conversations/c-7/history?direction=forward";
    let history = stage.client.get(path).await.body;
    let roles = history["items"].as_array().unwrap().iter();
    let roles: Vec<_> = roles.map(|item| &item["role"]).collect();
    assert_eq!(roles, ["user", "assistant"], "{history}");
}

#[rstest]
#[tokio::test]
async fn concurrent_retries_make_one_run(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    stage.runner.answer_all(fails);
    let mut event = message("m-1");
    event["conversation"] = Value::Null;
    let failed = stage.client.post(&event).await.run_id();
    stage.client.finished(&failed).await;

    let retries = (0..8).map(|_| retry(&stage.client, &failed));
    let answers = futures_util::future::join_all(retries).await;
    let run_id = &answers[0].body["run_id"];
    for answer in &answers {
        assert_eq!(&answer.body["run_id"], run_id, "{}", answer.body);
        assert_eq!(answer.is_replay(), answer.status == 200);
    }
    let created = answers.iter().filter(|answer| answer.status == 202);
    assert_eq!(created.count(), 1);
    assert_eq!(
        stage.client.get("/v1/runs").await.body["items"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test]
async fn retry_decides_with_agents_of_now() {
    let stage = Stage::new().await;
    let failed = stage.start(fails).await;
    stage.client.finished(&failed).await;
    let agents = stage.admin.get("/v1/agents").await.body;
    let agent = &agents["items"][0];
    let path = format!("/v1/agents/{}", agent["id"].as_str().unwrap());
    stage.admin.delete(&path).await;
    let refused = retry(&stage.client, &failed).await;
    refused.assert_detail(409, "reason", "no_agent");

    let mut spec = agent.as_object().unwrap().clone();
    for set in [
        "id",
        "origin",
        "version",
        "created_at",
        "updated_at",
        "updated_by",
    ] {
        spec.remove(set);
    }
    let created = stage.admin.create("/v1/agents", &json!(spec)).await;
    let retried = retry(&stage.client, &failed).await;
    assert_eq!(
        retried.body["agent_id"], created.body["id"],
        "{}",
        retried.body
    );
}

#[tokio::test]
async fn refuses_retry_of_live_completed_and_child_runs() {
    let stage = stage_of_children(Sqlite).await.unwrap();
    let gate = hold_children(&stage, &json!({"finish_reason": "stop"}));
    let parent = PausedRun::parent(&stage).await;
    let child = parent.child(&stage, "k-1", &gate).await.run_id;
    stage.client.cancel(&child).await;
    stage.client.finished(&child).await;

    let of_child = retry(&stage.client, &child).await;
    let live = retry(&stage.client, &parent.run_id).await;
    parent.end(&stage).await;
    let completed = retry(&stage.client, &parent.run_id).await;
    let reasons = [of_child, live, completed].map(|answer| {
        assert_eq!(answer.status, 409, "{}", answer.body);
        answer.detail("reason").clone()
    });
    assert_eq!(reasons, ["child_run", "run_live", "run_completed"]);
}
