//! OTLP/HTTP export of spans and log records in batches.

use std::time::Duration;

use prost::Message as _;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::connection::{CollectorConnection, ExportFailure};
use super::wire::{self, Resource};
use super::{Collector, LAST};
use crate::log_records::LogRecord;
use crate::metrics::{log_records_exported, spans_exported};
use crate::spans::{Exported, Span};
use egress::Egress;

/// Maximum number of records per request.
const BATCH: usize = 512;
/// Maximum time that the first record of a batch waits for others.
const GATHER: Duration = Duration::from_secs(1);
/// Attempts per request.
const TRIES: u32 = 3;

/// A record that is sent once, in a batch with others.
pub(super) trait BatchedRecord: Sized {
    /// Last segment of the URL at the collector.
    const SIGNAL: &'static str;

    /// The request for these records.
    fn request(resource: &Resource, records: &[Self]) -> Vec<u8>;

    /// Counts results of the export.
    fn count(outcome: Exported, count: u64);
}

/// Exports records of one kind in batches.
pub(super) struct BatchExporter<R> {
    connection: CollectorConnection,
    resource: Resource,
    records: mpsc::Receiver<R>,
    batch: Vec<R>,
    is_away: bool,
}

impl<R: BatchedRecord> BatchExporter<R> {
    pub(super) fn new(
        egress: Egress,
        collector: &Collector,
        resource: Resource,
        records: mpsc::Receiver<R>,
    ) -> Self {
        Self {
            connection: CollectorConnection::new(egress, collector, R::SIGNAL),
            resource,
            records,
            batch: Vec::new(),
            is_away: false,
        }
    }

    /// Exports until `closing`, then flushes the remaining records.
    pub(super) async fn run(mut self, closing: CancellationToken) {
        loop {
            let exporting = async {
                self.gather().await;
                self.export().await;
            };
            if closing.run_until_cancelled(exporting).await.is_none() {
                break;
            }
        }
        // An interrupted batch may be sent twice; collectors deduplicate spans by id.
        let rest = async {
            while self.take_rest() {
                let outcome = self.post().await;
                self.note(outcome);
            }
        };
        if tokio::time::timeout(LAST, rest).await.is_err() {
            // Counted, so an operator sees that records are missing.
            let lost = self.batch.len() + self.records.len();
            R::count(Exported::Failed, lost as u64);
        }
    }

    /// Waits for a record and then for a batch. Cancel-safe.
    async fn gather(&mut self) {
        if self.batch.is_empty() && self.records.recv_many(&mut self.batch, BATCH).await == 0 {
            // All senders are gone.
            std::future::pending::<()>().await;
        }
        let others = async {
            while self.batch.len() < BATCH {
                let free = BATCH - self.batch.len();
                if self.records.recv_many(&mut self.batch, free).await == 0 {
                    break;
                }
            }
        };
        // The first record waits at most this long; a timeout is the usual end of a small batch.
        let _ = tokio::time::timeout(GATHER, others).await;
    }

    /// Fills the batch with queued records. False: there are none.
    fn take_rest(&mut self) -> bool {
        while self.batch.len() < BATCH
            && let Ok(record) = self.records.try_recv()
        {
            self.batch.push(record);
        }
        !self.batch.is_empty()
    }

    /// Exports the batch and retries failures that may be temporary.
    async fn export(&mut self) {
        for tried in 1.. {
            let outcome = self.post().await;
            let wait = outcome.as_ref().err().and_then(ExportFailure::wait);
            match wait.filter(|_| tried < TRIES) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return self.note(outcome),
            }
        }
    }

    async fn post(&self) -> Result<u64, ExportFailure> {
        let request = R::request(&self.resource, &self.batch);
        self.connection.post(request).await
    }

    /// Clears the batch, counts its results, and logs a change of state once.
    fn note(&mut self, outcome: Result<u64, ExportFailure>) {
        let count = self.batch.len() as u64;
        self.batch.clear();
        let refused = match &outcome {
            Ok(refused) => (*refused).min(count),
            // The collector chooses the number; a larger one would make the difference negative.
            Err(_) => count,
        };
        R::count(Exported::Taken, count - refused);
        R::count(Exported::Failed, refused);
        match outcome {
            Err(error) if !self.is_away => tracing::warn!(
                error = &error as &dyn std::error::Error,
                signal = R::SIGNAL,
                "the collector accepts no records; they are dropped until it recovers"
            ),
            Ok(_) if self.is_away => {
                tracing::info!(signal = R::SIGNAL, "the collector accepts records again");
            }
            _ => {}
        }
        self.is_away = refused == count;
    }
}

impl BatchedRecord for Span {
    const SIGNAL: &'static str = "traces";

    fn request(resource: &Resource, records: &[Self]) -> Vec<u8> {
        wire::request(resource, records).encode_to_vec()
    }

    fn count(outcome: Exported, count: u64) {
        spans_exported(outcome, count);
    }
}

impl BatchedRecord for LogRecord {
    const SIGNAL: &'static str = "logs";

    fn request(resource: &Resource, records: &[Self]) -> Vec<u8> {
        wire::logs::request(resource, records).encode_to_vec()
    }

    fn count(outcome: Exported, count: u64) {
        log_records_exported(outcome, count);
    }
}
