//! Concurrent duplicates through several replicas take effect once.

use std::collections::{HashMap, HashSet};

use futures_util::StreamExt;

use crate::support::client::{message, send};
use crate::support::script::sse;
use crate::support::{OwnStage, Postgres, number};

/// `RUNNEL_TEST_KEYS` events, each from `RUNNEL_TEST_SENDERS` concurrent senders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_duplicates_on_two_replicas_start_one_run() {
    let stage = or_skip!(OwnStage::on(Postgres, |_| {}).await);
    let replica = stage.gateway.start_replica().await;
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    let keys = number("RUNNEL_TEST_KEYS", 50);
    let senders = number("RUNNEL_TEST_SENDERS", 10);
    let posts = (0..keys).flat_map(|key| (0..senders).map(move |sender| (key, sender)));
    let answers: Vec<(usize, String, bool)> = futures_util::stream::iter(posts)
        .map(|(key, sender)| {
            let client = [&stage.client, &replica.client][sender % 2].clone();
            let event_id = format!("m-{key}");
            async move {
                // Deduplicate by event id or by idempotency key.
                let mut request = client.posting(&message(&event_id));
                if key % 2 == 0 {
                    request = request.header("idempotency-key", &event_id);
                }
                let answer = send(request).await.unwrap();
                (key, answer.run_id(), answer.is_replay())
            }
        })
        .buffer_unordered(64)
        .collect()
        .await;
    let mut runs: HashMap<usize, HashSet<String>> = HashMap::new();
    for (key, run_id, _) in &answers {
        runs.entry(*key).or_default().insert(run_id.clone());
    }
    assert!(runs.values().all(|of_key| of_key.len() == 1), "{runs:?}");
    let firsts = answers.iter().filter(|(.., is_replay)| !is_replay).count();
    assert_eq!((runs.len(), firsts), (keys, keys));
    for run_id in runs.values().flatten() {
        let run = replica.client.finished(run_id).await;
        assert_eq!(run["status"], "completed", "{run}");
    }
    let requests = stage.runner.requests();
    let requests = requests.iter().filter(|request| request.is_run()).count();
    assert_eq!(requests, keys, "each run was posted once");
}
