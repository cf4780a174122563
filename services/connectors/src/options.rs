//! Options that `serve` and `try` share.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use connectors::upstream::config::{SecretHosts, SecretSource};
use egress::{AllowRule, Egress};

/// Timeout for name resolution, connection and TLS handshake.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// The variable with the signing secret. No agent may read it.
pub(crate) const SECRET: &str = "RUNNEL_CONNECTORS_SECRET";

/// Suffix of the variable that names a file with the value.
const FILE: &str = "_FILE";
/// Maximum bytes of a value in a file.
const FILE_BYTES: u64 = 64 * 1024;

#[derive(clap::Args)]
pub(crate) struct PlatformArgs {
    /// Allowed targets other than public HTTPS: `host:port`, `ip:port` or a network. Repeat it.
    #[arg(
        long,
        env = "RUNNEL_CONNECTORS_ALLOW",
        value_name = "HOST:PORT",
        value_delimiter = ','
    )]
    allow: Vec<AllowRule>,
    /// The prefix of the variables that agents may use as `env:NAME`. `serve` sends each to the hosts that the
    /// variable
    /// `NAME_HOSTS` lists. `NAME_FILE` names a file with the value instead.
    #[arg(
        long,
        env = "RUNNEL_CONNECTORS_SECRETS",
        value_name = "PREFIX",
        default_value = "CONNECTOR_"
    )]
    secrets: String,
    /// Log levels in the syntax of `tracing_subscriber`.
    #[arg(long, env = "RUNNEL_CONNECTORS_LOG", default_value = "info")]
    pub(crate) log: String,
}

impl PlatformArgs {
    /// The HTTP client that enforces the allow-list.
    pub(crate) fn egress(&self) -> anyhow::Result<Egress> {
        let egress = Egress::new(self.allow.clone(), CONNECT_TIME);
        egress.context("no HTTP client can be made")
    }

    /// The source of `env:NAME` values.
    #[expect(
        clippy::disallowed_methods,
        reason = "secrets of agents are variables of this process"
    )]
    pub(crate) fn source(&self, hosts: SecretHosts) -> anyhow::Result<SecretSource> {
        // An empty prefix, or one of the secret's own name, would let an agent send the secret to its platform.
        ensure!(
            !self.secrets.is_empty() && !SECRET.starts_with(&self.secrets),
            "--secrets: agents could read the signing secret with this prefix"
        );
        Ok(SecretSource {
            prefix: self.secrets.clone(),
            hosts,
            lookup: Arc::new(|name| value_of(name, |name| std::env::var(name).ok())),
        })
    }
}

/// The value of a variable, or the trimmed content of the file that the variable `NAME_FILE` names.
fn value_of(name: &str, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    if let Some(value) = variable(name) {
        return Some(value);
    }
    let file = variable(&format!("{name}{FILE}"))?;
    match read(Path::new(&file)) {
        Ok(value) => Some(value.trim().to_owned()),
        // The run fails later with the missing key; this line holds the cause.
        Err(error) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "{name}{FILE}: cannot read {file}, runs that need {name} fail"
            );
            None
        }
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut value = String::new();
    let file = File::open(path)?;
    // A limit, so that a device or a wrong file cannot fill the memory.
    file.take(FILE_BYTES).read_to_string(&mut value)?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_take_precedence_over_files() {
        let file = std::env::temp_dir().join(format!("connector-key-{}", std::process::id()));
        std::fs::write(&file, "of-file\n").unwrap();
        let path = file.display().to_string();
        let variable = |name: &str| match name {
            "CONNECTOR_A" => Some("of-variable".to_owned()),
            "CONNECTOR_A_FILE" | "CONNECTOR_B_FILE" => Some(path.clone()),
            "CONNECTOR_C_FILE" => Some(format!("{path}-missing")),
            _ => None,
        };
        for (name, expected) in [
            ("CONNECTOR_A", Some("of-variable")),
            ("CONNECTOR_B", Some("of-file")),
            ("CONNECTOR_C", None),
            ("CONNECTOR_D", None),
        ] {
            assert_eq!(value_of(name, variable).as_deref(), expected, "{name}");
        }
        std::fs::remove_file(file).unwrap();
    }
}
