//! OTLP/HTTP export of spans in batches, and of metrics at intervals. A slow, failing or hostile collector can only cause
//! lost spans and late metrics.

mod connection;
mod metric_exporter;
mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use secrecy::SecretString;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use url::Url;

use self::connection::{CollectorConnection, ExportFailure};
use self::metric_exporter::MetricExporter;
use crate::gen_ai::GenAiMetrics;
use crate::metrics::spans_exported;
use crate::spans::{Exported, Span, Spans};
use clock::Clock;
use egress::Egress;

/// Maximum number of spans per request.
const BATCH: usize = 512;
/// Maximum time that the first span of a batch waits for others.
const GATHER: Duration = Duration::from_secs(1);
/// Attempts per request.
const TRIES: u32 = 3;
/// Time for the rest at shutdown.
const LAST: Duration = Duration::from_millis(500);

/// A collector and the export settings.
#[derive(Clone)]
pub struct Collector {
    /// Without `/v1/traces`.
    pub endpoint: Url,
    /// Headers of each request; each may be a secret.
    pub headers: BTreeMap<String, SecretString>,
    pub sample_ratio: f64,
    pub service_name: String,
    /// Time between two exports of metrics. `None`: none are exported.
    pub metrics_interval: Option<Duration>,
}

/// Exports spans and metrics to a collector.
pub struct Exporter {
    spans: SpanExporter,
    metrics: Option<MetricExporter>,
}

impl Exporter {
    /// A recorder, and the exporter of what it records; `instance` is the id of this process.
    pub fn start(
        egress: &Egress,
        collector: &Collector,
        instance: &str,
        clock: Clock,
    ) -> (Spans, Self) {
        let resource = wire::resource(&collector.service_name, instance);
        let interval = collector.metrics_interval;
        let metrics = interval.map(|_| Arc::new(GenAiMetrics::begin(clock)));
        let (spans, queue) = Spans::exporting(collector.sample_ratio, metrics.clone());
        let of_metrics = CollectorConnection::new(egress.clone(), collector, "metrics");
        let exporter = Self {
            metrics: metrics.zip(interval).map(|(metrics, interval)| {
                MetricExporter::new(of_metrics, resource.clone(), metrics, interval)
            }),
            spans: SpanExporter {
                connection: CollectorConnection::new(egress.clone(), collector, "traces"),
                resource,
                spans: queue,
                batch: Vec::new(),
                is_away: false,
            },
        };
        (spans, exporter)
    }

    /// Exports until `closing`, and the rest then.
    pub async fn run(self, closing: CancellationToken) {
        let metrics = async {
            if let Some(metrics) = self.metrics {
                metrics.run(closing.clone()).await;
            }
        };
        // Side by side: a collector that hangs with one signal does not delay the other one.
        tokio::join!(self.spans.run(closing.clone()), metrics);
    }
}

struct SpanExporter {
    connection: CollectorConnection,
    resource: wire::Resource,
    spans: mpsc::Receiver<Span>,
    batch: Vec<Span>,
    is_away: bool,
}

impl SpanExporter {
    /// Exports until `closing`, then flushes the remaining spans.
    async fn run(mut self, closing: CancellationToken) {
        loop {
            let exporting = async {
                self.gather().await;
                self.export().await;
            };
            if closing.run_until_cancelled(exporting).await.is_none() {
                break;
            }
        }
        // An interrupted batch may be sent twice; collectors deduplicate by span id.
        let rest = async {
            while self.take_rest() {
                let outcome = self.post().await;
                self.note(outcome);
            }
        };
        if tokio::time::timeout(LAST, rest).await.is_err() {
            // Counted, so an operator sees that the trace is incomplete.
            let lost = self.batch.len() + self.spans.len();
            spans_exported(Exported::Failed, lost as u64);
        }
    }

    /// Waits for a span and then for a batch. Cancel-safe.
    async fn gather(&mut self) {
        if self.batch.is_empty() && self.spans.recv_many(&mut self.batch, BATCH).await == 0 {
            // All senders are gone.
            std::future::pending::<()>().await;
        }
        let others = async {
            while self.batch.len() < BATCH {
                let free = BATCH - self.batch.len();
                if self.spans.recv_many(&mut self.batch, free).await == 0 {
                    break;
                }
            }
        };
        // The first span waits at most this long; a timeout is the usual end of a small batch.
        let _ = tokio::time::timeout(GATHER, others).await;
    }

    /// Fills the batch with queued spans. False: there are none.
    fn take_rest(&mut self) -> bool {
        while self.batch.len() < BATCH
            && let Ok(span) = self.spans.try_recv()
        {
            self.batch.push(span);
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
        let request = wire::request(&self.resource, &self.batch);
        self.connection.post(request.encode_to_vec()).await
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
        spans_exported(Exported::Taken, count - refused);
        spans_exported(Exported::Failed, refused);
        match outcome {
            Err(error) if !self.is_away => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the trace collector accepts no spans; they are dropped until it recovers"
            ),
            Ok(_) if self.is_away => tracing::info!("the trace collector accepts spans again"),
            _ => {}
        }
        self.is_away = refused == count;
    }
}
