//! The playground of a build without connectors.

use std::net::SocketAddr;
use std::sync::Arc;

use runner_kit::Runner;

pub(crate) use NoConnectorAgents as ConnectorAgents;
pub(crate) use NoConnectors as ConnectorArgs;

#[derive(clap::Args)]
pub(crate) struct NoConnectors {}

pub(crate) struct NoConnectorAgents;

#[expect(
    clippy::unused_self,
    clippy::unnecessary_wraps,
    reason = "signatures of the build with connectors"
)]
impl NoConnectors {
    pub(super) fn read(&self) -> anyhow::Result<NoConnectorAgents> {
        Ok(NoConnectorAgents)
    }
}

#[expect(
    clippy::unused_self,
    clippy::unnecessary_wraps,
    reason = "signatures of the build with connectors"
)]
impl NoConnectorAgents {
    pub(super) fn names(&self) -> Vec<String> {
        Vec::new()
    }

    pub(super) fn runners(&self) -> anyhow::Result<Vec<Arc<dyn Runner>>> {
        Ok(Vec::new())
    }

    pub(super) fn tables(&self, _address: SocketAddr, _data: &str) -> String {
        String::new()
    }
}
