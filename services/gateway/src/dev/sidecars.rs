//! Servers of the command line, each on its own loopback port: coding agents and connectors. The gateway reaches them
//! over HTTP.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use runner_kit::Runner;

use crate::app::LoopbackServers;
use cli::dev_file::write_private;
use secrets::signature::SigningSecret;

const ENDPOINT: &str = r#"
# {about}
[[runner_endpoints]]
name = "{name}"
base_url = "http://{address}"
secret = "file:{data}/{name}.secret"
"#;

/// Sidecars of the command line. A build without a feature lacks its flags.
#[derive(clap::Args)]
pub(crate) struct SidecarArgs {
    #[cfg(feature = "harness")]
    #[command(flatten)]
    harness: super::harness::HarnessArgs,
    #[cfg(feature = "connectors")]
    #[command(flatten)]
    connectors: super::connectors::ConnectorArgs,
}

/// Constant texts of a sidecar.
pub(super) struct SidecarKind {
    /// Name of its endpoint, secret file and log lines.
    pub(super) name: &'static str,
    /// Comment of its endpoint in the generated settings.
    pub(super) about: &'static str,
    /// First word of the banner lines of its agents.
    pub(super) word: &'static str,
    /// Message to try.
    pub(super) message: &'static str,
}

/// A server of runners that the playground starts.
pub(super) trait Sidecar: Send + Sync {
    fn kind(&self) -> SidecarKind;

    /// Names of the agents and of their conversations.
    fn agents(&self) -> Vec<String>;

    /// Its runners, which may store files below `data_dir`. Further tasks end with `servers`.
    fn runners<'a>(
        &'a self,
        data_dir: &'a Path,
        servers: &'a LoopbackServers,
    ) -> BoxFuture<'a, anyhow::Result<Vec<Arc<dyn Runner>>>>;

    /// TOML tables of the agents. `model_id`: the playground's model, escaped for a TOML string.
    fn agent_tables(&self, model_id: &str) -> String;
}

/// A sidecar that listens at an address.
pub(super) struct StartedSidecar {
    sidecar: Box<dyn Sidecar>,
    pub(super) address: SocketAddr,
}

/// Banner line about an agent of a sidecar.
pub(crate) struct AgentHint {
    pub(crate) word: &'static str,
    pub(crate) agent: String,
    /// Message to try.
    pub(crate) message: &'static str,
}

/// The sidecars that the command line names. Fails if an agent is unknown or unreadable.
pub(super) fn read(arguments: &SidecarArgs) -> anyhow::Result<Vec<Box<dyn Sidecar>>> {
    let SidecarArgs {
        #[cfg(feature = "harness")]
        harness,
        #[cfg(feature = "connectors")]
        connectors,
    } = arguments;
    let all = Vec::<anyhow::Result<Box<dyn Sidecar>>>::from([
        #[cfg(feature = "harness")]
        harness.read(),
        #[cfg(feature = "connectors")]
        connectors.read(),
    ]);
    let mut all = all.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    all.retain(|sidecar| !sidecar.agents().is_empty());
    Ok(all)
}

/// Starts the servers. Their secrets are stored in `data_dir`.
pub(super) async fn start(
    servers: &LoopbackServers,
    data_dir: &Path,
    sidecars: Vec<Box<dyn Sidecar>>,
) -> anyhow::Result<Vec<StartedSidecar>> {
    let mut started = Vec::with_capacity(sidecars.len());
    for sidecar in sidecars {
        let name = sidecar.kind().name;
        let runners = sidecar.runners(data_dir, servers).await?;
        let secret = SigningSecret::generate();
        // The configuration refers to the secret by this file.
        write_private(&data_dir.join(format!("{name}.secret")), &secret)?;
        let address = servers.serve_runners(name, runners, &secret).await?;
        started.push(StartedSidecar { sidecar, address });
    }
    Ok(started)
}

impl StartedSidecar {
    /// Names of the agents and of their conversations.
    pub(super) fn agents(&self) -> Vec<String> {
        self.sidecar.agents()
    }

    pub(super) fn hints(&self) -> impl Iterator<Item = AgentHint> {
        let SidecarKind { word, message, .. } = self.sidecar.kind();
        let hint = move |agent| AgentHint {
            word,
            agent,
            message,
        };
        self.agents().into_iter().map(hint)
    }

    /// TOML tables of the endpoint and agents. `data` and `model_id` are escaped for a TOML string.
    pub(super) fn tables(&self, data: &str, model_id: &str) -> String {
        let SidecarKind { name, about, .. } = self.sidecar.kind();
        let endpoint = ENDPOINT
            .replace("{about}", about)
            .replace("{name}", name)
            .replace("{address}", &self.address.to_string())
            .replace("{data}", data);
        endpoint + &self.sidecar.agent_tables(model_id)
    }
}
