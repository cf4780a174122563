//! OTLP/HTTP export of metrics at intervals.

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tokio_util::sync::CancellationToken;

use super::LAST;
use super::connection::CollectorConnection;
use super::wire::{Resource, metrics};
use crate::gen_ai::GenAiMetrics;

/// Exports the metrics of this process.
pub(super) struct MetricExporter {
    connection: CollectorConnection,
    resource: Resource,
    metrics: Arc<GenAiMetrics>,
    interval: Duration,
    is_away: bool,
}

impl MetricExporter {
    pub(super) fn new(
        connection: CollectorConnection,
        resource: Resource,
        metrics: Arc<GenAiMetrics>,
        interval: Duration,
    ) -> Self {
        Self {
            connection,
            resource,
            metrics,
            interval,
            is_away: false,
        }
    }

    /// Exports until `closing`, and once more then.
    pub(super) async fn run(mut self, closing: CancellationToken) {
        loop {
            let exporting = async {
                tokio::time::sleep(self.interval).await;
                self.export().await;
            };
            if closing.run_until_cancelled(exporting).await.is_none() {
                break;
            }
        }
        // The runs since the last export are in no other one.
        let _ = tokio::time::timeout(LAST, self.export()).await;
    }

    /// Sends all series. Without a retry: the next request has the same counts and later ones.
    async fn export(&mut self) {
        let all = self.metrics.all();
        if all.is_empty() {
            return;
        }
        let request = metrics::request(&self.resource, &self.metrics.period(), &all);
        let outcome = self.connection.post(request.encode_to_vec()).await;
        match &outcome {
            Err(error) if !self.is_away => tracing::warn!(
                error = error as &dyn std::error::Error,
                "the collector accepts no metrics; the next export repeats them"
            ),
            Ok(_) if self.is_away => tracing::info!("the collector accepts metrics again"),
            _ => {}
        }
        self.is_away = outcome.is_err();
    }
}
