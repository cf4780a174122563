//! Runs answered with 202 move between gateways: the next owner judges their accepted results exactly once.

use reqwest::Method;
use rstest::rstest;
use serde_json::json;
use sqlx::{Connection, PgConnection};

use crate::interactions::{asking_event, question};
use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::deferred::Deferred;
use crate::support::gateway::Config;
use crate::support::tool_server::ToolServer;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, until};
use crate::tools::{stage_of, tools_at};

/// Leases of a killed gateway expire soon.
fn short_lease(config: &mut Config) {
    config.runs = "lease_seconds = 2\ncancel_grace_seconds = 0.5".into();
}

async fn wait_for_ledger_length(stage: &Stage, run: &Deferred, events: u64) {
    until("the results to be judged", async || {
        stage.client.run(&run.run_id).await["last_sequence"] == events
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn deferred_run_survives_killed_and_stopped_gateways(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let mut stage = or_skip!(OwnStage::on(engine, short_lease).await);
    let run = Deferred::start(&stage, &message("m-1")).await;
    let bad = json!({"scope": "nobody", "key": "k", "value": 1});
    let usage = json!({"input_tokens": 3, "output_tokens": 5});
    let mut first = run.delta(1, "one ");
    first["usage"] = usage.clone();
    run.accepted(&[first, run.result(2, "state.updated", &bad)], 2)
        .await;
    wait_for_ledger_length(&stage, &run, 1).await;
    let mut watching = stage.client.follow(&run.run_id, 0).await;
    watching.event().await.unwrap();

    stage.gateway.kill().await;
    stage.gateway.restart().await;
    // After the committed results: no duplicates, and the new owner knows the earlier results.
    run.accepted(
        &[run.result(2, "state.updated", &bad), run.delta(3, "two ")],
        3,
    )
    .await;
    run.accepted(&[run.result(4, "state.updated", &bad)], 4)
        .await;
    wait_for_ledger_length(&stage, &run, 2).await;

    stage.gateway.stop().await;
    stage.gateway.restart().await;
    run.accepted(&[run.delta(5, "three"), run.completed(6)], 6)
        .await;
    let outcome = stage.outcome(&run.run_id).await;
    let deltas = ["message.delta"; 3];
    outcome.assert("completed", &[&deltas[..], &["run.completed"]].concat());
    assert_eq!(outcome.ledger.text(), "one two three");
    outcome.assert_rejected(&["invalid_payload", "invalid_payload"]);
    assert_eq!(outcome.run["usage"], usage);
    assert_eq!(
        outcome.run["output"]["content"], "one two three",
        "gathered over three owners"
    );
    assert_eq!(stage.runner.posts(&run.run_id), 1);
}

/// Results sent to a gateway that crashes before it relays them: all of them are stored, or none.
#[rstest]
#[case::during_relay("relay.before_commit")]
#[case::at_terminal("terminal.before_commit")]
#[tokio::test]
async fn next_owner_judges_accepted_results_past_deadline(
    #[values(Sqlite, Postgres)] engine: Engine,
    #[case] moment: &str,
) {
    let configure = |config: &mut Config| {
        short_lease(config);
        config.agents[0].timeout_seconds = 4.0;
    };
    let mut stage = or_skip!(OwnStage::on(engine, configure).await);
    stage.gateway.kill().await;
    let dying = format!("{moment}=return(abort)");
    assert!(stage.gateway.start_with_failpoints(&dying).await);
    let run = Deferred::start(&stage, &message("m-1")).await;
    let mut results = vec![run.delta(1, "all of it")];
    if moment.starts_with("terminal") {
        results.push(run.completed(2));
    }
    let is_acknowledged = run.append_before_crash(&results).await;
    stage.gateway.exited().await;
    let begun = std::time::Instant::now();
    until("the deadline to be over", async || {
        begun.elapsed().as_secs_f64() > 4.0
    })
    .await;

    stage.gateway.restart().await;
    let outcome = stage.outcome(&run.run_id).await;
    let is_stored = outcome.ledger.text() == "all of it";
    // The crash may precede the commit that accepts the results.
    assert!(is_stored || !is_acknowledged);
    let (ending, types) = match (is_stored, moment.starts_with("terminal")) {
        (true, true) => ("completed", &["message.delta", "run.completed"][..]),
        (true, false) => (
            "timeout deadline_exceeded",
            &["message.delta", "run.failed"][..],
        ),
        (false, _) => ("timeout deadline_exceeded", &["run.failed"][..]),
    };
    outcome.assert(ending, types);
}

#[tokio::test]
async fn stopping_replica_releases_deferred_runs_at_once() {
    let configure = |config: &mut Config| {
        // The handover waits for neither the lease nor the grace period.
        config.runs = "lease_seconds = 300\nshutdown_grace_seconds = 300".into();
        "public_url = \"http://runnel.test\"".clone_into(&mut config.server);
    };
    let mut stage = or_skip!(OwnStage::on(Postgres, configure).await);
    let replica = stage.gateway.start_replica().await;
    let run = Deferred::start(&stage, &message("m-1")).await;
    run.accepted(&[run.delta(1, "one ")], 1).await;
    wait_for_ledger_length(&stage, &run, 1).await;
    let watching = replica.client.follow(&run.run_id, 0).await;

    stage.gateway.stop().await;
    let elsewhere = Client::new(&format!("{}/host/v1", replica.client.url), &run.host.key);
    let request = elsewhere.request(Method::GET, "/run").send().await.unwrap();
    assert_eq!(request.status(), 200);
    let rest = [run.delta(2, "two"), run.completed(3)];
    assert_eq!(run.append_as(&elsewhere, &rest).await.status, 200);
    let frames = watching.rest().await;
    let streamed: Vec<_> = frames.into_iter().map(|frame| frame.data).collect();
    let ledger = replica.client.ledger(&run.run_id).await;
    assert_eq!(streamed, ledger.0);
    ledger.assert_valid(&run.run_id);
    assert_eq!(ledger.text(), "one two");
    assert_contains!(replica.log(), "this replica continues run");
    stage.gateway.restart().await;
}

#[rstest]
#[tokio::test]
async fn frozen_replica_judges_nothing_after_takeover(#[values(true, false)] is_canceled: bool) {
    let configure = |config: &mut Config| {
        short_lease(config);
        "public_url = \"http://runnel.test\"".clone_into(&mut config.server);
    };
    let stage = or_skip!(OwnStage::on(Postgres, configure).await);
    let replica = stage.gateway.start_replica().await;
    let run = Deferred::start(&stage, &message("m-1")).await;
    run.accepted(&[run.delta(1, "one ")], 1).await;
    wait_for_ledger_length(&stage, &run, 1).await;

    stage.gateway.pause().await;
    let elsewhere = Client::new(&format!("{}/host/v1", replica.client.url), &run.host.key);
    let more = [run.delta(2, "two ")];
    // The frozen process may hold a row lock.
    until("the results to be taken", async || {
        let answer = run.append_as(&elsewhere, &more).await;
        assert!(matches!(answer.status, 200 | 503), "{}", answer.body);
        answer.status == 200
    })
    .await;
    until("the other owner to continue", async || {
        replica.client.run(&run.run_id).await["last_sequence"] == 2
    })
    .await;
    stage.gateway.unfreeze().await;
    if is_canceled {
        assert_eq!(replica.client.cancel(&run.run_id).await.status, 202);
        let outcome = stage.outcome(&run.run_id).await;
        let types = ["message.delta", "message.delta", "run.failed"];
        return outcome.assert("cancelled cancelled", &types);
    }
    // Both replicas accept results; only the owner judges them.
    run.accepted(&[run.delta(3, "three")], 3).await;
    let end = run.append_as(&elsewhere, &[run.completed(4)]).await;
    assert_eq!(end.status, 200, "{}", end.body);
    let outcome = stage.outcome(&run.run_id).await;
    assert_eq!(outcome.ending(), "completed");
    assert_eq!(outcome.ledger.text(), "one two three");
    assert_eq!(outcome.ledger.0.len(), 4);
}

#[rstest]
#[tokio::test]
async fn silent_runner_is_orphaned_after_takeover(#[values(Sqlite, Postgres)] engine: Engine) {
    let configure = |config: &mut Config| {
        short_lease(config);
        config.runs.push_str("\nappend_lease_seconds = 1");
    };
    let mut stage = or_skip!(OwnStage::on(engine, configure).await);
    let run = Deferred::start(&stage, &message("m-1")).await;
    run.accepted(&[run.delta(1, "one")], 1).await;
    wait_for_ledger_length(&stage, &run, 1).await;
    stage.gateway.kill().await;
    stage.gateway.restart().await;
    let outcome = stage.outcome(&run.run_id).await;
    outcome.assert("failed runner.orphaned", &["message.delta", "run.failed"]);
}

/// Calls a slow tool and stops the gateway during the call.
async fn call_during_shutdown(
    stage: &OwnStage,
    run: &Deferred,
    server: &ToolServer,
) -> ApiResponse {
    let calling = run.host.request(Method::POST, "/tools/slow/call");
    let calling = send(calling.json(&json!({"parameters": {}})));
    let stopping = async {
        until("the call", async || server.seen("/slow").len() == 1).await;
        stage.gateway.terminate().await;
    };
    let (answer, ()) = tokio::join!(calling, stopping);
    answer.unwrap()
}

/// Another gateway resumes the run, but not its calls.
#[tokio::test]
async fn host_calls_finish_within_shutdown_grace() {
    let server = ToolServer::start().await;
    let catalog = tools_at(&server, "", &["slow"]);
    let mut stage = stage_of(Sqlite, catalog, |_| {}).await.unwrap();
    let run = Deferred::start(&stage, &message("m-1")).await;
    let answer = call_during_shutdown(&stage, &run, &server).await;
    // The result of the tool, not of the shutdown.
    let outcome = (answer.status, answer.detail("reason"));
    assert_eq!(
        outcome,
        (504, &json!("upstream_timeout")),
        "{}",
        answer.body
    );
    assert!(stage.gateway.exited().await.success());
    assert!(stage.gateway.log().contains("released the lease of run"));
    stage.gateway.restart().await;
    run.accepted(&[run.delta(1, "done"), run.completed(2)], 2)
        .await;
    let types = ["message.delta", "run.completed"];
    stage.outcome(&run.run_id).await.assert("completed", &types);
}

/// A call that exceeds the grace period gets an error that asks for a retry at the next owner.
#[tokio::test]
async fn host_calls_beyond_shutdown_grace_ask_for_retry() {
    let server = ToolServer::start().await;
    let catalog = tools_at(&server, "", &["slow"]).replace("= 2.0\n", "= 50.0\n");
    let grace = |config: &mut Config| config.runs = "shutdown_grace_seconds = 0.2".into();
    let mut stage = stage_of(Sqlite, catalog, grace).await.unwrap();
    let run = Deferred::start(&stage, &message("m-1")).await;
    let answer = call_during_shutdown(&stage, &run, &server).await;
    answer.assert_detail(503, "reason", "stopping");
    assert_eq!(answer.error("retryable"), true);
    assert!(stage.gateway.exited().await.success());
    server.left(1).await;
}

/// The new owner knows the open interactions.
#[rstest]
#[tokio::test]
async fn handover_keeps_open_interactions(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut stage = or_skip!(crate::interactions::stage(engine).await);
    let run = Deferred::start(&stage, &asking_event("m-1")).await;
    let interaction = |sequence: u64| {
        let payload = question("q", &json!({}));
        let data = json!({"action": "interaction.requested", "payload": payload});
        run.result(sequence, "action.requested", &data)
    };
    run.accepted(&[interaction(1), run.delta(2, "one ")], 2)
        .await;
    wait_for_ledger_length(&stage, &run, 2).await;
    stage.gateway.stop().await;
    stage.gateway.restart().await;
    let rest = [interaction(3), run.delta(4, "two"), run.completed(5)];
    run.accepted(&rest, 5).await;
    let outcome = stage.outcome(&run.run_id).await;
    let deltas = ["message.delta", "message.delta", "run.completed"];
    outcome.assert("completed", &[&["action.requested"], &deltas[..]].concat());
    outcome.assert_rejected(&["invalid_payload"]);
    let path = format!("/v1/interactions?run_id={}", run.run_id);
    let interactions = stage.client.get(&path).await.body;
    assert_eq!(interactions["items"].as_array().unwrap().len(), 1);
}

/// Stops the gateway, changes its database, and restarts it.
async fn restart_after_sql(stage: &mut OwnStage, sql: &'static str) {
    stage.gateway.stop().await;
    let url = stage.gateway.database_url();
    let mut database = PgConnection::connect(&url).await.unwrap();
    sqlx::raw_sql(sql).execute(&mut database).await.unwrap();
    stage.gateway.restart().await;
}

/// Only a cancel needs the endpoint.
#[tokio::test]
async fn run_continues_without_its_endpoint() {
    let mut stage = or_skip!(OwnStage::on(Postgres, short_lease).await);
    let run = Deferred::start(&stage, &message("m-1")).await;
    // Simulate a deleted endpoint.
    let gone = "UPDATE runs SET endpoint_id = '00000000-0000-0000-0000-000000000000'";
    restart_after_sql(&mut stage, gone).await;
    run.accepted(&[run.delta(1, "one"), run.completed(2)], 2)
        .await;
    let types = ["message.delta", "run.completed"];
    stage.outcome(&run.run_id).await.assert("completed", &types);
}

/// Simulate corrupt data: the run still ends, exactly once.
#[tokio::test]
async fn corrupt_appended_results_fail_the_run() {
    let mut stage = or_skip!(OwnStage::on(Postgres, short_lease).await);
    let run = Deferred::start(&stage, &message("m-1")).await;
    run.accepted(&[run.delta(1, "one")], 1).await;
    wait_for_ledger_length(&stage, &run, 1).await;
    restart_after_sql(&mut stage, "UPDATE run_appends SET payload = 'x'").await;
    let outcome = stage.outcome(&run.run_id).await;
    outcome.assert("failed host.internal", &["message.delta", "run.failed"]);
}
