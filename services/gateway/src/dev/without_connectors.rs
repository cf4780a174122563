//! The playground of a build without connectors.

use std::net::SocketAddr;
use std::sync::Arc;

use runner_kit::Runner;

#[derive(clap::Args)]
pub(crate) struct ConnectorArgs {}

pub(crate) struct ConnectorAgents;

impl ConnectorArgs {
    pub(super) fn read(&self) -> anyhow::Result<ConnectorAgents> {
        Ok(ConnectorAgents)
    }
}

impl ConnectorAgents {
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
