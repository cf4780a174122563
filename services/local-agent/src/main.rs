//! Serves the Local Agent by itself: a plain HTTP service, to be registered as a runner endpoint.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use local_agent::LocalAgent;
use local_agent::manifest::RUNNER_ID;
use protocol::id::RunnerId;
use runner_kit::{CancellationToken, SigningSecret, router, serve};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// How long a healthy agent takes to say so, at most.
const HEALTH_TIME: Duration = Duration::from_secs(3);

/// The Local Agent: an agent loop behind the runner API of Runnel.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, env = "LOCAL_AGENT_LISTEN", default_value = "127.0.0.1:9101")]
    listen: SocketAddr,
    /// A file with the endpoint's signing secret (`whsec_…`); without it, `LOCAL_AGENT_SECRET` holds it.
    #[arg(long, env = "LOCAL_AGENT_SECRET_FILE")]
    secret_file: Option<PathBuf>,
    /// The id under which the agent is offered.
    #[arg(long, env = "LOCAL_AGENT_RUNNER_ID", default_value = RUNNER_ID)]
    runner_id: RunnerId,
    /// Asks the agent that listens there whether it is well, and ends: for health checks of containers.
    #[arg(long)]
    health: bool,
    /// What is logged, after the syntax of `tracing_subscriber`.
    #[arg(long, env = "LOCAL_AGENT_LOG", default_value = "info")]
    log: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    if cli.health {
        return is_well(cli.listen).await;
    }
    let log = EnvFilter::try_new(&cli.log).context("--log cannot be understood")?;
    tracing_subscriber::fmt()
        .with_env_filter(log)
        .with_writer(std::io::stderr)
        .init();
    let secret = secret(&cli)?;
    let listener = TcpListener::bind(cli.listen)
        .await
        .with_context(|| format!("cannot listen on {}", cli.listen))?;
    say(&listener, &cli.runner_id)?;

    let stop = CancellationToken::new();
    let router = router(vec![LocalAgent::runner(cli.runner_id)], secret);
    let serving = serve(listener, router, stop.clone());
    let stopping = async {
        let _stop = stop.drop_guard_ref();
        asked_to_stop().await
    };
    tokio::try_join!(serving, stopping)?;
    Ok(())
}

/// Fails unless an agent answers at that address.
async fn is_well(mut address: SocketAddr) -> anyhow::Result<()> {
    if address.ip().is_unspecified() {
        address.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    let asking = async {
        let mut socket = TcpStream::connect(address).await?;
        socket.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await?;
        let mut head = [0; 12];
        socket.read_exact(&mut head).await?;
        anyhow::ensure!(head.ends_with(b" 200"), "what listens there is no agent");
        anyhow::Ok(())
    };
    let asked = tokio::time::timeout(HEALTH_TIME, asking).await;
    asked
        .context("no answer in time")
        .flatten()
        .with_context(|| format!("nothing answers well at {address}"))
}

/// The one line on standard output: where the agent is, for people and for scripts.
#[expect(clippy::print_stdout, reason = "the first line says where we listen")]
fn say(listener: &TcpListener, id: &RunnerId) -> anyhow::Result<()> {
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
        None => std::env::var("LOCAL_AGENT_SECRET")
            .context("no signing secret: set LOCAL_AGENT_SECRET or LOCAL_AGENT_SECRET_FILE to that of the runner endpoint")?,
    };
    text.trim()
        .parse()
        .context("the signing secret cannot be used")
}

/// Returns on Ctrl-C, and on the signal that ends a service.
async fn asked_to_stop() -> std::io::Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminated.recv() => Ok(()),
    }
}
