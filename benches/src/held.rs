//! Held streams: memory of each, time of a delivery to all of them, and time from the revocation of their key until
//! the last one ends.

mod streams;

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::client::LoadConnection;
use crate::figures::percentile;
use crate::load::{LoadTarget, RequestKind, drive};
use crate::process::resident;
use crate::stage::{
    BenchStage, ConfigAdditions, MeasuredProcess, passthrough, play, release, tick,
};
use crate::stub::StubScript;
pub(crate) use streams::{HeldMemory, open_all, read_to_end};
use streams::{Viewers, milliseconds};

/// Warm-up before the streams open, so that one-time allocations are not counted.
const WARM_SECONDS: f64 = 1.0;
/// Events of each stream before it is idle.
const FIRST_EVENTS: usize = 10;
/// Events that are delivered one after the other, each to all streams at once.
const TICKS: usize = 10;
/// Streams up to which the default limits of the gateway suffice.
const DEFAULT_STREAMS: usize = 4_000;

/// The runs that the streams show.
#[derive(Clone, Copy)]
pub(crate) enum HeldShape {
    /// Each stream has its own run.
    Runs,
    /// All streams show one run.
    OneRun,
}

impl HeldShape {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::OneRun => "one run",
        }
    }
}

/// Figures of one target.
pub(crate) struct HeldFigures {
    pub(crate) memory: HeldMemory,
    pub(crate) shape: HeldShape,
    /// Milliseconds from the signal to the stub until a stream has the event, of all streams and events.
    pub(crate) delivery_ms: Vec<f64>,
    /// Milliseconds from the request that revokes the key until the last stream ends.
    pub(crate) revocation_ms: Option<f64>,
}

impl HeldFigures {
    pub(crate) fn to_json(&self) -> Value {
        let [p50, p99] = [50.0, 99.0].map(|at| percentile(&self.delivery_ms, at));
        json!({
            "shape": self.shape.name(), "memory": self.memory.to_json(), "delivery_p50_ms": p50,
            "delivery_p99_ms": p99, "revocation_ms": self.revocation_ms,
        })
    }
}

/// Measures fresh processes, one after the other.
pub(crate) async fn measure(stage: &BenchStage) -> anyhow::Result<Vec<HeldFigures>> {
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
        let held = HeldTarget::warm(stage, &stub, target, proxy.pid).await?;
        all.push(held.of_runs().await?);
    }
    let streams = stage.options.streams;
    // A key may read half of the connections.
    let server = format!("connections = {}", 2 * streams + 1_000);
    let more = ConfigAdditions {
        server: &server,
        tables: "[limits]\nworkspace_runs = 0\n",
        ..ConfigAdditions::default()
    };
    let additions = if streams > DEFAULT_STREAMS {
        more
    } else {
        ConfigAdditions::default()
    };
    for database in stage.databases() {
        for shape in [HeldShape::Runs, HeldShape::OneRun] {
            let directory = match shape {
                HeldShape::Runs => format!("held-{}", database.name),
                HeldShape::OneRun => format!("viewers-{}", database.name),
            };
            let started = stage.gateway(&directory, &database, &stub.address, additions);
            let (gateway, target) = started.await?;
            let held = HeldTarget::warm(stage, &stub, target, gateway.served.pid).await?;
            all.push(match shape {
                HeldShape::Runs => held.of_runs().await?,
                HeldShape::OneRun => held.of_one_run(&directory).await?,
            });
        }
    }
    Ok(all)
}

/// A warm process without streams.
struct HeldTarget<'a> {
    stage: &'a BenchStage,
    stub: &'a MeasuredProcess,
    target: LoadTarget,
    pid: u32,
    idle: u64,
}

impl<'a> HeldTarget<'a> {
    async fn warm(
        stage: &'a BenchStage,
        stub: &'a MeasuredProcess,
        target: LoadTarget,
        pid: u32,
    ) -> anyhow::Result<Self> {
        let script = StubScript {
            deltas: FIRST_EVENTS,
            per_write: 1,
            ..StubScript::default()
        };
        play(&stub.address, script).await?;
        let warm = drive(&target, stub.pid, 8, FIRST_EVENTS as u64 + 1, WARM_SECONDS).await?;
        ensure!(
            warm.failures == 0,
            "failures before it began: {:?}",
            warm.errors
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
        let script = StubScript {
            deltas: FIRST_EVENTS + TICKS,
            hold_after: Some(FIRST_EVENTS),
            ..script
        };
        play(&stub.address, script).await?;
        Ok(Self {
            stage,
            stub,
            target,
            pid,
            idle: resident(pid)?,
        })
    }

    /// Streams with a run each. The runs are released at the end.
    async fn of_runs(self) -> anyhow::Result<HeldFigures> {
        let request = |number| {
            self.target
                .request(number, "text/event-stream", "message.received")
        };
        let (mut figures, viewers) = self.hold(HeldShape::Runs, request).await?;
        figures.delivery_ms = self.deliver(&viewers).await?;
        release(&self.stub.address).await?;
        for (stream, _) in viewers.ends().await {
            ensure!(
                stream.is_complete((FIRST_EVENTS + TICKS) as u64 + 1),
                "a held stream is incomplete: {stream:?}"
            );
        }
        Ok(figures)
    }

    /// Streams of one run, read with a key that is revoked at the end.
    async fn of_one_run(self, directory: &str) -> anyhow::Result<HeldFigures> {
        let key = self.stage.create_key(directory, "client").await?;
        let admin = self.stage.create_key(directory, "admin").await?;
        let mut connection = LoadConnection::open(&self.target.address).await?;
        let request = self
            .target
            .request(0, "application/json", "message.received");
        connection.send(&request).await?;
        let mut body = Vec::new();
        let status = connection
            .answer(|part| body.extend_from_slice(part))
            .await?;
        ensure!(status == 202, "HTTP {status}");
        let accepted: Value = serde_json::from_slice(&body)?;
        let run = accepted["run_id"].as_str().context("a run")?.to_owned();

        let path = format!("/v1/runs/{run}/events");
        let watch = bearer("GET", &path, &key.key);
        let (mut figures, viewers) = self.hold(HeldShape::OneRun, |_| watch.clone()).await?;
        figures.delivery_ms = self.deliver(&viewers).await?;
        let begin = Instant::now();
        let revoke = bearer("DELETE", &format!("/v1/api-keys/{}", key.id), &admin.key);
        connection.send(&revoke).await?;
        let status = connection.answer(|_| {}).await?;
        ensure!(status == 204, "the revocation was answered with {status}");
        let mut last = begin;
        for (stream, end) in viewers.ends().await {
            ensure!(
                stream.is_dense && stream.events == (FIRST_EVENTS + TICKS) as u64,
                "a revoked stream has other events: {stream:?}"
            );
            last = last.max(end);
        }
        figures.revocation_ms = Some(milliseconds(begin, last));
        release(&self.stub.address).await?;
        Ok(figures)
    }

    /// Opens all streams, reads their first events, and measures the memory.
    async fn hold(
        &self,
        shape: HeldShape,
        request: impl Fn(usize) -> Vec<u8>,
    ) -> anyhow::Result<(HeldFigures, Viewers)> {
        let streams = self.stage.options.streams;
        let address = &self.target.address;
        let opened = open_all(address, streams, FIRST_EVENTS as u64, request).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let memory = HeldMemory::of(self.target.name, streams, self.idle, resident(self.pid)?);
        let figures = HeldFigures {
            memory,
            shape,
            delivery_ms: Vec::new(),
            revocation_ms: None,
        };
        Ok((figures, Viewers::of(opened)))
    }

    /// Sends event after event to all streams, and returns the times of all deliveries.
    async fn deliver(&self, viewers: &Viewers) -> anyhow::Result<Vec<f64>> {
        let mut times = Vec::new();
        for _ in 0..TICKS {
            let begin = Instant::now();
            tick(&self.stub.address).await?;
            let delivered = viewers.next_deliveries().await?;
            times.extend(delivered.into_iter().map(|at| milliseconds(begin, at)));
        }
        Ok(times)
    }
}

/// A request with this key and without a body.
fn bearer(method: &str, path: &str, key: &str) -> Vec<u8> {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
         accept: text/event-stream\r\n\r\n"
    )
    .into_bytes()
}
