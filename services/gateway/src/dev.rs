//! The playground: database, agent, model, tool, knowledge base and API key in one process.
//!
//! It is defined by a configuration: `dev.toml`, a template that is read like any `runnel.toml`, between the person's
//! own `runnel.toml` and `runnel-dev.toml`.

#[cfg(feature = "connectors")]
mod connectors;
mod files;
mod grants;
#[cfg(feature = "harness")]
mod harness;
mod knowledge;
mod local_models;
mod model;
mod own_runners;
mod run_line;
mod settings;
mod sidecars;
mod watch;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use protocol::api_key::{ApiKeySpec, KeyRole};
use protocol::id::{DEFAULT_WORKSPACE, WorkspaceId};
use protocol::principal::PrincipalKind;
use secrecy::ExposeSecret;
use store::ChangeStamp;
use tokio::net::TcpListener;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::app::{App, LoopbackServers, MetricsServer, declared};
use crate::config::{Config, DevLayers, reachable};
use crate::shutdown::{HangupEffect, Signals};
use cli::dev_file::{DEV_FILE, DevFile, write_private};
use clock::Clock;
use keys::api_key::{issue, prefix_of};
use own_runners::OwnRunners;
use runs::Runs;
use secrets::seal::MasterKey;
use settings::GeneratedSettings;
use sidecars::StartedSidecar;
use watch::RunnerWatch;
use web::http_server::bind;

pub(crate) use local_models::{LocalModel, USUAL_PORTS};
pub(crate) use model::{ModelOrigin, ModelPreference};
pub(crate) use run_line::RunLine;
pub(crate) use sidecars::{AgentHint, SidecarArgs};

/// The person's settings in the working directory.
const OWN_FILE: &str = "runnel.toml";
/// Settings above the generated ones.
pub(crate) const OVERRIDES_FILE: &str = "runnel-dev.toml";
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8700);
/// Runners of the command line are discovered often, so that a change shows at once.
const QUICK_DISCOVERY: &str =
    "[runs]\ndiscovery_ttl_seconds = 3.0\ndiscovery_retry_seconds = 0.5\n";
/// Time that the tool servers get before the playground greets. Slower ones connect later.
const TOOLS_WAIT: Duration = Duration::from_millis(250);

/// Components of a playground.
pub(crate) struct DevOptions {
    pub(crate) data_dir: PathBuf,
    /// `None`: the address of the settings, else port 8700.
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) model: ModelPreference,
    /// Ports at which a model server is looked for.
    pub(crate) model_ports: Vec<u16>,
    pub(crate) sidecars: SidecarArgs,
    /// URLs of `--runner`, in their order.
    pub(crate) runners: Vec<String>,
    /// True if `runnel.toml` of the working directory is read.
    pub(crate) reads_own_file: bool,
}

/// A playground that is ready to serve.
pub(crate) struct Playground {
    pub(crate) url: String,
    pub(crate) key: String,
    /// True: the gateway serves `/console`.
    pub(crate) has_console: bool,
    /// The agent that gets the messages of `runnel send`, and its runner. `None`: several or no agents match.
    pub(crate) agent: Option<(String, String)>,
    pub(crate) model: String,
    pub(crate) model_origin: ModelOrigin,
    /// A model server that could be used instead of the script.
    pub(crate) local_model: Option<LocalModel>,
    pub(crate) tools: Vec<String>,
    pub(crate) knowledge_base: String,
    /// Agents of the sidecars. Each has a conversation of its name.
    pub(crate) hints: Vec<AgentHint>,
    /// Number of passages in the knowledge base.
    pub(crate) passages: u64,
    /// Files of settings that were read, the generated one last.
    pub(crate) settings: Vec<PathBuf>,
    /// URLs of the runners of the command line.
    pub(crate) runners: Vec<String>,
    /// The line that gives these runners their secret.
    pub(crate) secret_line: Option<String>,
    /// Lines about settings and secrets that are kept or not used.
    pub(crate) notes: Vec<String>,
    watch: RunnerWatch,
    app: App,
    listener: TcpListener,
    metrics: Option<MetricsServer>,
    signals: Signals,
    servers: LoopbackServers,
}

/// Something that happens while the playground serves.
pub(crate) enum DevNote {
    RunEnded(RunLine),
    /// About a runner of the command line.
    Runner(String),
}

/// Builds a playground. A later start reuses its data.
pub(crate) async fn build(options: DevOptions) -> anyhow::Result<Playground> {
    let sidecars = sidecars::read(&options.sidecars)?;
    files::make_private_dir(&options.data_dir)?;
    let data_dir = std::path::absolute(&options.data_dir)?;
    // Before anything starts, so that an early Ctrl-C also ends the playground in order.
    let signals = Signals::listen(HangupEffect::of_terminal())?;
    let layers = layers(&options, &data_dir);
    // Bound before the settings are written: they contain the port that the system chose.
    let listener = listen(options.listen, &layers)?;
    let address = listener.local_addr()?;
    let url = format!("http://{}", reachable(address));
    files::make_master_key(&data_dir)?;
    let chosen = model::choose(&data_dir, options.model, layers.own.as_deref()).await?;
    let servers = LoopbackServers::default();
    let sidecars = sidecars::start(&servers, &data_dir, sidecars).await?;
    let (model, model_origin) = (chosen.model_id.clone(), chosen.origin.clone());
    let settings = GeneratedSettings {
        own: OwnRunners::open(&data_dir, &options.runners).await?,
        listen: address,
        model: chosen,
        sidecars,
        data_dir: data_dir.clone(),
    };
    // After the sidecars, whose addresses are part of the settings.
    let backup = settings.write()?;
    let config = layers.load(address);
    let config = config.with_context(|| not_valid(&layers))?;
    let local_model = async {
        let is_wanted = matches!(model_origin, ModelOrigin::Script { .. })
            && options.model == ModelPreference::Any;
        if is_wanted {
            local_models::find(&options.model_ports).await
        } else {
            None
        }
    };
    let building = start(&config, &listener, &url);
    // The search for local models runs during the start, so it costs no extra time.
    let (started, local_model) = tokio::join!(Box::pin(building), local_model);
    let (app, metrics, passages) = started.with_context(|| not_valid(&layers))?;
    let key = api_key(&app, &data_dir.join(DEV_FILE), &url).await?;
    let own = &settings.own;
    Ok(Playground {
        url,
        key,
        has_console: config.server.has_console,
        agent: first_agent(&app).await?,
        model,
        model_origin,
        local_model,
        tools: tools_of(&app).await,
        knowledge_base: knowledge::BASE.to_owned(),
        hints: settings
            .sidecars
            .iter()
            .flat_map(StartedSidecar::hints)
            .collect(),
        passages,
        settings: layers.files(),
        runners: own
            .endpoints
            .iter()
            .map(|one| one.url.to_string())
            .collect(),
        secret_line: own.export_line(),
        notes: notes(&settings, &layers, backup.as_deref())?,
        watch: RunnerWatch::new(app.runs().clone(), settings, layers),
        app,
        listener,
        metrics,
        signals,
        servers,
    })
}

fn layers(options: &DevOptions, data_dir: &Path) -> DevLayers {
    let existing = |name: &str| Some(PathBuf::from(name)).filter(|file| file.exists());
    DevLayers {
        generated: data_dir.join(settings::SETTINGS_FILE),
        own: existing(OWN_FILE).filter(|_| options.reads_own_file),
        overrides: existing(OVERRIDES_FILE),
        defaults: if options.runners.is_empty() {
            ""
        } else {
            QUICK_DISCOVERY
        },
    }
}

/// Listens at the address of the command line, else of the settings.
fn listen(given: Option<SocketAddr>, layers: &DevLayers) -> anyhow::Result<TcpListener> {
    let address = match given {
        Some(address) => address,
        None => layers.listen()?.unwrap_or(LISTEN),
    };
    bind(address).with_context(|| {
        format!("cannot listen on {address}; is another `runnel dev` running? else try --listen 127.0.0.1:0")
    })
}

fn not_valid(layers: &DevLayers) -> String {
    let files: Vec<_> = layers
        .files()
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    let mut text = format!(
        "the settings of {} cannot be used together",
        files.join(", ")
    );
    if layers.own.is_some() {
        text.push_str("; --no-config leaves runnel.toml out");
    }
    text
}

/// Builds the gateway. Returns it with its metrics and the number of passages in its knowledge base.
async fn start(
    config: &Config,
    listener: &TcpListener,
    url: &str,
) -> anyhow::Result<(App, Option<MetricsServer>, u64)> {
    let declared = declared(config)?;
    let key = config.auth.master_key.as_ref();
    let key = key.context("auth.master_key is not set")?;
    let key = key.resolve().context("auth.master_key cannot be read")?;
    let key = MasterKey::parse(&key).context("auth.master_key cannot be used")?;
    let metrics = config.metrics.listen.map(MetricsServer::listen);
    let metrics = metrics.transpose()?;
    let public_url = config.server.public_url.as_ref();
    let public_url = public_url.map_or(url, |public| public.as_str().trim_end_matches('/'));
    let app = App::build(
        config,
        declared,
        key,
        listener,
        metrics.as_ref(),
        public_url,
    )
    .await?;
    let passages = knowledge::put(&app).await?;
    Ok((app, metrics, passages))
}

/// Name and runner of the agent that gets the messages of `runnel send`.
async fn first_agent(app: &App) -> anyhow::Result<Option<(String, String)>> {
    let workspace = WorkspaceId(DEFAULT_WORKSPACE.to_owned());
    let previews = &app.runs().previews;
    let preview = previews.preview_event(&workspace, watch::message(), None);
    let agent = preview.await?.and_then(|preview| preview.agent);
    Ok(agent.map(|agent| {
        let spec = agent.considered.candidate.agent.spec;
        (spec.name, spec.runner_id.to_string())
    }))
}

/// Names of the tools. The first run needs them: tools are listed after the first connection.
async fn tools_of(app: &App) -> Vec<String> {
    // A slow tool server must not delay the playground; it connects later.
    let probed = tokio::time::timeout(TOOLS_WAIT, app.tools().probe()).await;
    let servers = probed.unwrap_or_else(|_| app.tools().servers());
    servers
        .into_iter()
        .flat_map(|server| server.tools)
        .collect()
}

fn notes(
    settings: &GeneratedSettings,
    layers: &DevLayers,
    backup: Option<&Path>,
) -> anyhow::Result<Vec<String>> {
    let unused = layers.unused_server_keys(settings.listen)?;
    let unused = (!unused.is_empty()).then(|| {
        format!(
            "[server] of ./{OWN_FILE} is not used by dev: {}; put it into ./{OVERRIDES_FILE}",
            unused.join(", ")
        )
    });
    let lines = [backup.map(backup_line), settings.own.unused_line(), unused];
    Ok(lines.into_iter().flatten().collect())
}

fn backup_line(backup: &Path) -> String {
    format!(
        "dev.toml was changed by hand, or by another version: it is kept as {}; put changes into ./{OVERRIDES_FILE}, \
         which dev reads and never writes",
        backup.display()
    )
}

impl Playground {
    /// Serves until a stop signal.
    pub(crate) async fn serve(self, report: fn(DevNote)) -> anyhow::Result<()> {
        let stop = CancellationToken::new();
        let runs = self.app.runs().clone();
        // The store closes after the stop signal.
        let stopping = runs.stopping().clone();
        let watching = self.watch.keep(|line| report(DevNote::Runner(line)));
        let watching = stopping.run_until_cancelled(watching);
        let beside = stop.run_until_cancelled(async {
            tokio::join!(watching, report_runs(runs, report));
        });
        let serving = async {
            let served = self.app.serve(self.listener, self.metrics, self.signals);
            let served = served.await;
            // The report of runs must end with the server, or `join!` would wait forever.
            stop.cancel();
            served
        };
        let (served, _) = tokio::join!(serving, beside);
        // After the gateway: its runs still use these servers while it drains.
        self.servers.end().await;
        served
    }
}

/// Reports each ended run.
async fn report_runs(runs: Runs, report: fn(DevNote)) {
    let mut ended = runs.ended_runs();
    loop {
        match ended.recv().await {
            Ok((workspace, id)) => {
                let line = run_line::read(runs.store(), &workspace, id).await;
                if let Some(line) = line {
                    report(DevNote::RunEnded(line));
                }
            }
            // Too many runs for one line each.
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// The API key of `dev.json` if the database knows it, else a new key.
async fn api_key(app: &App, file: &Path, url: &str) -> anyhow::Result<String> {
    let stored = std::fs::read(file)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok());
    let mut key = None;
    if let Some(DevFile { api_key, .. }) = stored {
        let prefix = prefix_of(&api_key).unwrap_or_default();
        // The database may have been deleted since; its key is no longer valid then.
        if app.store().access().find_api_key(prefix).await?.is_some() {
            key = Some(api_key);
        }
    }
    let api_key = if let Some(key) = key {
        key
    } else {
        let workspace = WorkspaceId(DEFAULT_WORKSPACE.to_owned());
        let spec = ApiKeySpec {
            name: "dev".to_owned(),
            role: KeyRole::Admin,
            expires_at: None,
            agents: None,
            limits: None,
        };
        let stamp = ChangeStamp::of(PrincipalKind::Cli, Clock::system().now_ms());
        let (_, key) = issue(app.store(), &stamp, &workspace, &spec).await?;
        key.expose_secret().to_owned()
    };
    let dev_file = DevFile {
        url: url.to_owned(),
        api_key: api_key.clone(),
    };
    // Written each time, because the port can change between two starts.
    write_private(file, &serde_json::to_string_pretty(&dev_file)?)?;
    Ok(api_key)
}
