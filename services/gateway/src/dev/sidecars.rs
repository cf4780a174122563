//! Servers of the command line, each on its own loopback port: coding agents and connectors. The gateway reaches them
//! over HTTP.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use runner_kit::Runner;

use super::connectors::ConnectorAgents;
use super::harness::HarnessArgs;
use crate::app::LoopbackServers;
use cli::dev_file::write_private;
use secrets::signature::SigningSecret;

/// Listening addresses; `None` without servers of the kind.
#[derive(Default)]
pub(super) struct SidecarAddresses {
    pub(super) harness: Option<SocketAddr>,
    pub(super) connectors: Option<SocketAddr>,
}

impl SidecarAddresses {
    pub(super) fn all(&self) -> impl Iterator<Item = SocketAddr> {
        self.harness.into_iter().chain(self.connectors)
    }
}

/// Starts the servers. Their secrets are stored in `data_dir`.
pub(super) async fn start(
    servers: &LoopbackServers,
    data_dir: &Path,
    harnesses: &HarnessArgs,
    connectors: &ConnectorAgents,
) -> anyhow::Result<SidecarAddresses> {
    let mut addresses = SidecarAddresses::default();
    if !harnesses.names().is_empty() {
        let runners = harnesses.runners(data_dir, servers).await?;
        addresses.harness = Some(serve(servers, "harness", runners, data_dir).await?);
    }
    let runners = connectors.runners()?;
    if !runners.is_empty() {
        addresses.connectors = Some(serve(servers, "connectors", runners, data_dir).await?);
    }
    Ok(addresses)
}

async fn serve(
    servers: &LoopbackServers,
    name: &'static str,
    runners: Vec<Arc<dyn Runner>>,
    data_dir: &Path,
) -> anyhow::Result<SocketAddr> {
    let secret = SigningSecret::generate();
    // The configuration refers to the secret by this file.
    write_private(&data_dir.join(format!("{name}.secret")), &secret)?;
    servers.serve_runners(name, runners, &secret).await
}
