//! Many open streams of one target.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::client::{Framing, LoadConnection, StreamCheck};

const OPENING: usize = 32;
/// Limit of one delivery to all streams.
const DELIVERY: Duration = Duration::from_mins(1);

/// Memory of one target, in bytes.
#[derive(Clone, Debug)]
pub(crate) struct HeldMemory {
    pub(crate) name: &'static str,
    pub(crate) idle: u64,
    pub(crate) full: u64,
    pub(crate) streams: usize,
    pub(crate) per_stream: f64,
}

impl HeldMemory {
    /// The memory of `streams` streams of a process that had `idle` bytes without and has `full` bytes with them.
    pub(crate) fn of(name: &'static str, streams: usize, idle: u64, full: u64) -> Self {
        Self {
            name,
            idle,
            full,
            streams,
            per_stream: (full as f64 - idle as f64) / streams as f64,
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "target": self.name, "idle_bytes": self.idle, "held_bytes": self.full,
            "bytes_per_stream": self.per_stream, "streams": self.streams,
        })
    }
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

/// Times of deliveries, in order.
type Deliveries = Arc<Mutex<Vec<Instant>>>;

/// Streams that are read in the background until their ends.
pub(super) struct Viewers {
    tasks: JoinSet<(StreamCheck, Instant)>,
    deliveries: Deliveries,
}

impl Viewers {
    pub(super) fn of(streams: Vec<HeldStream>) -> Self {
        let deliveries = Deliveries::default();
        let read = |stream| view(stream, Arc::clone(&deliveries));
        let tasks = streams.into_iter().map(read).collect();
        Self { tasks, deliveries }
    }

    /// Waits until each stream has one more event, and returns the times.
    pub(super) async fn next_deliveries(&self) -> anyhow::Result<Vec<Instant>> {
        let all = async {
            loop {
                match self.take_deliveries() {
                    Some(times) => return times,
                    None => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        };
        let all = timeout(DELIVERY, all).await;
        all.context("some streams did not receive an event in time")
    }

    /// The times since the last call, if there is one for each stream.
    fn take_deliveries(&self) -> Option<Vec<Instant>> {
        let mut times = self
            .deliveries
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        (times.len() >= self.tasks.len()).then(|| std::mem::take(&mut *times))
    }

    /// The content and the end of each stream.
    pub(super) async fn ends(self) -> Vec<(StreamCheck, Instant)> {
        self.tasks.join_all().await
    }
}

/// Reads a stream until it ends or breaks off.
async fn view(
    (mut connection, framing, mut stream): HeldStream,
    deliveries: Deliveries,
) -> (StreamCheck, Instant) {
    let read = |part: &[u8]| {
        let before = stream.events;
        stream.push(part);
        let now = Instant::now();
        let mut times = deliveries.lock().unwrap_or_else(PoisonError::into_inner);
        times.extend((before..stream.events).map(|_| now));
    };
    // The content shows whether the end was expected.
    let _ = connection.rest(framing, read).await;
    (stream, Instant::now())
}

pub(super) fn milliseconds(begin: Instant, end: Instant) -> f64 {
    end.duration_since(begin).as_secs_f64() * 1000.0
}
