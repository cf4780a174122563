//! Process of a service: log, signing secret, port, and stop.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use runner_kit::process::{is_healthy, stop_requested};
use runner_kit::{CancellationToken, RouterOptions, Runner, SigningSecret, router_with};
use tokio::net::TcpListener;
use tracing_subscriber::EnvFilter;

/// Sources of the signing secret, by the names that an operator knows.
#[derive(Clone, Copy, Debug)]
pub struct SecretNames {
    /// Environment variable with the secret.
    pub variable: &'static str,
    /// Setting that names a file with the secret.
    pub file: &'static str,
}

/// Sends logs to standard error. `filter`: syntax of `tracing_subscriber`, the value of `--log`.
pub fn start_log(filter: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter).context("--log cannot be understood")?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        // Standard output has only the address and the runners, which scripts read.
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}

/// Reads the signing secret of the runner endpoint from a file, or without one from the variable.
#[expect(
    clippy::disallowed_methods,
    reason = "process arguments are visible to all users of the machine"
)]
pub fn signing_secret(file: Option<&Path>, names: SecretNames) -> anyhow::Result<SigningSecret> {
    let SecretNames {
        variable,
        file: setting,
    } = names;
    let text = match file {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("{setting}: cannot read {}", path.display()))?,
        None => std::env::var(variable).with_context(|| {
            format!("no signing secret: set {variable} or {setting} to that of the runner endpoint")
        })?,
    };
    // Files end with a line break, which is no part of the secret.
    text.trim()
        .parse()
        .context("the signing secret cannot be used")
}

/// Serves runners until Ctrl-C, SIGTERM or `stop`. Live runs have 5 s to end.
pub async fn serve(
    listener: TcpListener,
    runners: Vec<Arc<dyn Runner>>,
    secret: SigningSecret,
    options: RouterOptions,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let router = router_with(runners, secret, options);
    let serving = runner_kit::serve(listener, router, stop.clone());
    let stopping = async {
        // The guard stops the server also if the signal handler cannot be installed.
        let _stop = stop.drop_guard_ref();
        stop_requested().await
    };
    // Installs the signal handler first: a process that answers can be stopped.
    tokio::try_join!(stopping, serving)?;
    Ok(())
}

/// Exit code of a health check of the service on this loopback port.
pub fn health(port: u16) -> ExitCode {
    if is_healthy(SocketAddr::from((Ipv4Addr::LOCALHOST, port))) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Exit code of a command. Prints its error to standard error.
#[expect(clippy::print_stderr, reason = "a failed command reports its error")]
pub fn exit_code(ended: anyhow::Result<ExitCode>) -> ExitCode {
    ended.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
