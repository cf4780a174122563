//! Two gateways on one database: what one stores the other tells at once, by the doorbell alone.

use serde_json::json;

use crate::support::client::message;
use crate::support::gateway::Config;
use crate::support::script::{Gate, Step, send, sse_head};
use crate::support::{Postgres, Stage};

/// Nobody looks by itself for a minute: what is told before is told by a ring.
async fn stage() -> Option<Stage> {
    let patient = |config: &mut Config| {
        "poll_seconds = 60.0".clone_into(&mut config.bus);
        "heartbeat_seconds = 300.0".clone_into(&mut config.server);
        "lease_seconds = 300.0\ncancel_grace_seconds = 0.0".clone_into(&mut config.runs);
    };
    Stage::on(Postgres, patient).await
}

/// A run that says a word, waits for the gate, and completes.
async fn start(stage: &Stage, event_id: &str) -> (String, Gate) {
    let gate = Gate::new();
    let hold = gate.clone();
    stage.runner.answer(event_id, move |run| {
        let end = [run.delta(2, "two"), run.completed(3)].concat();
        vec![
            sse_head(),
            send(run.delta(1, "one")),
            Step::Hold(hold.clone()),
            send(end),
        ]
    });
    let run_id = stage.client.post(&message(event_id)).await.run_id();
    (run_id, gate)
}

#[tokio::test]
async fn a_stream_watched_through_another_replica_goes_on_by_itself() {
    let Some(stage) = stage().await else { return };
    let beside = stage.gateway.beside().await;
    let (run_id, gate) = start(&stage, "m-1").await;
    // Here, so that the first word is stored; there, so that somebody waits.
    let mut here = stage.client.follow(&run_id, 0).await;
    assert_eq!(here.event().await.unwrap().id, Some(1));
    let mut there = beside.client.follow(&run_id, 0).await;
    assert_eq!(there.event().await.unwrap().id, Some(1));
    gate.cancel();
    let told: Vec<_> = there
        .rest()
        .await
        .into_iter()
        .map(|frame| frame.data)
        .collect();
    let stored = stage.client.ledger(&run_id).await;
    assert_eq!(told, stored.0[1..]);
    stored.assert_sound(&run_id);
}

#[tokio::test]
async fn a_cancel_reaches_the_replica_that_drives_the_run() {
    let Some(stage) = stage().await else { return };
    let beside = stage.gateway.beside().await;
    let (run_id, _gate) = start(&stage, "m-1").await;
    let mut here = stage.client.follow(&run_id, 0).await;
    assert_eq!(here.event().await.unwrap().id, Some(1));
    let answer = beside.client.cancel(&run_id).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    here.rest().await;
    let run = beside.client.run(&run_id).await;
    assert_eq!(run["status"], json!("cancelled"), "{run}");
    assert_eq!(stage.client.run(&run_id).await, run);
}
