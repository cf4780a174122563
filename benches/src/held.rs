//! Memory per idle stream.

use std::time::Duration;

use anyhow::ensure;
use tokio::task::JoinSet;

use crate::client::{Framing, LoadConnection, StreamCheck};
use crate::load::{LoadTarget, RequestKind, drive};
use crate::process::resident;
use crate::stage::{BenchStage, ConfigAdditions, MeasuredProcess, passthrough, play, release};
use crate::stub::StubScript;

/// Warm-up before the streams open, so that one-time allocations are not counted.
const WARM_SECONDS: f64 = 1.0;
const OPENING: usize = 32;

/// Memory of one target, in bytes per stream.
#[derive(Clone, Debug)]
pub(crate) struct HeldMemory {
    pub(crate) name: &'static str,
    pub(crate) idle: u64,
    pub(crate) full: u64,
    pub(crate) streams: usize,
    pub(crate) per_stream: f64,
}

impl HeldMemory {
    pub(crate) fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "target": self.name, "idle_bytes": self.idle, "held_bytes": self.full,
            "bytes_per_stream": self.per_stream, "streams": self.streams,
        })
    }
}

/// Measures fresh processes, one after the other.
pub(crate) async fn measure(stage: &BenchStage) -> anyhow::Result<Vec<HeldMemory>> {
    let stub = stage.stub().await?;
    let mut all = Vec::new();
    {
        let proxy = passthrough(&stub.address).await?;
        let target = LoadTarget {
            name: "passthrough",
            address: proxy.address.clone(),
            pid: Some(proxy.pid),
            ask: RequestKind::Runner,
        };
        all.push(hold(stage, &target, proxy.pid, &stub).await?);
    }
    for database in stage.databases() {
        let directory = format!("held-{}", database.name);
        let (gateway, target) = stage
            .gateway(
                &directory,
                &database,
                &stub.address,
                ConfigAdditions::default(),
            )
            .await?;
        all.push(hold(stage, &target, gateway.served.pid, &stub).await?);
    }
    Ok(all)
}

async fn hold(
    stage: &BenchStage,
    target: &LoadTarget,
    pid: u32,
    stub: &MeasuredProcess,
) -> anyhow::Result<HeldMemory> {
    let stream_count = stage.options.streams;
    let script = StubScript {
        deltas: 10,
        per_write: 1,
        hold: false,
    };
    play(&stub.address, script).await?;
    let warm = drive(target, stub.pid, 8, 11, WARM_SECONDS).await?;
    ensure!(
        warm.failures == 0,
        "failures before it began: {:?}",
        warm.errors
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    let idle = resident(pid)?;

    let script = StubScript {
        hold: true,
        ..script
    };
    play(&stub.address, script).await?;
    let request = |number| target.request(number, "text/event-stream", "message.received");
    let streams = open_all(&target.address, stream_count, 10, request).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let full = resident(pid)?;

    release(&stub.address).await?;
    read_to_end(streams, 11).await?;
    Ok(HeldMemory {
        name: target.name,
        idle,
        full,
        streams: stream_count,
        per_stream: (full as f64 - idle as f64) / stream_count as f64,
    })
}

/// An open stream, as far as it was read.
pub(crate) type HeldStream = (LoadConnection, Framing, StreamCheck);

/// Opens `count` streams and reads `events` events of each.
pub(crate) async fn open_all(
    address: &str,
    count: usize,
    events: u64,
    request: impl Fn(usize) -> Vec<u8>,
) -> anyhow::Result<Vec<HeldStream>> {
    let mut opening = JoinSet::new();
    let mut streams = Vec::new();
    for number in 0..count {
        if opening.len() >= OPENING
            && let Some(opened) = opening.join_next().await
        {
            streams.push(opened??);
        }
        opening.spawn(open(address.to_owned(), request(number), events));
    }
    while let Some(opened) = opening.join_next().await {
        streams.push(opened??);
    }
    Ok(streams)
}

/// Reads streams to their ends. Each must have exactly `events` events, in order.
pub(crate) async fn read_to_end(streams: Vec<HeldStream>, events: u64) -> anyhow::Result<()> {
    for (mut connection, framing, mut stream) in streams {
        connection.rest(framing, |part| stream.push(part)).await?;
        ensure!(
            stream.is_complete(events),
            "a held stream is incomplete: {stream:?}"
        );
    }
    Ok(())
}

async fn open(address: String, request: Vec<u8>, events: u64) -> anyhow::Result<HeldStream> {
    let mut connection = LoadConnection::open(&address).await?;
    connection.send(&request).await?;
    let mut stream = StreamCheck::new();
    let (status, framing) = connection
        .answer_until(|part| {
            stream.push(part);
            stream.events >= events
        })
        .await?;
    ensure!(status == 200, "HTTP {status}");
    Ok((connection, framing, stream))
}
