//! `runnel-connectors serve`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use connectors::catalogue::PLATFORMS;
use connectors::service::{ConnectorService, ServedIds};
use connectors::upstream::config::SecretHosts;
use runner_kit::process::{is_healthy, stop_requested};
use runner_kit::{CancellationToken, RouterOptions, SigningSecret, router_with, serve};
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
    port: u16,
}

/// Checks the service on a loopback port.
pub(crate) fn health(args: &ConnectorHealthArgs) -> ExitCode {
    if is_healthy(SocketAddr::from(([127, 0, 0, 1], args.port))) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
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
    args.platforms.start_log()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run(args))
}

async fn run(args: &ConnectorServeArgs) -> anyhow::Result<()> {
    let secret = secret(args)?;
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
    let stop = CancellationToken::new();
    let serving = serve(
        listener,
        router_with(runners, secret, options),
        stop.clone(),
    );
    let stopping = async {
        // The guard stops the server also if waiting for the signal fails.
        let _stop = stop.drop_guard_ref();
        stop_requested().await
    };
    tokio::try_join!(serving, stopping)?;
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

#[expect(
    clippy::disallowed_methods,
    reason = "a secret is no argument: arguments are seen by other processes"
)]
fn secret(args: &ConnectorServeArgs) -> anyhow::Result<SigningSecret> {
    let text = match &args.secret_file {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("--secret-file: cannot read {}", path.display()))?,
        None => std::env::var(SECRET).with_context(|| {
            format!(
                "no signing secret: set {SECRET} or --secret-file to that of the runner endpoint"
            )
        })?,
    };
    text.trim()
        .parse()
        .context("the signing secret cannot be used")
}
