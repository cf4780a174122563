//! Reads of a growing database: lists, counts and histories.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::client::LoadConnection;
use crate::figures::percentile;

/// Requests of each kind.
const REQUESTS: usize = 200;
/// Reads of pages. The conversation is one of the first.
const READS: [(&str, &str); 4] = [
    ("list", "/v1/runs?limit=50"),
    ("of a conversation", "/v1/runs?conversation_id=c-0&limit=50"),
    ("history", "/v1/conversations/c-0/history?limit=50"),
    ("conversations", "/v1/conversations?limit=50"),
];

/// Times of one kind of read.
pub(super) struct ReadLatencies {
    name: &'static str,
    times: Vec<f64>,
}

impl ReadLatencies {
    pub(super) fn to_json(&self) -> Value {
        let [p50, p99] = [50.0, 99.0].map(|at| percentile(&self.times, at));
        json!({"name": self.name, "p50_ms": p50, "p99_ms": p99})
    }

    pub(super) fn print(&self) {
        let [p50, p99] = [50.0, 99.0].map(|at| percentile(&self.times, at));
        println!(
            "{:>21} {:<18} p50 {p50:.2} ms, p99 {p99:.2} ms",
            "", self.name
        );
    }
}

/// Reads with the key of the bench.
pub(super) struct RunReader<'a> {
    address: &'a str,
    key: &'a str,
}

impl<'a> RunReader<'a> {
    pub(super) fn new(address: &'a str, key: &'a str) -> Self {
        Self { address, key }
    }

    /// Times of all kinds of reads, one request at a time.
    pub(super) async fn measure(&self) -> anyhow::Result<Vec<ReadLatencies>> {
        let mut all = Vec::new();
        for (name, path) in READS {
            let mut connection = LoadConnection::open(self.address).await?;
            let mut times = Vec::new();
            for _ in 0..REQUESTS {
                let begin = Instant::now();
                let (status, _) = self.get(&mut connection, path).await?;
                times.push(begin.elapsed().as_secs_f64() * 1000.0);
                ensure!(status == 200, "{path} was answered with {status}");
            }
            all.push(ReadLatencies { name, times });
        }
        Ok(all)
    }

    pub(super) async fn newest_run(&self) -> anyhow::Result<String> {
        let list = self.read("/v1/runs?limit=1").await?;
        let run = list["items"][0]["run_id"].as_str();
        Ok(run.context("there is no run")?.to_owned())
    }

    /// True if retention has deleted the events of this run.
    pub(super) async fn is_deleted(&self, run: &str) -> anyhow::Result<bool> {
        let mut connection = LoadConnection::open(self.address).await?;
        let path = format!("/v1/runs/{run}/events");
        let (status, _) = self.get(&mut connection, &path).await?;
        ensure!(
            [200, 410].contains(&status),
            "{path} was answered with {status}"
        );
        Ok(status == 410)
    }

    async fn read(&self, path: &str) -> anyhow::Result<Value> {
        let mut connection = LoadConnection::open(self.address).await?;
        let (status, body) = self.get(&mut connection, path).await?;
        ensure!(status == 200, "{path} was answered with {status}");
        Ok(serde_json::from_slice(&body)?)
    }

    async fn get(
        &self,
        connection: &mut LoadConnection,
        path: &str,
    ) -> anyhow::Result<(u16, Vec<u8>)> {
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\r\n",
            self.key
        );
        connection.send(request.as_bytes()).await?;
        let mut body = Vec::new();
        let status = connection
            .answer(|part| body.extend_from_slice(part))
            .await?;
        Ok((status, body))
    }
}
