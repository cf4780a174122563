//! Pauses by operators: hold, freeze, stop, and the resume at a rate.

use std::time::{Duration, Instant};

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::isolation::admin_key_of;
use crate::support::client::{ApiResponse, Client, message};
use crate::support::gateway::{Agent, Config};
use crate::support::held::HeldRun;
use crate::support::runner::StubRunner;
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, until};

const OTHER: &str = "test.other";

fn two_agents(config: &mut Config) {
    config.agents.push(Agent {
        name: "other",
        event_types: OTHER,
        ..Agent::default()
    });
}

/// A stage whose runner answers all runs.
async fn stage_of(engine: Engine) -> Option<OwnStage> {
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    OwnStage::of(engine, runner, two_agents).await
}

fn event_of(event_id: &str, event_type: &str) -> Value {
    let mut event = message(event_id);
    event["event_type"] = json!(event_type);
    event
}

async fn agent_path(stage: &Stage, name: &str) -> String {
    let agents = stage.admin.get("/v1/agents").await.body;
    let mut agents = agents["items"].as_array().unwrap().iter();
    let agent = agents.find(|agent| agent["name"] == name).unwrap();
    format!("/v1/agents/{}", agent["id"].as_str().unwrap())
}

async fn pause(client: &Client, scope: &str, mode: &str) -> Value {
    let body = json!({"mode": mode, "reason": "incident"});
    let path = format!("{scope}/pause");
    client.create(&path, &body).await.expect(200).body
}

async fn resume(client: &Client, scope: &str) -> Value {
    let path = format!("{scope}/resume");
    client.create(&path, &json!({})).await.expect(200).body
}

async fn pauses(client: &Client) -> Vec<Value> {
    let listed = client.get("/v1/pauses").await.expect(200).body;
    listed["items"].as_array().unwrap().clone()
}

async fn wait_until_none(client: &Client) {
    until("the pause to end", async || pauses(client).await.is_empty()).await;
}

#[rstest]
#[tokio::test]
async fn held_runs_wait_through_restart(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut stage = or_skip!(stage_of(engine).await);
    let live = HeldRun::start(&stage, &message("m-live")).await;
    let path = agent_path(&stage, "main").await;
    let paused = pause(&stage.admin, &path, "hold").await;
    assert_members!(paused, {"target": "agent", "mode": "hold", "reason": "incident"});
    assert_eq!(paused["paused_by"]["kind"], "api_key");

    let held = stage.client.post(&message("m-held")).await.expect(202);
    assert_eq!(held.body["status"], "created");
    let held = held.run_id();
    // Live runs and other agents go on.
    assert_eq!(live.get("/context").await.status, 200);
    assert_eq!(live.end(&stage).await.ending(), "completed");
    let other = stage.client.post(&event_of("m-other", OTHER)).await;
    stage.client.finished(&other.run_id()).await;
    assert_eq!(pauses(&stage.admin).await[0]["held_runs"], 1);

    // The start of a gateway dispatches created runs, but not held ones.
    stage.gateway.kill().await;
    stage.gateway.restart().await;
    let again = stage.client.post(&event_of("m-again", OTHER)).await;
    stage.client.finished(&again.run_id()).await;
    let readyz = stage.client.anonymous(Method::GET, "/readyz");
    let readyz = crate::support::client::send(readyz).await.unwrap().body;
    assert_members!(readyz, {"status": "ok", "pauses": 1});
    assert_eq!(stage.client.run(&held).await["status"], "created");
    assert_eq!(stage.runner.posts(&held), 0);

    assert_eq!(resume(&stage.admin, &path).await["mode"], "resuming");
    assert_eq!(stage.client.finished(&held).await["status"], "completed");
    wait_until_none(&stage.admin).await;
    // Without a pause, events start their runs again.
    let next = stage.client.post(&message("m-next")).await.run_id();
    assert_eq!(stage.client.finished(&next).await["status"], "completed");
}

#[rstest]
#[tokio::test]
async fn frozen_calls_wait_for_resume(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let scope = "/v1/workspaces/default";
    pause(&stage.admin, scope, "freeze").await;
    let call = run.get("/state/conversation/k");
    let mut call = Box::pin(call);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut call).await;
    assert!(early.is_err(), "{early:?}");
    // Without a token the runner would lose the run.
    assert_eq!(run.post("/token").await.status, 200);
    resume(&stage.admin, scope).await;
    assert_eq!(call.await.status, 404);
    assert_eq!(run.end(&stage).await.ending(), "completed");
}

#[tokio::test]
async fn frozen_calls_are_refused_after_bound() {
    let stage = or_skip!(stage_of(Sqlite).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    pause(&stage.admin, "/v1/workspaces/default", "freeze").await;
    let refused = run.get("/state/conversation/k").await;
    refused.assert_error(503, "code", "paused");
    assert_eq!(refused.error("retryable"), true);
    assert_eq!(refused.headers["retry-after"], "5");
    // A cancelled run does not wait.
    stage.client.cancel(&run.run_id).await.expect(202);
    let cancelled = run.get("/state/conversation/k").await;
    cancelled.assert_error(409, "code", "cancelled");
    run.release();
    stage.client.finished(&run.run_id).await;
}

#[rstest]
#[tokio::test]
async fn stop_cancels_live_runs_and_holds_new(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let (one, other) = (
        HeldRun::start(&stage, &message("m-1")).await,
        HeldRun::start(&stage, &event_of("m-2", OTHER)).await,
    );
    let path = agent_path(&stage, "main").await;
    pause(&stage.admin, &path, "stop").await;
    one.release();
    let stopped = stage.client.finished(&one.run_id).await;
    assert_members!(stopped, {"status": "cancelled", "status_reason": "incident"});
    let held = stage.client.post(&message("m-3")).await.run_id();
    assert_eq!(other.end(&stage).await.ending(), "completed");
    assert_eq!(stage.client.run(&held).await["status"], "created");
    // A held run can be cancelled.
    stage.client.cancel(&held).await;
    assert_eq!(stage.client.finished(&held).await["status"], "cancelled");
    assert_eq!(stage.runner.posts(&held), 0);
}

#[rstest]
#[tokio::test]
async fn resume_dispatches_at_rate(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let owner = stage.gateway.owner();
    pause(&owner, "/v1", "hold").await;
    let mut held = Vec::new();
    for number in 0..6 {
        let event = event_of(&format!("m-{number}"), OTHER);
        held.push(stage.client.post(&event).await.run_id());
    }
    let begun = Instant::now();
    let body = json!({"runs_per_second": 5});
    owner.create("/v1/resume", &body).await.expect(200);
    // A run of the resume waits behind the held ones.
    held.push(stage.client.post(&event_of("m-last", OTHER)).await.run_id());
    for run in &held {
        assert_eq!(stage.client.finished(run).await["status"], "completed");
    }
    // The first is due at once, six more at five in a second.
    assert!(begun.elapsed() >= Duration::from_millis(1200));
    wait_until_none(&stage.admin).await;
    let again = owner.create("/v1/resume", &json!({})).await;
    again.assert_error(404, "code", "not_found");
}

/// The statement of each dispatch checks the pause, on each replica.
#[tokio::test]
async fn no_replica_dispatches_after_pause() {
    let stage = or_skip!(stage_of(Postgres).await);
    let replica = stage.gateway.start_replica().await;
    let elsewhere = replica.client().await;
    let owner = stage.gateway.owner();
    let warm = elsewhere.post(&message("m-warm")).await.run_id();
    elsewhere.finished(&warm).await;
    pause(&owner, "/v1", "hold").await;
    let mut held = Vec::new();
    for number in 0..20 {
        let event = message(&format!("m-{number}"));
        held.push(elsewhere.post(&event).await.run_id());
    }
    for run in &held {
        assert_eq!(elsewhere.run(run).await["status"], "created");
        assert_eq!(stage.runner.posts(run), 0);
    }
    resume(&owner, "/v1").await;
    for run in &held {
        assert_eq!(elsewhere.finished(run).await["status"], "completed");
        assert_eq!(stage.runner.posts(run), 1);
    }
}

#[rstest]
#[tokio::test]
async fn pauses_concern_their_workspace_only(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let owner = stage.gateway.owner();
    let theirs = Client::new(&stage.client.url, &admin_key_of(&stage, "other").await);
    pause(&theirs, "/v1/workspaces/other", "stop").await;
    let run = stage.client.post(&message("m-1")).await.run_id();
    assert_eq!(stage.client.finished(&run).await["status"], "completed");
    assert!(pauses(&stage.admin).await.is_empty());
    let resume_of = "/v1/workspaces/other/resume";
    let foreign = stage.admin.create(resume_of, &json!({})).await;
    foreign.assert_error(404, "code", "not_found");

    // An owner pauses any workspace, and lists no agent.
    let path = agent_path(&stage, "main").await;
    pause(&stage.admin, &path, "hold").await;
    pause(&owner, "/v1/workspaces/default", "hold").await;
    let listed = pauses(&owner).await;
    let workspaces: Vec<_> = listed.iter().map(|pause| &pause["workspace_id"]).collect();
    assert_eq!(workspaces, ["other", "default"], "{listed:?}");
    assert_eq!(pauses(&stage.admin).await.len(), 2);

    // The run waits for the end of both.
    let held = stage.client.post(&message("m-2")).await.run_id();
    resume(&owner, "/v1/workspaces/default").await;
    until("the pause of the agent only", async || {
        pauses(&stage.admin).await.len() == 1
    })
    .await;
    assert_eq!(stage.client.run(&held).await["status"], "created");
    resume(&stage.admin, &path).await;
    assert_eq!(stage.client.finished(&held).await["status"], "completed");
}

#[tokio::test]
async fn rejects_invalid_pauses_by_pointer() {
    let stage = or_skip!(stage_of(Sqlite).await);
    let scope = "/v1/workspaces/default";
    let check = async |act: &str, body: Value, pointer: &str| {
        let path = format!("{scope}/{act}");
        let answer: ApiResponse = stage.admin.create(&path, &body).await;
        answer.assert_detail(400, "pointer", pointer);
    };
    check("pause", json!({"mode": "sleep"}), "/mode").await;
    check("pause", json!({"mode": "resuming"}), "/mode").await;
    check("pause", json!({"mode": "hold", "reason": ""}), "/reason").await;
    check("resume", json!({"runs_per_second": 0}), "/runs_per_second").await;
    let resume_of = format!("{scope}/resume");
    let absent = stage.admin.create(&resume_of, &json!({})).await;
    absent.assert_error(404, "code", "not_found");
}
