//! Webhooks of gateways that are killed, and of replicas.

use std::collections::BTreeSet;
use std::time::Duration;

use rstest::rstest;
use serde_json::json;

use super::{by_run, create, end_waits, stage_of, statuses};
use crate::support::client::{message, send};
use crate::support::database::{change_rows, rows};
use crate::support::receiver::{Reaction, Receiver};
use crate::support::{Engine, Postgres, Sqlite, number, until};

/// `RUNNEL_TEST_WEBHOOK_KILLS` times: posts events and kills the gateway at another moment.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_gateways_deliver_each_committed_message(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let mut stage = or_skip!(stage_of(engine).await);
    let receiver = Receiver::start().await;
    let ends = json!({"events": ["run.completed", "run.failed"]});
    create(&stage.admin, &receiver, &ends).await;
    let database = stage.gateway.database_url();
    for kill in 0..number("RUNNEL_TEST_WEBHOOK_KILLS", 5) {
        // Some tries fail, so that there are retries in progress, too.
        receiver.react([Reaction::Close, Reaction::Status(500)]);
        let posts = (0..8).map(|n| send(stage.client.posting(&message(&format!("m-{kill}-{n}")))));
        let posting = futures_util::future::join_all(posts);
        let kill_after = Duration::from_millis(20 + 45 * (kill as u64 % 20));
        // The moment of the kill is the subject of the test.
        let _ = tokio::time::timeout(kill_after, posting).await;
        stage.gateway.kill().await;
        stage.gateway.restart().await;
    }
    until("the ends of all runs", async || {
        let live = "SELECT id FROM runs WHERE finished_at IS NULL";
        rows(&database, live).await.is_empty()
    })
    .await;
    // More failures would open the circuit, which then allows one try a second.
    receiver.drop_reactions();
    // Tries of killed processes occupy their leases.
    let lapse = "UPDATE webhook_deliveries SET due_at = 0 WHERE status = 'pending'";
    until("the end of their leases", async || {
        change_rows(&database, lapse).await
    })
    .await;
    until("the end of the queue", async || {
        end_waits(&database).await;
        let left = "SELECT status FROM webhook_deliveries WHERE status <> 'delivered'";
        rows(&database, left).await.is_empty()
    })
    .await;
    let ended =
        "SELECT id FROM runs WHERE status IN ('completed', 'failed', 'timeout') ORDER BY id";
    let ended: BTreeSet<_> = rows(&database, ended).await.into_iter().collect();
    let delivered: BTreeSet<_> = by_run(&receiver.received()).into_keys().collect();
    assert!(!ended.is_empty());
    assert_eq!(delivered, ended);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_deliver_each_message_once() {
    let stage = or_skip!(stage_of(Postgres).await);
    let replica = stage.gateway.start_replica().await;
    let receiver = Receiver::start().await;
    let hook = create(&stage.admin, &receiver, &json!({})).await;
    let clients = [&stage.client, &replica.client];
    let mut runs = BTreeSet::new();
    for number in 0..40 {
        let event = message(&format!("m-{number}"));
        let posted = clients[number % 2].post(&event).await;
        runs.insert(posted.run_id());
    }
    until("all deliveries", async || {
        let found = statuses(&stage.admin, &hook).await;
        found.len() == 40 && found.iter().all(|one| one == "delivered")
    })
    .await;
    let received = by_run(&receiver.received());
    assert!(received.values().all(|count| *count == 1), "{received:?}");
    assert_eq!(received.into_keys().collect::<BTreeSet<_>>(), runs);
}
