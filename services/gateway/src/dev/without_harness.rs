//! The playground of a build without coding agents.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use runner_kit::Runner;

use crate::app::LoopbackServers;

pub(crate) use NoHarnesses as HarnessArgs;

#[derive(clap::Args)]
pub(crate) struct NoHarnesses {}

#[expect(
    clippy::unused_self,
    reason = "signatures of the build with coding agents"
)]
impl NoHarnesses {
    pub(super) fn names(&self) -> &[String] {
        &[]
    }

    pub(super) async fn runners(
        &self,
        _data_dir: &Path,
        _servers: &LoopbackServers,
    ) -> anyhow::Result<Vec<Arc<dyn Runner>>> {
        Ok(Vec::new())
    }

    pub(super) fn tables(&self, _address: SocketAddr) -> String {
        String::new()
    }
}
