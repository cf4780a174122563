//! OTLP/HTTP export of spans and log records in batches, and of metrics at intervals. A slow, failing or hostile
//! collector can only cause lost spans and records, and late metrics.

mod batch_exporter;
mod connection;
mod metric_exporter;
mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use tokio_util::sync::CancellationToken;
use tracing::Level;
use url::Url;

use self::batch_exporter::BatchExporter;
use self::connection::CollectorConnection;
use self::metric_exporter::MetricExporter;
use crate::gen_ai::GenAiMetrics;
use crate::log_records::{self, LogRecord};
use crate::spans::{Span, Spans};
use clock::Clock;
use egress::Egress;

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
    /// Least level of exported log records. `None`: none are exported.
    pub log_level: Option<Level>,
}

/// Exports spans, metrics and log records to a collector.
pub struct Exporter {
    spans: BatchExporter<Span>,
    metrics: Option<MetricExporter>,
    logs: Option<BatchExporter<LogRecord>>,
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
        let logs = collector.log_level.map(|level| {
            let records = log_records::begin(level, clock);
            BatchExporter::new(egress.clone(), collector, resource.clone(), records)
        });
        let exporter = Self {
            metrics: metrics.zip(interval).map(|(metrics, interval)| {
                MetricExporter::new(of_metrics, resource.clone(), metrics, interval)
            }),
            spans: BatchExporter::new(egress.clone(), collector, resource, queue),
            logs,
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
        let logs = async {
            if let Some(logs) = self.logs {
                logs.run(closing.clone()).await;
            }
        };
        // Side by side: a collector that hangs with one signal does not delay the others.
        tokio::join!(self.spans.run(closing.clone()), metrics, logs);
    }
}
