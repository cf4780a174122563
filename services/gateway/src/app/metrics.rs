//! The listener of the metrics endpoint.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::keep;
use runs::Runs;
use telemetry::metrics::install;
use web::host_allowlist::HostAllowlist;
use web::http_server::{ServerOptions, bind, serve};
use web::metrics_page;

/// Enough for a few Prometheus servers and manual requests.
const CONNECTIONS: usize = 32;

/// The metrics recorder and its listener.
pub(crate) struct MetricsServer {
    listener: TcpListener,
    handle: PrometheusHandle,
}

impl MetricsServer {
    /// Binds the listener and installs the recorder.
    pub(crate) fn listen(address: SocketAddr) -> anyhow::Result<Self> {
        let listener = bind(address).with_context(|| {
            format!("cannot listen on {address}; choose another metrics.listen")
        })?;
        let handle = install().context("metrics cannot be counted")?;
        Ok(Self { listener, handle })
    }

    /// URL of the metrics endpoint.
    pub(crate) fn url(&self) -> anyhow::Result<String> {
        Ok(format!("http://{}/metrics", self.listener.local_addr()?))
    }

    /// Address of the listener.
    pub(super) fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves metrics until `closing`. On a loopback address only requests for `names` are accepted.
    pub(super) fn spawn(
        self,
        runs: &Runs,
        tasks: &TaskTracker,
        names: HostAllowlist,
        closing: CancellationToken,
    ) {
        let Self { listener, handle } = self;
        let is_loopback = |address: SocketAddr| address.ip().is_loopback();
        // Browsers can reach loopback addresses by DNS rebinding; the host allow-list prevents it.
        let names = listener
            .local_addr()
            .is_ok_and(is_loopback)
            .then_some(names);
        let options = ServerOptions {
            max_connections: CONNECTIONS,
            drain: Duration::from_secs(1),
            ..ServerOptions::default()
        };
        let page = metrics_page::router(runs.clone(), handle.clone(), names);
        tasks.spawn(serve(listener, page, options, closing));
        keep(tasks, runs, move |runs| {
            // The recorder keeps samples until `run_upkeep` removes old ones.
            let handle = handle.clone();
            async move { runs.gauges.keep_gauges(|| handle.run_upkeep()).await }
        });
    }
}
