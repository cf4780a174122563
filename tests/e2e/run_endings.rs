//! Runs that do not end by themselves: cancel, deadline, shutdown, crash of the gateway.

use reqwest::Method;
use rstest::rstest;
use serde_json::json;

use crate::support::client::message;
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::runner::StubRunner;
use crate::support::script::{Gate, Run, ScriptStep, send, sse_and_wait, sse_around, sse_head};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, until};

fn one_delta_and_wait(run: &Run) -> Vec<ScriptStep> {
    sse_and_wait(run.delta(1, "a"))
}

#[tokio::test]
async fn repeated_denied_calls_end_a_run() {
    const MAX_DENIED_CALLS: usize = 20;
    let stage = Stage::on(Sqlite, |config| {
        short_grace(config);
        config.limits = format!("run_denied_calls = {MAX_DENIED_CALLS}");
    })
    .await
    .unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    for n in 0..MAX_DENIED_CALLS - 1 {
        assert_eq!(run.get("/storage/plugin").await.status, 403, "call {n}");
    }
    let live = run.get("/run").await.body;
    assert_eq!(live["status"], "running", "{live}");
    // The last denied call gets its response; then the run ends.
    run.get("/storage/plugin").await;
    let ended = stage.client.finished(&run.run_id).await;
    assert_eq!(
        (ended["status"].as_str(), ended["status_reason"].as_str()),
        (Some("cancelled"), Some("runner.denied_calls"))
    );
    assert_eq!(ended["cancelled_by"], json!({"kind": "gateway"}));
    assert_eq!(run.get("/run").await.status, 401);
    let audit = format!("/v1/runs/{}/audit?limit=100", run.run_id);
    let audit = stage.client.get(&audit).await.body;
    let entries = audit["items"].as_array().unwrap().iter();
    let denied = entries.filter(|entry| entry["decision"] == "deny");
    let calls = denied.map(|entry| entry["calls"].as_u64().unwrap_or(1));
    assert_eq!(calls.sum::<u64>(), MAX_DENIED_CALLS as u64, "{audit}");
}

fn short_grace(config: &mut Config) {
    config.runs = "cancel_grace_seconds = 0.3".into();
}

/// Starts a run and waits for its first event.
async fn started(stage: &Stage) -> String {
    stage.runner.answer_all(one_delta_and_wait);
    let mut stream = stage.client.post_streaming(&message("m-1")).await;
    stream.event().await.unwrap();
    stream.run_id()
}

#[rstest]
#[tokio::test]
async fn repeated_cancels_give_one_cancelled_terminal(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, short_grace).await);
    let run_id = started(&stage).await;
    stage.client.cancel(&run_id).await.expect(202);
    for _ in 0..2 {
        // On a busy machine, the grace period may be over.
        let again = stage.client.cancel(&run_id).await;
        assert!(matches!(again.status, 200 | 202), "{}", again.body);
    }
    let outcome = stage.outcome(&run_id).await;
    outcome.assert("cancelled cancelled", &["message.delta", "run.failed"]);
    assert_eq!(outcome.ledger.last()["source"], "host");
    assert!(
        outcome.run["cancel_requested_at"].is_u64(),
        "{}",
        outcome.run
    );
    stage.runner.closed(1).await;

    let too_late = stage.client.cancel(&run_id).await;
    assert_eq!((too_late.status, &too_late.body), (200, &outcome.run));
    assert_eq!(stage.client.ledger(&run_id).await, outcome.ledger);
}

#[tokio::test]
async fn sends_one_signed_cancel_to_interruptible_runner() {
    let runner = StubRunner::start_interruptible().await;
    let stage = Stage::of(Sqlite, runner, short_grace).await.unwrap();
    let run_id = started(&stage).await;
    stage.client.cancel(&run_id).await;
    stage.client.cancel(&run_id).await;

    let cancel_request = stage.runner.cancel_request(&run_id).await;
    assert_eq!(cancel_request.method, "POST");
    let webhook_id = format!("cancel_{}_1", run_id.replace('-', ""));
    assert_eq!(
        cancel_request.header("webhook-id"),
        Some(webhook_id.as_str())
    );
    assert!(cancel_request.is_signed(), "{cancel_request:?}");
    assert_eq!(cancel_request.json()["run_id"], run_id.as_str());

    assert_eq!(stage.outcome(&run_id).await.ending(), "cancelled cancelled");
    let requests = stage.runner.requests().into_iter();
    let repeated = requests.filter(|request| request.path == cancel_request.path);
    assert_eq!(repeated.count(), 1);
}

/// The cancel arrives before the first byte of the response.
#[tokio::test]
async fn unanswered_runner_gets_cancel_grace() {
    let runner = StubRunner::start_interruptible().await;
    let long = |config: &mut Config| config.runs = "cancel_grace_seconds = 300".into();
    let stage = Stage::of(Sqlite, runner, long).await.unwrap();
    let gate = Gate::new();
    let hold = gate.clone();
    stage.runner.answer_all(move |run| {
        let body = run.talk(1).concat();
        vec![ScriptStep::Hold(hold.clone()), sse_head(), send(body)]
    });
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    let host = stage.host_of(&run_id).await;
    assert_eq!(stage.client.cancel(&run_id).await.status, 202);

    stage.runner.cancel_request(&run_id).await;
    host.get("/run").await.expect(200);
    gate.cancel();
    let outcome = stage.outcome(&run_id).await;
    outcome.assert("cancelled cancelled", &["message.delta", "run.completed"]);
}

#[tokio::test]
async fn unanswered_runner_is_disconnected_after_cancel_grace() {
    let stage = Stage::with(short_grace).await;
    stage.runner.answer_all(|_| vec![ScriptStep::AwaitClose]);
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    stage.runner.run_request(&run_id).await;
    stage.client.cancel(&run_id).await;
    let outcome = stage.outcome(&run_id).await;
    outcome.assert("cancelled cancelled", &["run.failed"]);
    stage.runner.closed(1).await;
}

#[tokio::test]
async fn sends_cancel_with_zero_grace() {
    let runner = StubRunner::start_interruptible().await;
    let none = |config: &mut Config| config.runs = "cancel_grace_seconds = 0".into();
    let stage = Stage::of(Sqlite, runner, none).await.unwrap();
    let run_id = started(&stage).await;
    stage.client.cancel(&run_id).await;
    stage.runner.cancel_request(&run_id).await;
    assert_eq!(stage.outcome(&run_id).await.ending(), "cancelled cancelled");
}

/// The silence timeout expires long before the grace period.
#[tokio::test]
async fn silent_runner_after_cancel_ends_as_cancelled() {
    let stage = Stage::with(|config| {
        config.runs = "cancel_grace_seconds = 300".into();
        config.limits = "silence_seconds = 2.0".into();
    })
    .await;
    let run_id = started(&stage).await;
    assert_eq!(stage.client.cancel(&run_id).await.status, 202);
    let outcome = stage.outcome(&run_id).await;
    outcome.assert("cancelled cancelled", &["message.delta", "run.failed"]);
}

#[tokio::test]
async fn sends_no_cancel_to_uninterruptible_runner() {
    let stage = Stage::with(short_grace).await;
    let run_id = started(&stage).await;
    stage.client.cancel(&run_id).await;
    assert_eq!(stage.outcome(&run_id).await.ending(), "cancelled cancelled");
    assert!(
        !stage
            .runner
            .requests()
            .iter()
            .any(|request| request.path.ends_with("/cancel"))
    );
}

#[tokio::test]
async fn cancel_ignores_ended_runs_and_rejects_unknown_ones() {
    let stage = Stage::new().await;
    let run_id = stage.start(|run| sse_and_wait(run.talk(1).concat())).await;
    let ended = stage.outcome(&run_id).await;
    let answer = stage.client.cancel(&run_id).await;
    assert_eq!((answer.status, &answer.body), (200, &ended.run));
    assert_eq!(stage.outcome(&run_id).await.ending(), "completed");

    let answer = stage.client.cancel(&uuid::Uuid::now_v7().to_string()).await;
    assert_eq!(
        (answer.status, answer.error("code").as_str()),
        (404, Some("not_found"))
    );
}

#[rstest]
#[tokio::test]
async fn deadline_ends_run_and_closes_socket(#[values(Sqlite, Postgres)] engine: Engine) {
    let soon = |config: &mut Config| config.agents[0].timeout_seconds = 1.0;
    let stage = or_skip!(Stage::on(engine, soon).await);
    let outcome = stage.play(one_delta_and_wait).await;
    outcome.assert(
        "timeout deadline_exceeded",
        &["message.delta", "run.failed"],
    );
    assert_eq!(outcome.ledger.last()["source"], "host");
    stage.runner.closed(1).await;
}

#[rstest]
#[tokio::test]
async fn shutdown_notifies_clients_and_ends_overdue_runs(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let grace = |config: &mut Config| config.runs = "shutdown_grace_seconds = 2".into();
    let mut stage = or_skip!(OwnStage::on(engine, grace).await);
    stage.runner.answer_all(one_delta_and_wait);
    let mut stream = stage.client.post_streaming(&message("m-1")).await;
    let run_id = stream.run_id();
    stream.event().await.unwrap();
    assert_eq!(readiness(&stage).await, 200);

    stage.gateway.terminate().await;
    let draining = loop {
        let frame = stream.frame().await.expect("the drain notice");
        if frame.event == "gateway.draining" {
            break frame;
        }
    };
    assert_eq!((draining.id, draining.data.as_str()), (None, ""));
    assert!(
        draining.raw.lines().any(|line| line.starts_with("retry: ")),
        "{draining:?}"
    );
    assert_eq!(readiness(&stage).await, 503);
    let last = stream.event().await.expect("the end of the run");
    assert!(last.data.contains("host.shutdown"), "{last:?}");
    assert!(stage.gateway.exited().await.success());
    stage.runner.closed(1).await;

    stage.gateway.restart().await;
    let outcome = stage.outcome(&run_id).await;
    outcome.assert("failed host.shutdown", &["message.delta", "run.failed"]);
    assert_eq!(stage.runner.posts(&run_id), 1);
}

async fn readiness(stage: &Stage) -> u16 {
    let answer = stage
        .client
        .anonymous(Method::GET, "/readyz")
        .send()
        .await
        .unwrap();
    answer.status().as_u16()
}

#[tokio::test]
async fn runs_finish_within_shutdown_grace() {
    let grace = |config: &mut Config| config.runs = "shutdown_grace_seconds = 30".into();
    let mut stage = OwnStage::with(grace).await;
    let gate = Gate::new();
    let held = gate.clone();
    stage
        .runner
        .answer_all(move |run| sse_around(&held, run.delta(1, "a"), run.completed(2)));
    let mut stream = stage.client.post_streaming(&message("m-1")).await;
    let run_id = stream.run_id();
    stream.event().await.unwrap();

    stage.gateway.terminate().await;
    while stream
        .frame()
        .await
        .is_some_and(|frame| frame.event != "gateway.draining")
    {}
    gate.cancel();
    let last = stream.event().await.expect("the end of the run");
    assert_eq!(last.event, "run.completed");
    assert!(stage.gateway.exited().await.success());

    stage.gateway.restart().await;
    let outcome = stage.outcome(&run_id).await;
    outcome.assert("completed", &["message.delta", "run.completed"]);
}

/// The run that is live at the signal ends as usual.
#[tokio::test]
async fn hangup_logs_one_warning_and_stops_nothing() {
    let stage = OwnStage::new().await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    stage.gateway.send_hangup().await;
    let warnings = || {
        let log = stage.gateway.log();
        let lines = log.lines().filter(|line| line.contains("SIGHUP"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    until("the warning", async || !warnings().is_empty()).await;
    assert_eq!(run.end(&stage).await.ending(), "completed");
    assert_eq!(stage.readiness().await, "ok");
    let warnings = warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("\"WARN\""), "{warnings:?}");
}

#[tokio::test]
async fn health_prints_why_gateway_is_not_ready() {
    let grace = |config: &mut Config| config.runs = "shutdown_grace_seconds = 30".into();
    let mut stage = OwnStage::with(grace).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    stage.gateway.terminate().await;
    until("the stop", async || stage.readiness().await != "ok").await;
    let health = ["health", "--url", &stage.client.url];
    let printed = stage.gateway.command(&health).await.exited(1);
    assert_eq!(printed.stderr, "error: not ready (HTTP 503): stopping\n");
    run.release();
    assert!(stage.gateway.exited().await.success());
}

#[rstest]
#[tokio::test]
async fn runs_of_killed_gateway_end_as_orphaned(#[values(Sqlite, Postgres)] engine: Engine) {
    let lease = |config: &mut Config| config.runs = "lease_seconds = 2".into();
    let mut stage = or_skip!(OwnStage::on(engine, lease).await);
    let run_id = started(&stage).await;
    stage.gateway.kill().await;
    stage.gateway.restart().await;

    let outcome = stage.outcome(&run_id).await;
    outcome.assert("failed host.orphaned", &["message.delta", "run.failed"]);
    assert_eq!(outcome.run["error"]["retryable"], true);
    assert_eq!(outcome.ledger.last()["source"], "host");
    assert_eq!(stage.runner.posts(&run_id), 1);
}

/// The cancel grace period is longer than the remaining life of the process, so another process ends the run.
#[rstest]
#[case::stopped(false)]
#[case::killed(true)]
#[tokio::test]
async fn gateway_exit_in_cancel_grace_ends_as_cancelled(#[case] killed: bool) {
    let graces = "cancel_grace_seconds = 60\nshutdown_grace_seconds = 0.5";
    let mut stage = OwnStage::with(|config| config.runs = graces.into()).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    assert_eq!(stage.client.cancel(&run.run_id).await.status, 202);
    if killed {
        stage.gateway.kill().await;
    } else {
        stage.gateway.stop().await;
    }
    stage.gateway.restart().await;
    let outcome = stage.outcome(&run.run_id).await;
    assert_eq!(outcome.ending(), "cancelled cancelled", "{}", outcome.run);
}
