//! Durably accepted events per second: answered with 202 after their commit.

use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::json;
use tokio::task::JoinSet;

use crate::Options;
use crate::client::LoadConnection;
use crate::figures::{median, percentile, write};
use crate::load::LoadTarget;
use crate::stage::{BenchStage, ConfigAdditions, play};
use crate::stub::StubScript;

const CLIENTS: usize = 64;

pub(crate) async fn run(options: &Options) -> anyhow::Result<()> {
    let stage = BenchStage::new(options).await?;
    let stub = stage.stub().await?;
    let script = StubScript {
        deltas: 1,
        per_write: 1,
        ..StubScript::default()
    };
    play(&stub.address, script).await?;
    let mut figures = Vec::new();
    for database in stage.databases() {
        let name = database.name;
        let (_gateway, target) = stage
            .gateway(name, &database, &stub.address, ConfigAdditions::default())
            .await?;
        // Without a matching agent, an event is only stored; with one, it also starts a run.
        for (event, what) in [("note.added", "kept"), ("message.received", "with a run")] {
            let (mut rates, mut times) = (Vec::new(), Vec::new());
            for _ in 0..options.rounds {
                let (rate, mut took) = post(&target, event, options.seconds).await?;
                rates.push(rate);
                times.append(&mut took);
            }
            let rate = median(&rates);
            let [p50, p99] = [50.0, 99.0].map(|at| percentile(&times, at));
            println!(
                "{name:<12} {what:<12} {rate:>7.0} events/s taken durably, {CLIENTS} clients; \
                 answered in p50 {p50:.1} ms, p99 {p99:.1} ms"
            );
            figures.push(json!({
                "target": name, "events": what, "per_second": rate, "clients": CLIENTS,
                "p50_ms": p50, "p99_ms": p99,
            }));
        }
    }
    write(options, &json!({"ingest": figures}))
}

/// Returns the rate, and each request's milliseconds. Fails on the first error.
async fn post(
    target: &LoadTarget,
    event: &'static str,
    seconds: f64,
) -> anyhow::Result<(f64, Vec<f64>)> {
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(seconds);
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let target = target.clone();
        clients.spawn(async move {
            let mut connection = LoadConnection::open(&target.address).await?;
            let mut took = Vec::new();
            while Instant::now() < end {
                let request = target.request(client, "application/json", event);
                let sent = Instant::now();
                connection.send(&request).await?;
                let status = connection.answer(|_| {}).await?;
                ensure!(status == 202, "HTTP {status}");
                took.push(sent.elapsed().as_secs_f64() * 1000.0);
            }
            Ok(took)
        });
    }
    let mut times = Vec::new();
    while let Some(client) = clients.join_next().await {
        times.append(&mut client??);
    }
    Ok((times.len() as f64 / begin.elapsed().as_secs_f64(), times))
}
