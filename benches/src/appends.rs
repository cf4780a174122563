//! Results of an async run, each appended after the response to the one before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::ensure;
use serde_json::Value;

use crate::client::LoadConnection;

/// A run that was answered with 202, and its host API.
pub(crate) struct AppendingRun {
    run_id: String,
    address: String,
    path: String,
    token: String,
    deltas: usize,
}

impl AppendingRun {
    /// Reads the body of `POST /runs`; `None` if it has no host API.
    pub(crate) fn of(run_id: &str, body: &[u8], deltas: usize) -> Option<Self> {
        let request: Value = serde_json::from_slice(body).ok()?;
        let host = &request["host"];
        let base = host["base_url"].as_str()?.strip_prefix("http://")?;
        let (address, path) = base.split_once('/')?;
        Some(Self {
            run_id: run_id.to_owned(),
            address: address.to_owned(),
            path: format!("/{path}/run/results"),
            token: host["token"].as_str()?.to_owned(),
            deltas,
        })
    }

    /// Appends the deltas and the terminal result on one connection, and counts what was accepted.
    pub(crate) async fn append_all(self, appended: Arc<AtomicU64>) -> anyhow::Result<()> {
        let mut connection = LoadConnection::open(&self.address).await?;
        for sequence in 1..=self.deltas + 1 {
            connection.send(&self.request(sequence)).await?;
            let status = connection.answer(|_| {}).await?;
            ensure!(status == 200, "an append was answered with {status}");
            appended.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn request(&self, sequence: usize) -> Vec<u8> {
        let (kind, data) = if sequence > self.deltas {
            ("run.completed", r#"{"finish_reason":"stop"}"#.to_owned())
        } else {
            let chunk =
                format!(r#"{{"chunk":{{"role":"assistant","content":"word {sequence} "}}}}"#);
            ("message.delta", chunk)
        };
        let Self {
            run_id,
            address,
            path,
            token,
            ..
        } = self;
        let body = format!(
            "{{\"results\":[{{\"run_id\":\"{run_id}\",\"type\":\"{kind}\",\"data\":{data},\
             \"sequence\":{sequence}}}]}}"
        );
        format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    }
}
