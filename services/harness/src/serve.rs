//! Commands `serve`, `health` and `check` of `runnel-harness`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent_core::service::{serve, start_log};
use anyhow::Context as _;
use harness::owner::ProcessOwner;
use harness::protections::Protections;
use harness::relay::CredentialRelay;
use harness::service::HarnessService;
use harness::settings::{HarnessFile, WorkspaceRetention};
use harness::workspace::Workspaces;
use runner_kit::{CancellationToken, RouterOptions};
use tokio::net::TcpListener;

/// Interval of the removal of old workspaces.
const SWEEP: Duration = Duration::from_hours(1);

/// Arguments of `runnel-harness serve`.
#[derive(clap::Args)]
pub(crate) struct HarnessServeArgs {
    /// The settings file.
    #[arg(long, env = "RUNNEL_HARNESS_SETTINGS")]
    settings: PathBuf,
    /// Log levels, after the syntax of `tracing_subscriber`.
    #[arg(long, env = "RUNNEL_HARNESS_LOG", default_value = "info")]
    log: String,
}

/// Arguments of `runnel-harness health`.
#[derive(clap::Args)]
pub(crate) struct HarnessHealthArgs {
    /// The loopback port of the service.
    #[arg(long, default_value_t = 9110)]
    pub(crate) port: u16,
}

/// Arguments of `runnel-harness check`.
#[derive(clap::Args)]
pub(crate) struct HarnessCheckArgs {
    /// The settings file of a service; without one, the default settings count.
    #[arg(long, env = "RUNNEL_HARNESS_SETTINGS")]
    settings: Option<PathBuf>,
    /// Print the table as JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the protections that hold on this machine. Fails if a service with these settings would not start.
#[expect(clippy::print_stdout, reason = "the output of the command")]
pub(crate) fn check(args: &HarnessCheckArgs) -> anyhow::Result<()> {
    let settings = args
        .settings
        .as_deref()
        .map(HarnessFile::read)
        .transpose()?;
    let protections = Protections::examine(settings.as_ref());
    if args.json {
        println!("{}", protections.to_json());
    } else {
        print!("{protections}");
    }
    settings.as_ref().map_or(Ok(()), check_sandbox)
}

/// Serves the harnesses of a settings file.
pub(crate) fn execute(args: &HarnessServeArgs) -> anyhow::Result<()> {
    start_log(&args.log)?;
    let settings = HarnessFile::read(&args.settings)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(run(settings))
}

async fn run(settings: HarnessFile) -> anyhow::Result<()> {
    // All checks come before the first port opens: a service that listens can run harnesses.
    let secret = settings.secret()?;
    check_sandbox(&settings)?;
    let owner = ProcessOwner::of(settings.user.as_deref())?;
    let workspaces = Workspaces::new(&settings.workspaces, owner).with_context(|| {
        format!(
            "workspaces: {} cannot be used",
            settings.workspaces.display()
        )
    })?;
    let listener = TcpListener::bind(settings.listen)
        .await
        .with_context(|| format!("listen: cannot listen on {}", settings.listen))?;
    let stop = CancellationToken::new();
    let (relay, relaying) = CredentialRelay::open_port(stop.clone())
        .await
        .context("the credentials relay cannot start")?;
    let options = RouterOptions {
        live_runs: settings.limits.live_runs,
        ..RouterOptions::default()
    };
    let keep = settings.keep;
    let service = Arc::new(HarnessService::new(settings, workspaces.clone(), relay));
    let runners = service.runners()?;
    announce(&listener, &service)?;
    // The end of one server ends the other: dropping it, or its stop, fires the token.
    let serving = serve(listener, runners, secret, options, stop);
    tokio::select! {
        ended = async { tokio::try_join!(serving, relaying) } => { ended?; }
        () = sweep(workspaces, keep) => {}
    }
    Ok(())
}

/// Prints the address of the service and its harnesses to standard output.
#[expect(
    clippy::print_stdout,
    reason = "the first lines announce the address of the service"
)]
fn announce(listener: &TcpListener, service: &HarnessService) -> anyhow::Result<()> {
    println!(
        "runnel-harness listening on http://{}",
        listener.local_addr()?
    );
    for line in service.offered() {
        println!("{line}");
    }
    Ok(())
}

fn check_sandbox(settings: &HarnessFile) -> anyhow::Result<()> {
    let checked = settings.confinement().check();
    checked.context("sandbox: every run would be refused")
}

async fn sweep(workspaces: Workspaces, keep: WorkspaceRetention) {
    loop {
        let swept = workspaces.clone();
        // Blocking: the removal of a large workspace takes seconds.
        let swept = tokio::task::spawn_blocking(move || swept.sweep(keep.age(), keep.bytes)).await;
        if let Ok(Err(error)) = swept {
            tracing::warn!(%error, "old workspaces cannot be removed, trying again in an hour");
        }
        tokio::time::sleep(SWEEP).await;
    }
}
