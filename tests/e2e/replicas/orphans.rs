//! Replicas that die or hang while they drive runs.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::client::message;
use crate::support::gateway::Config;
use crate::support::script::{Gate, ScriptStep, send, sse_and_wait, sse_head};
use crate::support::{OwnStage, Postgres, Stage, number, slow, until, within};

/// The promise with default settings: a lease of 15 s, and 5 s.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(20);
/// Tolerance for a busy machine.
const TOLERANCE: Duration = Duration::from_secs(5);

/// `RUNNEL_TEST_ORPHANS` runs on one of three replicas.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_runs_of_killed_replica_once_in_time() {
    let stage = or_skip!(OwnStage::on(Postgres, |_| {}).await);
    let mut victim = stage.gateway.start_replica().await;
    let sweeper = stage.gateway.start_replica().await;
    stage
        .runner
        .answer_all(|run| sse_and_wait(run.delta(1, "one")));
    let count = number("RUNNEL_TEST_ORPHANS", 50);
    let runs: Vec<String> = futures_util::stream::iter(0..count)
        .map(|n| {
            let victim = victim.client.clone();
            async move {
                let mut event = message(&format!("m-{n}"));
                event["conversation"]["conversation_id"] = json!(format!("c-{n}"));
                let run_id = victim.post(&event).await.run_id();
                let mut stream = victim.follow(&run_id, 0).await;
                assert_eq!(stream.event().await.unwrap().id, Some(1));
                run_id
            }
        })
        .buffer_unordered(32)
        .collect()
        .await;
    let mut watching = JoinSet::new();
    for (n, run_id) in runs.iter().cloned().enumerate() {
        let client = [&stage.client, &sweeper.client][n % 2].clone();
        watching.spawn(async move {
            let seen = client.follow(&run_id, 0).await.rest().await;
            (Instant::now(), seen.len())
        });
    }
    victim.kill().await;
    let killed = Instant::now();
    let mut last = killed;
    while let Some(ended) = watching.join_next().await {
        let (at, seen) = ended.unwrap();
        assert_eq!(seen, 2, "one event and one terminal");
        last = last.max(at);
    }
    let took = last - killed;
    eprintln!("{count} orphans: the last has ended {took:?} after the kill");
    assert!(took <= TAKEOVER_LIMIT + TOLERANCE, "{took:?}");
    for run_id in &runs {
        let run = stage.client.run(run_id).await;
        assert_eq!(
            (
                &run["status"],
                &run["error"]["code"],
                &run["error"]["retryable"]
            ),
            (&json!("failed"), &json!("host.orphaned"), &json!(true)),
            "{run}"
        );
        let ledger = stage.client.ledger(run_id).await;
        ledger.assert_valid(run_id);
        assert_eq!(ledger.types(), ["message.delta", "run.failed"]);
        assert_eq!(stage.runner.posts(run_id), 1);
    }
    // Exactly one replica ended each run.
    let ended = |log: String| log.matches("ended as failed").count();
    assert_eq!(ended(stage.gateway.log()) + ended(sweeper.log()), count);
}

/// Sends host API requests to a hanging replica, which reads them when it continues.
async fn send_pending_requests(stage: &Stage, run_id: &str) -> Vec<TcpStream> {
    let run_request = stage.runner.run_request(run_id).await.json();
    let token = run_request["host"]["token"].as_str().unwrap();
    let head = format!(
        "GET /host/v1/run HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n"
    );
    let mut questions = Vec::new();
    for _ in 0..20 {
        let mut socket = slow::connect(&stage.client.url).await;
        socket.write_all(head.as_bytes()).await.unwrap();
        questions.push(socket);
    }
    questions
}

/// A replica hangs for longer than its lease and continues. `RUNNEL_TEST_ZOMBIES` replicas, each with a thousand
/// unwritten results that it may no longer store.
#[tokio::test]
async fn replica_with_expired_lease_writes_nothing() {
    let short = |config: &mut Config| config.runs = "lease_seconds = 1.0".into();
    let stage = or_skip!(OwnStage::on(Postgres, short).await);
    let replica = stage.gateway.start_replica().await;
    for n in 1..=number("RUNNEL_TEST_ZOMBIES", 1) {
        let (event_id, gate) = (format!("m-{n}"), Gate::new());
        let hold = gate.clone();
        stage.runner.answer(&event_id, move |run| {
            let late: String = (2..=1_001).map(|n| run.delta(n, "late")).collect();
            vec![
                sse_head(),
                send(run.delta(1, "one")),
                ScriptStep::Hold(hold.clone()),
                send(late + &run.completed(1_002)),
                ScriptStep::AwaitClose,
            ]
        });
        let run_id = stage.client.post(&message(&event_id)).await.run_id();
        let mut here = stage.client.follow(&run_id, 0).await;
        assert_eq!(here.event().await.unwrap().id, Some(1));
        let mut there = replica.client.follow(&run_id, 0).await;
        assert_eq!(there.event().await.unwrap().id, Some(1));

        stage.gateway.pause().await;
        let frames = there.rest().await;
        assert_eq!(
            frames.last().unwrap().event,
            "run.failed",
            "another took over"
        );
        let before = replica.client.ledger(&run_id).await;
        let questions = send_pending_requests(&stage, &run_id).await;
        gate.cancel();
        stage.gateway.unfreeze().await;
        for mut question in questions {
            let mut head = [0; 12];
            within("an answer", question.read_exact(&mut head))
                .await
                .unwrap();
            assert_eq!(head, *b"HTTP/1.1 401", "the run has ended elsewhere");
        }
        stage.runner.closed(n).await;
        let lost = async || {
            let log = stage.gateway.log();
            log.contains(&format!("another replica took over run {run_id}"))
                || log.contains(&format!("run {run_id} was already ended"))
        };
        until("the zombie to notice", lost).await;

        // Its own reader gets the terminal event that the other replica wrote.
        assert_eq!(here.rest().await.last(), frames.last());
        for client in [&stage.client, &replica.client] {
            assert_eq!(client.ledger(&run_id).await, before);
            let run = client.run(&run_id).await;
            assert_eq!(run["error"]["code"], "host.orphaned", "{run}");
            assert_eq!(client.rejections(&run_id).await.len(), 0);
        }
        before.assert_valid(&run_id);
        assert_eq!(before.types(), ["message.delta", "run.failed"]);
        assert_eq!(stage.runner.posts(&run_id), 1);
    }
    // The replica continues to serve.
    stage
        .runner
        .answer_all(|run| crate::support::script::sse(run.talk(2).concat()));
    let run_id = stage.client.post(&message("after")).await.run_id();
    assert_eq!(stage.client.finished(&run_id).await["status"], "completed");
}
