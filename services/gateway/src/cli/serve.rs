//! `runnel serve`.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;

use crate::app::{App, MetricsServer};
use crate::cli::check_config::{check_references, with_further_faults};
use crate::cli::config_argument::ConfigArgument;
use crate::cli::{process_hardening, version};
use crate::config::{Config, ConfigErrors, ConfigFault};
use crate::shutdown::{HangupEffect, Signals};
use cli::output::{self, OutputFormat};
use secrets::seal::MasterKey;
use telemetry::LogFormat;
use web::http_server::bind;

#[derive(clap::Args)]
pub(super) struct ServeArguments {
    #[command(flatten)]
    config: ConfigArgument,
    /// Format of the log. Default: text on a terminal, else json.
    #[arg(long, value_enum, value_name = "FORMAT")]
    log_format: Option<LogFormatName>,
    /// Log warnings and errors only. `RUNNEL_LOG` sets another filter.
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum LogFormatName {
    Text,
    Json,
}

impl ServeArguments {
    fn log_format(&self) -> LogFormat {
        match self.log_format {
            Some(LogFormatName::Text) => LogFormat::Text,
            Some(LogFormatName::Json) => LogFormat::Json,
            None => LogFormat::of_stderr(),
        }
    }
}

/// Serves until a stop signal. All faults are reported before a port is bound.
pub(super) async fn serve(
    arguments: &ServeArguments,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let path = arguments.config.path();
    let config = Config::load(path.as_deref())
        .map_err(|errors| with_further_faults(path.as_deref(), errors))?;
    let (declared, master_key) = check_references(&config)?;
    let filter = if arguments.quiet { "warn" } else { "info" };
    telemetry::init(arguments.log_format(), filter);
    process_hardening::harden();
    store::failpoint::arm();
    // Before the ports: a stop signal during the start drains like a later one.
    let signals = Signals::listen(HangupEffect::Warn)?;
    let address = config.server.listen;
    let listener = bind(address)
        .with_context(|| format!("cannot listen on {address}; choose another server.listen"))?;
    let url = format!("http://{}", listener.local_addr()?);
    let metrics = config
        .metrics
        .listen
        .map(MetricsServer::listen)
        .transpose()?;
    let public_url = config.server.public_url.as_ref();
    if public_url.is_none() && address.ip().is_unspecified() {
        tracing::warn!(
            "runners receive the callback URL {url}, which no machine can reach: set server.public_url to the address where they \
             reach this gateway, the same for all replicas"
        );
    }
    let public_url =
        public_url.map_or(url.as_str(), |public| public.as_str().trim_end_matches('/'));
    let (agents, endpoints) = (declared.agents.len(), declared.endpoints.len());
    let app = App::build(
        &config,
        declared,
        master_key,
        &listener,
        metrics.as_ref(),
        public_url,
    )
    .await?;
    // The metrics port is known now, also if it was 0.
    let metrics_url = metrics.as_ref().map(MetricsServer::url).transpose()?;
    if format.is_json() {
        output::document(&json!({"listening": url, "metrics": metrics_url}));
    } else {
        if let Some(url) = metrics_url {
            output::line(&format!("metrics {url}"));
        }
        output::line(&format!("listening {url}"));
    }
    let database = config.database.display_url();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        address = url,
        database,
        agents,
        endpoints,
        "runnel {} serves {url}: {} and {} of the configuration",
        version::with_commit(),
        output::counted(agents as u64, "agent"),
        output::counted(endpoints as u64, "runner endpoint"),
    );
    app.serve(listener, metrics, signals).await?;
    Ok(ExitCode::SUCCESS)
}

/// The key that encrypts secrets in the database. Faults have the place of the setting.
pub(super) fn master_key(config: &Config) -> Result<MasterKey, ConfigErrors> {
    let fault = |message: String| {
        let fault = ConfigFault::new("auth.master_key", message);
        ConfigErrors(vec![fault]).located(&config.locations)
    };
    let reference = config.auth.master_key.as_ref().ok_or_else(|| {
        fault(
            "is not set; name a file or variable that holds 32 random bytes as hex, \
             for example made by `openssl rand -hex 32`"
                .to_owned(),
        )
    })?;
    let text = reference
        .resolve()
        .map_err(|error| fault(format!("{:#}", anyhow::Error::new(error))))?;
    MasterKey::parse(&text).map_err(|error| fault(format!("{:#}", anyhow::Error::new(error))))
}
