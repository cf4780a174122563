//! Replicas serve each other's changes at once, on every bus.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::json;

use super::{TestBus, gated, stage_on};
use crate::support::client::{Client, message};
use crate::support::gateway::{Config, Replica};
use crate::support::held::HeldRun;
use crate::support::script::{Gate, ScriptStep, send, sse_and_wait, sse_head};
use crate::support::{OwnStage, number};

/// No lease is renewed during the test, so a cancel arrives only by notification or by polling.
fn without_lease_renewal(config: &mut Config) {
    "heartbeat_seconds = 300.0".clone_into(&mut config.server);
    "lease_seconds = 300.0\ncancel_grace_seconds = 0.0".clone_into(&mut config.runs);
}

async fn two(bus: TestBus) -> Option<(OwnStage, Replica)> {
    let stage = stage_on(bus, without_lease_renewal).await?;
    let replica = stage.gateway.start_replica().await;
    bus.ready(&stage.gateway.database_url(), 2, || replica.log())
        .await;
    Some((stage, replica))
}

#[rstest]
#[tokio::test]
async fn streams_run_through_another_replica(
    #[values(TestBus::Postgres, TestBus::Nats, TestBus::Silent)] bus: TestBus,
) {
    let (stage, replica) = or_skip!(two(bus).await);
    let gate = gated(&stage, "m-1");
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    // The first reader shows that the event is stored; the second one waits on the other replica.
    let mut here = stage.client.follow(&run_id, 0).await;
    assert_eq!(here.event().await.unwrap().id, Some(1));
    let mut there = replica.client.follow(&run_id, 0).await;
    assert_eq!(there.event().await.unwrap().id, Some(1));
    gate.cancel();
    let streamed: Vec<_> = there
        .rest()
        .await
        .into_iter()
        .map(|frame| frame.data)
        .collect();
    let stored = stage.client.ledger(&run_id).await;
    assert_eq!(streamed, stored.0[1..]);
    stored.assert_valid(&run_id);
}

/// The runner learns of the cancel from another replica, before the replica that drives the run does.
#[rstest]
#[tokio::test]
async fn early_runner_disconnect_after_cancel_counts_as_cancelled(
    #[values(false, true)] has_answered: bool,
) {
    let stage = or_skip!(
        stage_on(TestBus::Silent, |config| {
            without_lease_renewal(config);
            "kind = \"none\"\npoll_seconds = 60.0".clone_into(&mut config.bus);
        })
        .await
    );
    let replica = stage.gateway.start_replica().await;
    let gate = Gate::new();
    let hold = gate.clone();
    stage.runner.answer_all(move |run| {
        let hold = ScriptStep::Hold(hold.clone());
        if has_answered {
            vec![sse_head(), send(run.delta(1, "one")), hold]
        } else {
            vec![hold, ScriptStep::Reset]
        }
    });
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    stage.runner.run_request(&run_id).await;
    let mut expected = vec!["run.failed"];
    if has_answered {
        let mut here = stage.client.follow(&run_id, 0).await;
        assert_eq!(here.event().await.unwrap().id, Some(1));
        expected.insert(0, "message.delta");
    }
    assert_eq!(replica.client.cancel(&run_id).await.status, 202);
    gate.cancel();
    let outcome = stage.outcome(&run_id).await;
    outcome.assert("cancelled cancelled", &expected);
}

/// `RUNNEL_TEST_CANCELS` cancels, with the time from each request to the closed socket.
#[rstest]
#[tokio::test]
async fn cancel_through_another_replica_closes_runner_socket(
    #[values(TestBus::Postgres, TestBus::Nats, TestBus::Silent)] bus: TestBus,
) {
    let (stage, replica) = or_skip!(two(bus).await);
    stage
        .runner
        .answer_all(|run| sse_and_wait(run.delta(1, "one")));
    let mut took = Vec::new();
    for n in 1..=number("RUNNEL_TEST_CANCELS", 3) {
        let run_id = stage
            .client
            .post(&message(&format!("m-{n}")))
            .await
            .run_id();
        let mut here = stage.client.follow(&run_id, 0).await;
        assert_eq!(here.event().await.unwrap().id, Some(1));
        let requested_at = Instant::now();
        replica.client.cancel(&run_id).await.expect(202);
        stage.runner.closed(n).await;
        took.push(requested_at.elapsed());
        here.rest().await;
        let run = replica.client.run(&run_id).await;
        assert_eq!(run["status"], json!("cancelled"), "{run}");
        assert_eq!(stage.client.run(&run_id).await, run);
    }
    took.sort_unstable();
    let at = |part: usize| took[(took.len() - 1) * part / 100];
    let (median, p99, max): (Duration, _, _) = (at(50), at(99), at(100));
    eprintln!("{bus:?}: cancel to closed socket: p50 {median:?}, p99 {p99:?}, most {max:?}");
}

#[rstest]
#[tokio::test]
async fn pulls_follow_up_through_another_replica(
    #[values(TestBus::Postgres, TestBus::Nats, TestBus::Silent)] bus: TestBus,
) {
    let steering = |config: &mut Config| {
        // Tokens are bound to this name, so all replicas share it.
        "public_url = \"http://runnel.invalid\"".clone_into(&mut config.server);
        config.agents[0].concurrency = "steer";
    };
    let stage = or_skip!(stage_on(bus, steering).await);
    let second = stage.gateway.start_replica().await;
    let active = HeldRun::start(&stage, &message("m-1")).await;
    for (client, event_id) in [(&second.client, "m-2"), (&stage.client, "m-3")] {
        let answer = client.post(&message(event_id)).await;
        assert_eq!(answer.run_id(), active.run_id);
        assert_eq!(answer.body["steered"], json!(true), "{}", answer.body);
    }
    // Through the replica that drives the run, and through the other.
    let host_of = |replica: &Client| {
        let path = active.host.url.trim_start_matches("http://runnel.invalid");
        Client::new(&format!("{}{path}", replica.url), &active.token)
    };
    let (here, other) = (host_of(&stage.client), host_of(&second.client));
    let one = json!({"mode": "one-at-a-time"});
    for (host, event_id) in [(&here, "m-2"), (&other, "m-3")] {
        let answer = host.create("/steering/pull", &one).await.expect(200);
        let pulled = &answer.body["items"][0]["event"]["event_id"];
        assert_eq!(pulled, event_id, "{}", answer.body);
    }
    let nothing = other.create("/steering/pull", &json!({})).await.body;
    assert_eq!(nothing["items"], json!([]));
    active.end(&stage).await;
}
