//! Acts on many runs: dry run, confirmed number, and jobs that continue without their request.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{Client, message};
use crate::support::database::rows;
use crate::support::gateway::{Agent, Config};
use crate::support::held::HeldRun;
use crate::support::runner::StubRunner;
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, until};

const OTHER: &str = "test.other";

fn event_of(event_id: &str, event_type: &str) -> Value {
    let mut event = message(event_id);
    event["event_type"] = json!(event_type);
    event
}

async fn failing_stage(engine: Engine, configure: impl FnOnce(&mut Config)) -> Option<OwnStage> {
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.failed(1)));
    OwnStage::of(engine, runner, configure).await
}

/// Failed runs of these events.
async fn failed_runs(stage: &Stage, count: usize) -> Vec<String> {
    let mut runs = Vec::new();
    for number in 0..count {
        let event = message(&format!("m-{number}"));
        runs.push(stage.client.post(&event).await.run_id());
    }
    for run in &runs {
        assert_eq!(stage.client.finished(run).await["status"], "failed");
    }
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    runs
}

/// Starts a job and returns its path.
async fn start(client: &Client, path: &str, expect: u64) -> String {
    let job = client.create(path, &json!({"expect": expect})).await;
    let path = job.headers["location"].to_str().unwrap().to_owned();
    assert_eq!(job.expect(202).body["total"], expect);
    path
}

async fn finished(client: &Client, job: &str) -> Value {
    let mut found = Value::Null;
    until("the job to end", async || {
        found = client.get(job).await.expect(200).body;
        found["finished_at"].is_number()
    })
    .await;
    found
}

#[rstest]
#[tokio::test]
async fn confirmed_number_cancels_matching_runs(#[values(Sqlite, Postgres)] engine: Engine) {
    let two_agents = |config: &mut Config| {
        config.agents.push(Agent {
            name: "other",
            event_types: OTHER,
            ..Agent::default()
        });
    };
    let stage = or_skip!(Stage::on(engine, two_agents).await);
    let mut runs = Vec::new();
    for number in 0..3 {
        let event = message(&format!("m-{number}"));
        runs.push(HeldRun::start(&stage, &event).await);
    }
    let other = HeldRun::start(&stage, &event_of("m-other", OTHER)).await;
    let agent = &stage.client.run(&runs[0].run_id).await["agent_id"];
    let path = format!("/v1/runs/cancel?agent_id={}", agent.as_str().unwrap());

    let dry_run = stage.client.create(&path, &json!({"dry_run": true})).await;
    let dry_run = dry_run.expect(200).body;
    assert_eq!(dry_run["count"], 3);
    let first = dry_run["first"].as_array().unwrap().iter();
    let first: Vec<_> = first.map(|run| run["run_id"].clone()).collect();
    let newest: Vec<_> = runs.iter().rev().map(|run| json!(run.run_id)).collect();
    assert_eq!(first, newest);
    let wrong = stage.client.create(&path, &json!({"expect": 2})).await;
    wrong.assert_detail(409, "reason", "count_changed");
    assert_eq!(wrong.detail("count"), 3);
    let untouched = stage.client.run(&runs[0].run_id).await;
    assert_eq!(untouched["cancel_requested_at"], Value::Null);

    let body = json!({"expect": 3, "reason": "incident"});
    let job = stage.client.create(&path, &body).await.expect(202).body;
    assert_members!(job, {"kind": "cancel", "total": 3, "reason": "incident"});
    assert_eq!(job["created_by"]["kind"], "api_key");
    let job = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    let job = finished(&stage.client, &job).await;
    assert_members!(job, {"status": "completed", "done": 3, "failed": 0});
    for run in &runs {
        run.release();
        let run = stage.client.finished(&run.run_id).await;
        assert_members!(run, {"status": "cancelled", "status_reason": "incident"});
    }
    assert_eq!(other.end(&stage).await.ending(), "completed");
    let jobs = stage.client.get("/v1/jobs").await.expect(200).body;
    assert_eq!(jobs["items"], json!([job]));
}

#[rstest]
#[tokio::test]
async fn killed_gateway_continues_retry_job(#[values(Sqlite, Postgres)] engine: Engine) {
    let short_lease = |config: &mut Config| config.runs = "lease_seconds = 2".into();
    let mut stage = or_skip!(failing_stage(engine, short_lease).await);
    let mut failed = failed_runs(&stage, 120).await;
    let job = start(&stage.client, "/v1/runs/retry?statuses=failed", 120).await;
    stage.gateway.kill().await;
    stage.gateway.restart().await;
    let job = finished(&stage.client, &job).await;
    assert_members!(job, {"status": "completed", "done": 120, "failed": 0});
    let sql = "SELECT retry_of FROM runs WHERE retry_of IS NOT NULL ORDER BY retry_of";
    let mut retried = rows(&stage.gateway.database_url(), sql).await;
    failed.sort();
    retried.sort();
    assert_eq!(retried, failed, "each run is retried once");
}

#[rstest]
#[tokio::test]
async fn job_waits_for_capacity_until_cancelled(#[values(Sqlite, Postgres)] engine: Engine) {
    let one_run = |config: &mut Config| config.limits = "workspace_runs = 1".into();
    let stage = or_skip!(failing_stage(engine, one_run).await);
    for number in 0..2 {
        let run = stage.client.post(&message(&format!("m-{number}"))).await;
        stage.client.finished(&run.run_id()).await;
    }
    let held = HeldRun::start(&stage, &message("m-held")).await;
    let cancelled = start(&stage.client, "/v1/runs/retry", 2).await;
    until("the job to begin", async || {
        stage.client.get(&cancelled).await.body["status"] == "running"
    })
    .await;
    let path = format!("{cancelled}/cancel");
    stage.client.create(&path, &json!({})).await.expect(200);
    let job = finished(&stage.client, &cancelled).await;
    assert_members!(job, {"status": "cancelled", "done": 0, "failed": 0, "total": 2});

    let waiting = start(&stage.client, "/v1/runs/retry", 2).await;
    held.end(&stage).await;
    let job = finished(&stage.client, &waiting).await;
    assert_members!(job, {"status": "completed", "done": 2, "failed": 0});
}

/// Both replicas look for jobs; each batch is one replica's.
#[tokio::test]
async fn replicas_share_jobs_without_double_count() {
    let stage = or_skip!(failing_stage(Postgres, |_| {}).await);
    let replica = stage.gateway.start_replica().await;
    let failed = failed_runs(&stage, 120).await;
    let elsewhere = replica.client().await;
    let job = start(&elsewhere, "/v1/runs/retry", failed.len() as u64).await;
    let job = finished(&stage.client, &job).await;
    assert_members!(job, {"status": "completed", "done": 120, "failed": 0});
}

#[tokio::test]
async fn job_lists_runs_that_it_cannot_change() {
    let stage = or_skip!(failing_stage(Sqlite, |_| {}).await);
    let failed = failed_runs(&stage, 1).await;
    let agents = stage.admin.get("/v1/agents").await.body;
    let agent = agents["items"][0]["id"].as_str().unwrap();
    let url = stage.gateway.database_url();
    rows(&url, &format!("DELETE FROM agents WHERE id = '{agent}'")).await;
    let job = start(&stage.client, "/v1/runs/retry", 1).await;
    let job = finished(&stage.client, &job).await;
    assert_members!(job, {"status": "completed", "done": 0, "failed": 1});
    assert_eq!(job["errors"][0]["run_id"], failed[0].as_str());
    let message = job["errors"][0]["message"].as_str().unwrap();
    assert!(message.contains("gets no run"), "{message}");
}

#[tokio::test]
async fn rejects_invalid_bulk_acts_by_pointer() {
    let stage = Stage::new().await;
    let check = async |path: &str, body: Value, pointer: &str| {
        let answer = stage.client.create(path, &body).await;
        answer.assert_detail(400, "pointer", pointer);
    };
    check("/v1/runs/cancel", json!({}), "/expect").await;
    let reasoned = json!({"expect": 1, "reason": "incident"});
    check("/v1/runs/retry", reasoned, "/reason").await;
    let dry_run = json!({"dry_run": true});
    let ended = "/v1/runs/cancel?statuses=running,failed";
    check(ended, dry_run.clone(), "/statuses").await;
    let live = "/v1/runs/retry?statuses=running";
    check(live, dry_run, "/statuses").await;
    let path = "/v1/jobs/01a20468-f8ea-76a6-9b32-32089ce69a5c";
    stage
        .client
        .get(path)
        .await
        .assert_error(404, "code", "not_found");
}
