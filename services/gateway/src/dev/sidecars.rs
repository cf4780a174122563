//! Sidecars of the playground, each on its own loopback port: the Local Agent, the protocol agent, the echo
//! runner, the coding agents and connectors of the command line, and a tool server. The gateway reaches them
//! over HTTP.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use protocol_agent::ProtocolAgent;
use runner_kit::Runner;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::clock_server;
use super::connectors::ConnectorAgents;
use super::files::write_private;
use super::harness;
use base::clock::Clock;
use runner_client::signature::EndpointSecret;

/// Listening addresses of the sidecars.
pub(super) struct SidecarAddresses {
    pub(super) agent: SocketAddr,
    pub(super) echo: SocketAddr,
    pub(super) clock: SocketAddr,
    pub(super) planner: SocketAddr,
    /// `None` without harnesses.
    pub(super) harness: Option<SocketAddr>,
    /// `None` without connectors.
    pub(super) connectors: Option<SocketAddr>,
}

/// The sidecar servers. They run until `end`.
#[derive(Default)]
pub(super) struct Sidecars {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Sidecars {
    /// Starts all sidecars. Secrets of the runners are stored in `data_dir`.
    pub(super) async fn start(
        &self,
        data_dir: &Path,
        harnesses: &[String],
        connectors: &ConnectorAgents,
    ) -> anyhow::Result<SidecarAddresses> {
        let agent = local_agent::LocalAgent::runner(local_agent::manifest::RUNNER_ID.parse()?);
        let agent = self.serve_runner("local-agent", agent, data_dir).await?;
        let echo = echo_runner::echo();
        let echo = self.serve_runner("echo", echo, data_dir).await?;
        let clock = clock_server::router(Clock::system());
        let clock = self.serve("clock", clock).await?;
        let planner = ProtocolAgent::runner(protocol_agent::manifest::RUNNER_ID.parse()?);
        let planner = self
            .serve_runner("protocol-agent", planner, data_dir)
            .await?;
        let mut served = None;
        if !harnesses.is_empty() {
            let runners =
                harness::runners(harnesses, data_dir, (&self.tasks, self.stop.clone())).await?;
            served = Some(self.serve_runners("harness", runners, data_dir).await?);
        }
        let runners = connectors.runners()?;
        let mut connectors = None;
        if !runners.is_empty() {
            connectors = Some(self.serve_runners("connectors", runners, data_dir).await?);
        }
        Ok(SidecarAddresses {
            agent,
            echo,
            clock,
            planner,
            harness: served,
            connectors,
        })
    }

    async fn serve_runner(
        &self,
        name: &'static str,
        runner: Arc<dyn Runner>,
        data_dir: &Path,
    ) -> anyhow::Result<SocketAddr> {
        self.serve_runners(name, vec![runner], data_dir).await
    }

    async fn serve_runners(
        &self,
        name: &'static str,
        runners: Vec<Arc<dyn Runner>>,
        data_dir: &Path,
    ) -> anyhow::Result<SocketAddr> {
        let secret = EndpointSecret::generate();
        write_private(&data_dir.join(format!("{name}.secret")), &secret)?;
        let router = runner_kit::router(runners, secret.parse()?);
        self.serve(name, router).await
    }

    async fn serve(
        &self,
        name: &'static str,
        router: clock_server::Router,
    ) -> anyhow::Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            if let Err(error) = runner_kit::serve(listener, router, stop).await {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "the playground's server `{name}` stopped");
            }
        });
        Ok(address)
    }

    /// Stops all sidecars and waits for them.
    pub(super) async fn end(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
