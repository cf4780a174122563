//! NATS carries hints only: outages, forged messages and duplicates lose no data and cause no action.

use serde_json::{Value, json};
use uuid::Uuid;

use super::{TestBus, gated, stage_on};
use crate::support::client::message;
use crate::support::gateway::Config;
use crate::support::nats::{NatsProxy, NatsSubscriber, nats_server, publish};
use crate::support::{OwnStage, Postgres, Stage, until};

const LOST_LOG: &str = "notification bus lost NATS";
const CONNECTED_LOG: &str = "notification bus connected to NATS";

/// A stage on this NATS URL with this poll interval.
async fn stage_by(url: &str, poll_seconds: f64, more: &str) -> Option<OwnStage> {
    let bus = format!("kind = \"nats\"\nurl = \"{url}\"\npoll_seconds = {poll_seconds:?}\n{more}");
    let configure = |config: &mut Config| {
        bus.clone_into(&mut config.bus);
        "heartbeat_seconds = 300.0".clone_into(&mut config.server);
        "lease_seconds = 300.0\ncancel_grace_seconds = 0.0".clone_into(&mut config.runs);
    };
    OwnStage::on(Postgres, configure).await
}

/// A client follows and cancels one replica's runs through the other.
async fn assert_works(stage: &Stage, other: &crate::support::client::Client, name: &str) {
    let watched = format!("{name}-watched");
    let gate = gated(stage, &watched);
    let run_id = stage.client.post(&message(&watched)).await.run_id();
    let mut there = other.follow(&run_id, 0).await;
    assert_eq!(there.event().await.unwrap().id, Some(1));
    gate.cancel();
    assert_eq!(there.rest().await.len(), 2);
    stage.client.ledger(&run_id).await.assert_valid(&run_id);

    let cancelled = format!("{name}-cancelled");
    let _gate = gated(stage, &cancelled);
    let run_id = stage.client.post(&message(&cancelled)).await.run_id();
    let mut here = stage.client.follow(&run_id, 0).await;
    assert_eq!(here.event().await.unwrap().id, Some(1));
    assert_eq!(other.cancel(&run_id).await.status, 202);
    here.rest().await;
    assert_eq!(other.run(&run_id).await["status"], "cancelled");
}

#[tokio::test]
async fn logs_each_nats_outage_once() {
    let Some(server) = nats_server() else { return };
    let line = NatsProxy::to(&server).await;
    let stage = or_skip!(stage_by(&line.url, 0.2, "").await);
    let replica = stage.gateway.start_replica().await;
    let logged =
        |words: &str| [stage.gateway.log(), replica.log()].map(|log| log.matches(words).count());
    until("the outage to be logged", async || {
        logged(LOST_LOG) == [1, 1]
    })
    .await;
    assert_works(&stage, &replica.client, "down-at-start").await;
    line.mend();
    until("NATS to be found", async || logged(CONNECTED_LOG) == [1, 1]).await;
    assert_works(&stage, &replica.client, "there").await;
    line.cut();
    until("the second outage to be logged", async || {
        logged(LOST_LOG) == [2, 2]
    })
    .await;
    assert_works(&stage, &replica.client, "down-again").await;
    assert_eq!(logged(LOST_LOG), [2, 2], "once an outage");
    line.mend();
    until("NATS to be found again", async || {
        logged(CONNECTED_LOG) == [2, 2]
    })
    .await;
}

/// The poll interval is a minute, so later changes arrive only through NATS.
#[tokio::test]
async fn resumes_notifications_after_nats_outage() {
    let Some(server) = nats_server() else { return };
    let line = NatsProxy::to(&server).await;
    line.mend();
    let stage = or_skip!(stage_by(&line.url, 60.0, "").await);
    let replica = stage.gateway.start_replica().await;
    let logged =
        |words: &str| [stage.gateway.log(), replica.log()].map(|log| log.matches(words).count());
    until("NATS to be found", async || logged(CONNECTED_LOG) == [1, 1]).await;
    // One stream stays open through the outage, and delivers the missed events afterwards.
    let gate = gated(&stage, "through");
    let run_id = stage.client.post(&message("through")).await.run_id();
    let mut there = replica.client.follow(&run_id, 0).await;
    assert_eq!(there.event().await.unwrap().id, Some(1));
    line.cut();
    until("the outage to be logged", async || {
        logged(LOST_LOG) == [1, 1]
    })
    .await;
    gate.cancel();
    stage.client.finished(&run_id).await;
    line.mend();
    assert_eq!(there.rest().await.len(), 2);
    until("NATS to be found again", async || {
        logged(CONNECTED_LOG) == [2, 2]
    })
    .await;
    assert_works(&stage, &replica.client, "after").await;
}

#[tokio::test]
async fn ignores_forged_notifications() {
    let Some(server) = nats_server() else { return };
    let subject = format!("test.{}", Uuid::new_v4().simple());
    let named = format!("subject = \"{subject}\"");
    let stage = or_skip!(stage_by(&server, 60.0, &named).await);
    let replica = stage.gateway.start_replica().await;
    for log in [stage.gateway.log(), replica.log()] {
        assert!(!log.contains(LOST_LOG), "{log}");
    }
    let both = async || {
        stage.gateway.log().contains(CONNECTED_LOG) && replica.log().contains(CONNECTED_LOG)
    };
    until("NATS to be found", both).await;

    let gate = gated(&stage, "m-1");
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    let mut there = replica.client.follow(&run_id, 0).await;
    assert_eq!(there.event().await.unwrap().id, Some(1));
    let (run, me, other) = (
        run_id.replace('-', ""),
        Uuid::new_v4().simple(),
        Uuid::new_v4().simple(),
    );
    let mut forged: Vec<Vec<u8>> = [
        format!("{me} c{run}"),
        format!("{me} a{run}"),
        format!("{me} a{run}:999999 c{run}:1"),
        format!("{me} c{other} a{other}"),
        format!("{me} {}", format!("c{run} ").repeat(250)),
        format!("c{run}"),
        String::new(),
        " ".repeat(9_000),
        format!("{me} x{run} \u{0} \u{fffd}"),
        json!({"run_id": run_id, "type": "run.failed"}).to_string(),
    ]
    .map(String::into_bytes)
    .into();
    forged.push(vec![0xff; 1_000]);
    // Repeats all messages many times, as a server may do for a client that lost its position.
    let storm: Vec<_> = (0..200).flat_map(|_| forged.clone()).collect();
    publish(&server, &subject, &storm).await;
    assert_eq!(stage.client.run(&run_id).await["status"], "running");
    gate.cancel();
    assert_eq!(
        there.rest().await.len(),
        2,
        "the gateway's own notifications arrive throughout"
    );
    let run = replica.client.run(&run_id).await;
    assert_members!(run, {"status": "completed", "cancel_requested_at": Value::Null});
    stage.client.ledger(&run_id).await.assert_valid(&run_id);
    assert_works(&stage, &replica.client, "after").await;
}

/// Two installations on one NATS server use separate subjects.
#[tokio::test]
async fn separates_installations_on_one_nats_server() {
    let mut subjects = Vec::new();
    for event_id in ["m-1", "m-2"] {
        let fresh = |config: &mut Config| config.has_fresh_database = true;
        let stage = or_skip!(stage_on(TestBus::Nats, fresh).await);
        let mut everything = NatsSubscriber::to(&nats_server().unwrap(), "runnel.>").await;
        gated(&stage, event_id).cancel();
        let run_id = stage.client.post(&message(event_id)).await.run_id();
        let notification = format!("s{}", run_id.replace('-', ""));
        subjects.push(everything.subject_of(&notification).await);
    }
    assert_ne!(subjects[0], subjects[1]);
}
