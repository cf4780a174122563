//! Session locks of replicas: a released lock moves runs long before their lease ends.

use reqwest::Method;

use crate::support::client::{Client, message};
use crate::support::database::rows;
use crate::support::deferred::Deferred;
use crate::support::gateway::{Config, Replica};
use crate::support::runner::StubRunner;
use crate::support::script::{Gate, sse, sse_and_wait, sse_around};
use crate::support::{OwnStage, Postgres, until};

/// No lease ends within a test.
fn endless_lease(config: &mut Config) {
    config.runs = "lease_seconds = 300".into();
    "public_url = \"http://runnel.test\"".clone_into(&mut config.server);
}

/// Owner and fencing token of a run.
async fn ownership(stage: &OwnStage, run_id: &str) -> String {
    let sql = format!("SELECT lease_owner || ' ' || lease_epoch FROM runs WHERE id = '{run_id}'");
    rows(&stage.gateway.database_url(), &sql).await.remove(0)
}

async fn wait_for_results(client: &Client, run_id: &str, count: u64) {
    until("the results", async || {
        client.run(run_id).await["last_sequence"] == count
    })
    .await;
}

/// Appends to a run at another replica.
async fn append_at(replica: &Replica, run: &Deferred, results: &[serde_json::Value]) {
    let host = Client::new(&format!("{}/host/v1", replica.client.url), &run.host.key);
    let request = host.request(Method::GET, "/run").send().await.unwrap();
    assert_eq!(request.status(), 200);
    run.append_as(&host, results).await.expect(200);
}

#[tokio::test]
async fn resumable_run_moves_before_its_lease_ends() {
    let runner = StubRunner::start_resumable(20).await;
    runner.answer_all(|run| sse_and_wait([run.delta(1, "1 "), run.delta(2, "2 ")].concat()));
    runner.answer_resumes(|run| sse(run.rest(4)));
    let mut stage = or_skip!(OwnStage::of(Postgres, runner, endless_lease).await);
    let replica = stage.gateway.start_replica().await;
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    wait_for_results(&stage.client, &run_id, 2).await;
    let watching = replica.client.follow(&run_id, 0).await;
    stage.gateway.kill().await;
    let streamed: Vec<_> = watching.rest().await.into_iter().map(|f| f.data).collect();
    let ledger = replica.client.ledger(&run_id).await;
    ledger.assert_valid(&run_id);
    assert_eq!(streamed, ledger.0);
    assert_eq!(ledger.text(), "1 2 3 4 ");
    assert_eq!(stage.runner.posts(&run_id), 1);
    assert_eq!(stage.runner.resumes(&run_id).len(), 1);
}

/// The first look of a replica that starts after the crash finds the missing lock, too.
#[tokio::test]
async fn restarted_gateway_continues_before_lease_ends() {
    let mut stage = or_skip!(OwnStage::on(Postgres, endless_lease).await);
    let run = Deferred::start(&stage, &message("m-1")).await;
    run.accepted(&[run.delta(1, "one ")], 1).await;
    wait_for_results(&stage.client, &run.run_id, 1).await;
    stage.gateway.kill().await;
    stage.gateway.restart().await;
    run.accepted(&[run.delta(2, "two"), run.completed(3)], 3)
        .await;
    let outcome = stage.outcome(&run.run_id).await;
    assert_eq!(outcome.ending(), "completed");
    assert_eq!(outcome.ledger.text(), "one two");
}

/// An owner name without the prefix is that of an older version, which holds no lock.
#[tokio::test]
async fn only_continuable_runs_of_locked_owners_move() {
    let mut stage = or_skip!(OwnStage::on(Postgres, endless_lease).await);
    let replica = stage.gateway.start_replica().await;
    stage
        .runner
        .answer("m-1", |run| sse_and_wait(run.delta(1, "one")));
    let streaming = stage.client.post(&message("m-1")).await.run_id();
    wait_for_results(&stage.client, &streaming, 1).await;
    let mut runs = Vec::new();
    for event in ["m-2", "m-3"] {
        let run = Deferred::start(&stage, &message(event)).await;
        run.accepted(&[run.delta(1, "one ")], 1).await;
        wait_for_results(&stage.client, &run.run_id, 1).await;
        runs.push(run);
    }
    let [moved, older] = &runs[..] else { panic!() };
    let rename = format!(
        "UPDATE runs SET lease_owner = replace(lease_owner, 'locked-', '') WHERE id = '{}' \
         RETURNING lease_owner",
        older.run_id
    );
    rows(&stage.gateway.database_url(), &rename).await;
    let before = [
        ownership(&stage, &streaming).await,
        ownership(&stage, &older.run_id).await,
    ];
    stage.gateway.kill().await;
    append_at(
        &replica,
        moved,
        &[moved.delta(2, "two"), moved.completed(3)],
    )
    .await;
    let frames = replica.client.follow(&moved.run_id, 0).await.rest().await;
    assert_eq!(frames.last().unwrap().event, "run.completed");
    let ledger = replica.client.ledger(&moved.run_id).await;
    assert_eq!(ledger.text(), "one two");
    let after = [
        ownership(&stage, &streaming).await,
        ownership(&stage, &older.run_id).await,
    ];
    assert_eq!(before, after, "these wait for the end of their lease");
}

#[tokio::test]
async fn live_replica_with_lost_session_keeps_runs() {
    let runner = StubRunner::start_resumable(20).await;
    let gate = Gate::new();
    let hold = gate.clone();
    runner.answer_all(move |run| {
        let end = [run.delta(2, "two"), run.completed(3)].concat();
        sse_around(&hold, run.delta(1, "one "), end)
    });
    let stage = or_skip!(OwnStage::of(Postgres, runner, endless_lease).await);
    let url = stage.gateway.database_url();
    let locks = "FROM pg_locks WHERE locktype = 'advisory' AND classid = 1383427695 AND objsubid = 2 \
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let key = rows(&url, &format!("SELECT objid::text {locks}"))
        .await
        .remove(0);
    let replica = stage.gateway.start_replica().await;
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    wait_for_results(&stage.client, &run_id, 1).await;
    let before = ownership(&stage, &run_id).await;
    for losses in 1..=5 {
        let end = format!("SELECT pg_terminate_backend(pid)::text {locks} AND objid = {key}");
        assert_eq!(rows(&url, &end).await, ["true"]);
        until("the lock to be held again", async || {
            let log = stage.gateway.log();
            log.matches("session lock of this replica held again")
                .count()
                == losses
        })
        .await;
    }
    assert_eq!(ownership(&stage, &run_id).await, before);
    gate.cancel();
    let outcome = stage.outcome(&run_id).await;
    assert_eq!(outcome.ending(), "completed");
    assert_eq!(outcome.ledger.text(), "one two");
    assert!(stage.runner.resumes(&run_id).is_empty());
    assert!(!replica.log().contains("has no owner"));
}
