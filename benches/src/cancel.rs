//! Time from a cancel request until the runner's socket closes. The runner's grace period is zero, so only the
//! gateway's own time remains.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::Options;
use crate::client::LoadConnection;
use crate::figures::{percentile, write};
use crate::load::{LoadTarget, client_request};
use crate::stage::{BenchStage, ConfigAdditions};
use crate::stub::{BenchStubState, StubScript, serve};

const RUNS: usize = 500;
const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) async fn run(options: &Options) -> anyhow::Result<()> {
    let stage = BenchStage::new(options).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let runner = listener.local_addr()?.to_string();
    let shared = BenchStubState::new(StubScript {
        deltas: 1,
        per_write: 1,
        hold_after: Some(1),
        ..StubScript::default()
    });
    let mut serving = JoinSet::new();
    serving.spawn(serve(listener, Arc::clone(&shared)));
    let mut figures = Vec::new();
    for database in stage.databases() {
        let name = database.name;
        let grace = ConfigAdditions {
            runs: "cancel_grace_seconds = 0.0",
            ..ConfigAdditions::default()
        };
        let (gateway, target) = stage.gateway(name, &database, &runner, grace).await?;
        let mut times = Vec::new();
        for number in 0..RUNS {
            times.push(cancel_one(&target, &gateway.key, &shared, number).await?);
        }
        let [p50, p99] = [50.0, 99.0].map(|at| percentile(&times, at));
        println!(
            "{name:<12} cancel → closed socket: p50 {p50:.1} ms, p99 {p99:.1} ms, {RUNS} runs"
        );
        figures.push(json!({"target": name, "p50_ms": p50, "p99_ms": p99, "runs": RUNS}));
    }
    write(options, &json!({"cancel": figures}))
}

/// Milliseconds from sending the cancel until the runner's socket closes.
async fn cancel_one(
    target: &LoadTarget,
    key: &str,
    shared: &BenchStubState,
    number: usize,
) -> anyhow::Result<f64> {
    let mut posting = LoadConnection::open(&target.address).await?;
    let run = target.post_run(&mut posting, number).await?;

    // The first event shows that the runner is working.
    let mut watching = LoadConnection::open(&target.address).await?;
    let line = format!("GET /v1/runs/{run}/events");
    let watch = client_request(&line, key, "accept: text/event-stream\r\n");
    watching.send(watch.as_bytes()).await?;
    let mut seen = Vec::new();
    let (status, _) = watching
        .answer_until(|part| {
            seen.extend_from_slice(part);
            seen.windows(6).any(|six| six == b"data: ")
        })
        .await?;
    ensure!(status == 200, "HTTP {status}");

    let line = format!("POST /v1/runs/{run}/cancel");
    let cancel = client_request(&line, key, "content-length: 0\r\n");
    let begin = Instant::now();
    posting.send(cancel.as_bytes()).await?;
    let status = posting.answer(|_| {}).await?;
    ensure!(
        (200..300).contains(&status),
        "the cancel was answered with {status}"
    );
    let closed = closed_at(&shared.closed, &run).await?;
    Ok(closed.duration_since(begin).as_secs_f64() * 1000.0)
}

async fn closed_at(closed: &Mutex<HashMap<String, Instant>>, run: &str) -> anyhow::Result<Instant> {
    let begin = Instant::now();
    loop {
        let at = closed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(run);
        if let Some(at) = at {
            return Ok(at);
        }
        ensure!(
            begin.elapsed() < TIMEOUT,
            "the socket of run {run} stays open"
        );
        // The stub records the time of the close; this loop only polls for it.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
