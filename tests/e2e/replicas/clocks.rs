//! A replica with a wrong clock affects no other replica.

use serde_json::json;

use super::gated;
use crate::support::client::message;
use crate::support::faketime::faketime;
use crate::support::gateway::Config;
use crate::support::script::sse_and_wait;
use crate::support::{OwnStage, Postgres, until};

/// One clock is ahead by the queue timeout of an hour, one is late by slightly less. Only the time in the queue
/// is measured by the replica's own clock.
#[tokio::test]
async fn clock_skew_of_an_hour_ends_no_run() {
    let library = or_skip!(faketime());
    let queueing = |config: &mut Config| {
        // Long enough that a machine stall of a second or two loses no lease.
        "lease_seconds = 5".clone_into(&mut config.runs);
        config.agents[0].concurrency = "enqueue";
    };
    let stage = or_skip!(OwnStage::on(Postgres, queueing).await);
    let wrong = |offset: &'static str| {
        let library = library.clone();
        let gateway = &stage.gateway;
        async move {
            // The monotonic clock stays correct, as after a change of the system time.
            let variables = [
                ("LD_PRELOAD", library.as_str()),
                ("FAKETIME", offset),
                ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
                ("DONT_FAKE_MONOTONIC", "1"),
            ];
            gateway.start_replica_with(&variables).await
        }
    };
    let in_conversation = |event_id: &str, conversation: &str| {
        let mut event = message(event_id);
        event["conversation"]["conversation_id"] = json!(conversation);
        event
    };
    let (ahead, behind) = (wrong("+1h").await, wrong("-50m").await);
    let mut victim = stage.gateway.start_replica().await;
    let statuses = async || {
        let says = |log: String| log.contains("this clock differs from the database's");
        says(ahead.log()) && says(behind.log()) && !says(stage.gateway.log())
    };
    until("the clock skew to be logged", statuses).await;

    // On each replica one live run, and one queued after it.
    let mut held = Vec::new();
    for (client, name) in [
        (&stage.client, "here"),
        (&ahead.client, "ahead"),
        (&behind.client, "behind"),
    ] {
        let (first, second) = (format!("{name}-1"), format!("{name}-2"));
        let gates = [gated(&stage, &first), gated(&stage, &second)];
        let run_id = client.post(&in_conversation(&first, name)).await.run_id();
        let mut stream = client.follow(&run_id, 0).await;
        assert_eq!(stream.event().await.unwrap().id, Some(1));
        let waiting = client.post(&in_conversation(&second, name)).await.run_id();
        held.push((run_id, waiting, gates));
    }
    // The sweep for expired leases runs for longer than a lease.
    for n in 0..2 {
        stage.runner.answer(&format!("victim-{n}"), |run| {
            sse_and_wait(run.delta(1, "one"))
        });
        let event = in_conversation(&format!("victim-{n}"), "victim");
        let run_id = victim.client.post(&event).await.run_id();
        let mut stream = victim.client.follow(&run_id, 0).await;
        assert_eq!(stream.event().await.unwrap().id, Some(1));
        victim.kill().await;
        let run = stage.client.finished(&run_id).await;
        assert_eq!(run["error"]["code"], "host.orphaned", "{run}");
        victim.restart().await;
    }
    for (run_id, waiting, gates) in held {
        assert_eq!(stage.client.run(&run_id).await["status"], "running");
        assert_eq!(stage.client.run(&waiting).await["status"], "queued");
        for gate in &gates {
            gate.cancel();
        }
        for run_id in [run_id, waiting] {
            let run = stage.client.finished(&run_id).await;
            assert_eq!(run["status"], "completed", "{run}");
            stage.client.ledger(&run_id).await.assert_valid(&run_id);
            assert_eq!(stage.runner.posts(&run_id), 1);
        }
    }
}
