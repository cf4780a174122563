//! HTTP service of the protocol agent, to be registered as a runner endpoint.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use protocol::id::RunnerId;
use protocol_agent::ProtocolAgent;
use protocol_agent::manifest::RUNNER_ID;
use runner_kit::process::{is_healthy, stop_requested};
use runner_kit::{CancellationToken, SigningSecret, router, serve};
use tokio::net::TcpListener;
use tracing_subscriber::EnvFilter;

/// The protocol agent: a runner whose model declares graphs of actions.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// Listen address; port 0 takes a free port
    #[arg(long, env = "PROTOCOL_AGENT_LISTEN", default_value = "127.0.0.1:9105")]
    listen: SocketAddr,
    /// File with the endpoint's signing secret (`whsec_…`); default: the variable `PROTOCOL_AGENT_SECRET`
    #[arg(long, env = "PROTOCOL_AGENT_SECRET_FILE")]
    secret_file: Option<PathBuf>,
    /// Runner id of the agent
    #[arg(long, env = "PROTOCOL_AGENT_RUNNER_ID", default_value = RUNNER_ID)]
    runner_id: RunnerId,
    /// Checks the health of the agent that listens at the address and exits: for container health checks
    #[arg(long)]
    health: bool,
    /// Log filter in the syntax of `tracing_subscriber`
    #[arg(long, env = "PROTOCOL_AGENT_LOG", default_value = "info")]
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
    // Standard output carries only the address.
    tracing_subscriber::fmt()
        .with_env_filter(log)
        .with_writer(std::io::stderr)
        .init();
    let secret = secret(&cli)?;
    let listener = TcpListener::bind(cli.listen)
        .await
        .with_context(|| format!("cannot listen on {}", cli.listen))?;
    announce(&listener, &cli.runner_id)?;

    let stop = CancellationToken::new();
    let router = router(vec![ProtocolAgent::runner(cli.runner_id)], secret);
    let serving = serve(listener, router, stop.clone());
    let stopping = async {
        let _stop = stop.drop_guard_ref();
        stop_requested().await
    };
    // `stopping` first: its signal handler is installed before the first connection is accepted.
    tokio::try_join!(stopping, serving)?;
    Ok(())
}

/// Prints the only line on standard output: the agent's address, for people and scripts.
#[expect(clippy::print_stdout, reason = "the first line announces the address")]
fn announce(listener: &TcpListener, id: &RunnerId) -> anyhow::Result<()> {
    println!("{id} listening on http://{}", listener.local_addr()?);
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a secret is no argument: arguments are seen by everybody on the machine"
)]
fn secret(cli: &Cli) -> anyhow::Result<SigningSecret> {
    let text = match &cli.secret_file {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the secret in {}", path.display()))?,
        None => std::env::var("PROTOCOL_AGENT_SECRET")
            .context("no signing secret: set PROTOCOL_AGENT_SECRET or PROTOCOL_AGENT_SECRET_FILE to that of the runner endpoint")?,
    };
    text.trim()
        .parse()
        .context("the signing secret cannot be used")
}
