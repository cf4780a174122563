//! Latency that the connectors service adds to an agent's first piece, and its memory per open stream. The bench
//! acts as the gateway, which signs the runs, and as the platform.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use runner_kit::SigningSecret;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::Options;
use crate::figures::write;
use crate::held::{HeldMemory, open_all, read_to_end};
use crate::host::direct_request;
use crate::model::{HELD, HELD_ITEMS, ItemLatencies, LatencySamples, ModelServer, print_waits};
use crate::process::{machine, resident};
use crate::stage::{SECRET, connectors, passthrough};

const RUNNER: &str = "plugin:runnel/openai-agent/default";
/// Sequential streams of one round, per target.
const SEQUENTIAL_STREAMS: usize = 20;
/// Concurrent streams.
const CONCURRENT_STREAMS: usize = 64;
/// Results of a held run: its deltas, its message, its terminal event.
const HELD_RESULTS: u64 = HELD_ITEMS as u64 + 2;
/// Wait until memory use is stable.
const SETTLE_TIME: Duration = Duration::from_secs(2);

pub(crate) async fn run(options: &Options) -> anyhow::Result<()> {
    println!("{}", machine());
    let model = ModelServer::start()?;
    let gateway = RunSigner::new(&model)?;
    let first = first_pieces(options, &gateway, &model).await?;
    let held = hold(options, &gateway, &model).await?;
    println!(
        "{:<12} {:<14} {:.1} KiB per open stream, {} of them ({:.0} MiB without them)",
        held.name,
        "memory",
        held.per_stream / 1024.0,
        held.streams,
        held.idle as f64 / (1024.0 * 1024.0),
    );
    let figures = json!({"first": first, "held": held.to_json()});
    write(
        options,
        &json!({"machine": machine(), "connectors": figures}),
    )
}

/// Measures all targets in turn in each round: sequential streams first, then two batches of concurrent ones.
async fn first_pieces(
    options: &Options,
    gateway: &RunSigner,
    model: &ModelServer,
) -> anyhow::Result<Value> {
    let proxy = passthrough(&model.address).await?;
    let service = connectors(options, &model.address).await?;
    let ways = [&model.address, &proxy.address, &service.address];
    let ask = async |way: usize, count: usize| {
        let is_run = way + 1 == ways.len();
        let request = || {
            if is_run {
                gateway.run("bench")
            } else {
                direct_request()
            }
        };
        let requests = (0..count).map(|_| request()).collect();
        let streams = ItemLatencies::at_once(ways[way], requests).await?;
        if is_run {
            ensure_completed(streams)
        } else {
            Ok(streams)
        }
    };
    let [mut alone, mut burst, mut again]: [[LatencySamples; 3]; 3] = Default::default();
    for _ in 0..options.rounds {
        for _ in 0..SEQUENTIAL_STREAMS {
            for (way, waits) in alone.iter_mut().enumerate() {
                waits.add(ask(way, 1).await?);
            }
        }
        for many in [&mut burst, &mut again] {
            for (way, waits) in many.iter_mut().enumerate() {
                waits.add(ask(way, CONCURRENT_STREAMS).await?);
            }
        }
    }
    Ok(json!({
        "alone": print_overhead("alone", &alone),
        "burst": print_overhead("burst", &burst),
        "again": print_overhead("again", &again),
    }))
}

/// Prints the overhead of the proxy and of the connectors.
fn print_overhead(streams: &str, [direct, proxy, through]: &[LatencySamples; 3]) -> Value {
    println!("passthrough:");
    let proxy = print_waits(streams, direct, proxy);
    println!("connectors:");
    json!({"passthrough": proxy, "connectors": print_waits(streams, direct, through)})
}

/// Fails if a run did not complete.
fn ensure_completed(streams: Vec<ItemLatencies>) -> anyhow::Result<Vec<ItemLatencies>> {
    for items in &streams {
        let completed = items.text.contains("\nevent: run.completed\n");
        ensure!(completed, "a run is incomplete: {}", items.text);
    }
    Ok(streams)
}

/// Measures a fresh process while its streams wait, then reads all of them to the end.
async fn hold(
    options: &Options,
    gateway: &RunSigner,
    model: &ModelServer,
) -> anyhow::Result<HeldMemory> {
    let service = connectors(options, &model.address).await?;
    let warm = (0..8).map(|_| gateway.run("bench")).collect();
    ensure_completed(ItemLatencies::at_once(&service.address, warm).await?)?;
    tokio::time::sleep(SETTLE_TIME).await;
    let idle = resident(service.pid)?;
    let stream_count = options.streams;
    let request = |_| gateway.run(HELD);
    let streams = open_all(&service.address, stream_count, HELD_ITEMS as u64, request).await?;
    tokio::time::sleep(SETTLE_TIME).await;
    let full = resident(service.pid)?;
    model.release();
    read_to_end(streams, HELD_RESULTS).await?;
    Ok(HeldMemory::of("connectors", stream_count, idle, full))
}

/// The gateway's side of the runner API, for one agent on the model server.
struct RunSigner {
    secret: SigningSecret,
    base_url: String,
}

impl RunSigner {
    fn new(model: &ModelServer) -> anyhow::Result<Self> {
        Ok(Self {
            secret: SECRET.parse().context("the signing secret")?,
            base_url: format!("http://{}/v1", model.address),
        })
    }

    /// A signed `POST /runs` of a new run. The agent reads no history, so it never calls the gateway.
    fn run(&self, model: &str) -> Vec<u8> {
        let id = Uuid::now_v7();
        let now = id.get_timestamp().map_or(0, |time| time.to_unix().0);
        let body = json!({
            "runner_id": RUNNER,
            "runner_name": "default",
            "host": {
                "base_url": "http://127.0.0.1:1/host/v1", "token": "bench", "token_expires_at": now + 3600,
            },
            "context": {
                "run_id": id,
                "trigger": {"type": "message.received", "source": "api"},
                "event": {"event_id": id, "event_type": "message.received", "source": "api"},
                "conversation": {"conversation_id": id},
                "input": {"text": "go", "contents": [{"type": "text", "text": "go"}]},
                "delivery": {"surface": "api", "supports_streaming": true},
                "resources": {},
                "runtime": {"host": "runnel", "protocol_version": "1"},
                "config": {"base-url": self.base_url, "model": model, "history": 0},
            },
        });
        let body = body.to_string();
        let seconds = i64::try_from(now).unwrap_or_default();
        let signature = self.secret.sign(&id.to_string(), seconds, body.as_bytes());
        format!(
            "POST /runs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             webhook-id: {id}\r\nwebhook-timestamp: {now}\r\nwebhook-signature: {signature}\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    }
}
