//! Serves the Local Agent as an HTTP service, to be registered as a runner endpoint.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use local_agent::LocalAgent;
use local_agent::manifest::RUNNER_ID;
use protocol::id::RunnerId;
use runner_kit::process::{is_healthy, stop_requested};
use runner_kit::{CancellationToken, SigningSecret, router, serve};
use tokio::net::TcpListener;
use tracing_subscriber::EnvFilter;

/// The Local Agent: an agent loop that serves the runner API of Runnel.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// Listen address; port 0 takes a free port
    #[arg(long, env = "LOCAL_AGENT_LISTEN", default_value = "127.0.0.1:9101")]
    listen: SocketAddr,
    /// File with the endpoint's signing secret (`whsec_…`); default: the variable `LOCAL_AGENT_SECRET`
    #[arg(long, env = "LOCAL_AGENT_SECRET_FILE")]
    secret_file: Option<PathBuf>,
    /// Runner id of the agent
    #[arg(long, env = "LOCAL_AGENT_RUNNER_ID", default_value = RUNNER_ID)]
    runner_id: RunnerId,
    /// Checks the health of the agent that listens at the address and exits: for container health checks
    #[arg(long)]
    health: bool,
    /// Log filter in the syntax of `tracing_subscriber`
    #[arg(long, env = "LOCAL_AGENT_LOG", default_value = "info")]
    log: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    if cli.health {
        let listen = cli.listen;
        anyhow::ensure!(is_healthy(listen), "nothing answers well at {listen}");
        return Ok(());
    }
    let log = EnvFilter::try_new(&cli.log).context("--log cannot be understood")?;
    tracing_subscriber::fmt()
        .with_env_filter(log)
        // Standard output has only the address line, which scripts read.
        .with_writer(std::io::stderr)
        .init();
    let secret = secret(&cli)?;
    let listener = TcpListener::bind(cli.listen)
        .await
        .with_context(|| format!("cannot listen on {}", cli.listen))?;
    // After the bind, because port 0 is known only then.
    say(&listener, &cli.runner_id)?;

    let stop = CancellationToken::new();
    let router = router(vec![LocalAgent::runner(cli.runner_id)], secret);
    let serving = serve(listener, router, stop.clone());
    let stopping = async {
        // The guard cancels the server also when the signal handler cannot be installed.
        let _stop = stop.drop_guard_ref();
        stop_requested().await
    };
    // Installs the signal handler first: a process that answers can be stopped.
    tokio::try_join!(stopping, serving)?;
    Ok(())
}

/// Prints the only line on standard output: the agent's address, for people and scripts.
#[expect(clippy::print_stdout, reason = "scripts read the listen address")]
fn say(listener: &TcpListener, id: &RunnerId) -> anyhow::Result<()> {
    println!("{id} listening on http://{}", listener.local_addr()?);
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "process arguments are visible to all users of the machine"
)]
fn secret(cli: &Cli) -> anyhow::Result<SigningSecret> {
    let text = match &cli.secret_file {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the secret in {}", path.display()))?,
        None => std::env::var("LOCAL_AGENT_SECRET")
            .context("no signing secret: set LOCAL_AGENT_SECRET or LOCAL_AGENT_SECRET_FILE to that of the runner endpoint")?,
    };
    // Files end with a line break, which is no part of the secret.
    text.trim()
        .parse()
        .context("the signing secret cannot be used")
}
