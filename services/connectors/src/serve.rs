//! `runnel-connectors serve`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use agent_core::service::{SecretNames, serve, signing_secret, start_log};
use anyhow::Context as _;
use connectors::catalogue::PLATFORMS;
use connectors::service::{ConnectorService, ServedIds};
use connectors::upstream::config::SecretHosts;
use runner_kit::{CancellationToken, RouterOptions};
use tokio::net::TcpListener;

use crate::options::{PlatformArgs, SECRET};

/// Arguments of `runnel-connectors serve`.
#[derive(clap::Args)]
pub(crate) struct ConnectorServeArgs {
    /// The address of the service; port 0 selects a free one.
    #[arg(
        long,
        env = "RUNNEL_CONNECTORS_LISTEN",
        default_value = "127.0.0.1:9120"
    )]
    listen: SocketAddr,
    /// A file with the endpoint's signing secret (`whsec_…`). Without it, the variable `RUNNEL_CONNECTORS_SECRET` is
    /// used.
    #[arg(long, env = "RUNNEL_CONNECTORS_SECRET_FILE")]
    secret_file: Option<PathBuf>,
    /// The runner ids: only `runnel`, or those of LangBot's runners as well.
    #[arg(long, env = "RUNNEL_CONNECTORS_IDS", default_value = "runnel")]
    ids: OfferedIds,
    /// Maximum concurrent runs. The gateway retries a further one later.
    #[arg(long, env = "RUNNEL_CONNECTORS_LIVE_RUNS", default_value_t = 1024)]
    live_runs: usize,
    #[command(flatten)]
    platforms: PlatformArgs,
}

/// The values of `--ids`.
#[derive(Clone, Copy, clap::ValueEnum)]
enum OfferedIds {
    Runnel,
    Langbot,
}

/// Arguments of `runnel-connectors health`.
#[derive(clap::Args)]
pub(crate) struct ConnectorHealthArgs {
    /// The loopback port of the service.
    #[arg(long, default_value_t = 9120)]
    pub(crate) port: u16,
}

/// Prints the manifests of all platforms, one a line.
pub(crate) fn print_manifests() -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for platform in PLATFORMS {
        let manifest = platform.manifest(platform.id());
        writeln!(out, "{}", serde_json::json!(manifest))?;
    }
    Ok(())
}

/// Serves until a termination signal.
pub(crate) fn execute(args: &ConnectorServeArgs) -> anyhow::Result<()> {
    start_log(&args.platforms.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run(args))
}

async fn run(args: &ConnectorServeArgs) -> anyhow::Result<()> {
    let names = SecretNames {
        variable: SECRET,
        file: "--secret-file",
    };
    let secret = signing_secret(args.secret_file.as_deref(), names)?;
    let secrets = args.platforms.source(SecretHosts::Listed)?;
    // Bind before printing the address: with port 0 the system chooses the port.
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("--listen: cannot listen on {}", args.listen))?;
    let listen = listener.local_addr()?;
    // A configured agent must not call this service itself, which would create a loop of runs.
    let egress = args.platforms.egress()?.refusing_own(listen);
    let ids = match args.ids {
        OfferedIds::Runnel => ServedIds::Own,
        OfferedIds::Langbot => ServedIds::LangBot,
    };
    let runners = ConnectorService { egress, secrets }.runners(ids);
    say(listen, &runners)?;
    let options = RouterOptions {
        live_runs: args.live_runs,
        ..RouterOptions::default()
    };
    serve(listener, runners, secret, options, CancellationToken::new()).await?;
    Ok(())
}

/// Prints the address of the service and the ids of its runners.
fn say(
    listen: SocketAddr,
    runners: &[std::sync::Arc<dyn runner_kit::Runner>],
) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "runnel-connectors listening on http://{listen}")?;
    for runner in runners {
        writeln!(out, "{}", runner.manifest().id)?;
    }
    Ok(())
}
