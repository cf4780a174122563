//! Options that `serve` and `try` share.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use connectors::upstream::config::{SecretHosts, SecretSource};
use egress::{AllowRule, Egress};

/// The time for the name, the connection and TLS of a platform.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// The variable of the signing secret, which no agent may name.
pub(crate) const SECRET: &str = "RUNNEL_CONNECTORS_SECRET";

#[derive(clap::Args)]
pub(crate) struct PlatformArgs {
    /// Where requests may go although it is not public HTTPS: `host:port`, `ip:port` or a network. Repeat it.
    #[arg(
        long,
        env = "RUNNEL_CONNECTORS_ALLOW",
        value_name = "HOST:PORT",
        value_delimiter = ','
    )]
    allow: Vec<AllowRule>,
    /// The beginning of the names of variables that agents may use as `env:NAME`. `serve` sends each to the hosts that the
    /// variable `NAME_HOSTS` lists.
    #[arg(
        long,
        env = "RUNNEL_CONNECTORS_SECRETS",
        value_name = "PREFIX",
        default_value = "CONNECTOR_"
    )]
    secrets: String,
    /// Log levels, after the syntax of `tracing_subscriber`.
    #[arg(long, env = "RUNNEL_CONNECTORS_LOG", default_value = "info")]
    pub(crate) log: String,
}

impl PlatformArgs {
    /// The guarded client.
    pub(crate) fn egress(&self) -> anyhow::Result<Egress> {
        let egress = Egress::new(self.allow.clone(), CONNECT_TIME);
        egress.context("no HTTP client can be made")
    }

    /// The variables that agents may use.
    #[expect(
        clippy::disallowed_methods,
        reason = "secrets of agents are variables of this process"
    )]
    pub(crate) fn source(&self, hosts: SecretHosts) -> anyhow::Result<SecretSource> {
        ensure!(
            !self.secrets.is_empty() && !SECRET.starts_with(&self.secrets),
            "--secrets: agents could read the signing secret with this prefix"
        );
        Ok(SecretSource {
            prefix: self.secrets.clone(),
            hosts,
            lookup: Arc::new(|name| std::env::var(name).ok()),
        })
    }

    /// Sends logs to standard error.
    pub(crate) fn start_log(&self) -> anyhow::Result<()> {
        let filter = tracing_subscriber::EnvFilter::try_new(&self.log);
        tracing_subscriber::fmt()
            .with_env_filter(filter.context("--log cannot be understood")?)
            .with_writer(std::io::stderr)
            .init();
        Ok(())
    }
}
