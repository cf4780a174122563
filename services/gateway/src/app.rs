//! The composition root: builds a gateway from its settings.

mod apply_config;
mod builtin_runners;
mod database;
mod files;
mod metrics;
mod settings;

use std::fs::File;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use futures_util::FutureExt as _;
use store::{Migrations, Store};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::api::{self, Router};
use crate::change_export::ChangeExport;
use crate::config::{Config, ServerConfig};
use crate::shutdown::Signals;
use clock::Clock;
use egress::Egress;
use keys::keyring::Keyring;
use knowledge::Knowledge;
use runner_client::RunnerClient;
use runs::bus::{self, BusSettings};
use runs::{RunParts, Runs};
use secrets::seal::MasterKey;
use telemetry::metrics::{PanickedTask, panicked};
use telemetry::otlp::Exporter;
use tools::Tools;
use web::host_allowlist::HostAllowlist;
use web::http_server::{ServerOptions, affordable_connections, serve};
use web::sign_in::SignIn;
use web::state::{ApiOptions, ApiState};
use web::view::agent_run;

pub(crate) use builtin_runners::{BuiltinServers, LoopbackServers};
pub(crate) use database::{embedded_file, open_store};
pub(crate) use metrics::MetricsServer;
pub(crate) use settings::{
    Declared, DeclaredNames, DerivedPrices, PolicyWarning, artifact_directory, declared,
    derived_prices, run_limits, ungranted_choices, unknown_policy_names, unpriced_models,
};

/// A gateway that is ready to serve.
pub(crate) struct App {
    runs: Runs,
    tools: Tools,
    knowledge: Knowledge,
    exporter: Option<Exporter>,
    change_export: Option<Arc<ChangeExport>>,
    router: Router,
    tasks: TaskTracker,
    server: ServerOptions,
    names: HostAllowlist,
    builtin: BuiltinServers,
    /// Held for as long as the process writes to the database.
    _database_lock: Option<File>,
}

/// Time from the end of the grace period to process exit. The next start ends the runs that are still live.
const EXIT_TIMEOUT: Duration = Duration::from_millis(1800);
/// Part of `EXIT_TIMEOUT` that is left for responses in flight.
const RESPONSE_DRAIN: Duration = Duration::from_secs(1);

/// Ends or continues the work of an earlier process.
async fn recover(runs: &Runs) -> anyhow::Result<()> {
    runs.recovery
        .sweep_at_boot()
        .await
        .context("cannot end the runs of an earlier start")?;
    runs.store().knowledge().sweep_knowledge_at_boot().await?;
    Ok(())
}

impl App {
    /// Builds all components, applies the declared configuration, and recovers the runs of an earlier process.
    /// `listener` is the main listener, `metrics` the optional metrics listener. `public_url` has no trailing
    /// slash.
    pub(crate) async fn build(
        config: &Config,
        mut declared: Declared,
        master_key: MasterKey,
        listener: &TcpListener,
        metrics: Option<&MetricsServer>,
        public_url: &str,
    ) -> anyhow::Result<Self> {
        let tasks = TaskTracker::new();
        let builtin = BuiltinServers::start(&config.builtin_runners, &mut declared).await?;
        let database_lock = database::lock(&config.database.url)?;
        let store = open_store(config, &tasks, Migrations::All).await?;
        let clock = Clock::system();
        let master_key = Arc::new(master_key);
        let (sealed, age) = (Arc::clone(&master_key), config.auth.signing_key_age);
        let keys = Keyring::open(store.clone(), sealed, clock, public_url, age).await?;
        let egress = guarded(config, listener, metrics, &builtin)?;
        let bases = std::mem::take(&mut declared.knowledge);
        let knowledge_egress = egress.clone();
        let artifacts = files::open(config, &mut declared, &egress, &tasks).await?;
        let bus = std::mem::replace(&mut declared.bus, BusSettings::Silent);
        let catalog = Arc::new(ArcSwap::from_pointee(declared.catalog.clone()));
        let id = Uuid::now_v7();
        let owner_lock = store.leases().lock_owner(id).await;
        // The name shows other replicas that a missing lock means a dead process.
        let owner = owner_lock
            .as_ref()
            .map_or_else(|| id.to_string(), |lock| lock.owner().to_string());
        let collector = declared.collector.as_ref();
        let (spans, exporter) = collector
            .map(|collector| Exporter::start(&egress, collector, &id.to_string(), clock))
            .unzip();
        let receiver = declared.change_receiver.take();
        let change_export = ChangeExport::to(receiver, &store, &egress);
        let specs = std::mem::take(&mut declared.tools);
        let sign_in = config.auth.oidc.clone();
        let sign_in = sign_in.map(|rules| SignIn::new(rules, egress.clone()));
        let tools = Tools::new(specs, egress.clone(), clock, Arc::clone(&catalog))?;
        let models = declared.models.open(&egress, clock);
        let runs = Runs::new(RunParts {
            bus: bus::open(bus, &store, &master_key)?,
            client: RunnerClient::new(egress.clone(), clock),
            keys: Arc::new(keys),
            master_key,
            budgets: config.budgets.clone().into(),
            catalog,
            artifacts,
            limits: settings::run_limits(config),
            owner,
            owner_lock,
            spans: spans.unwrap_or_default(),
            egress,
            store,
            clock,
        });
        apply_config::apply(&runs, declared).await?;
        recover(&runs).await?;
        let knowledge = Knowledge::new(knowledge::Parts {
            store: runs.store().clone(),
            clock,
            egress: knowledge_egress,
            bases,
            embedder: Some(Arc::new(models.clone())),
            stopping: runs.stopping().clone(),
        })?;
        let names = host_allowlist(&config.server);
        let server = server_options(config);
        let state = ApiState::new(ApiOptions {
            runs: runs.clone(),
            models,
            tools: tools.clone(),
            knowledge: knowledge.clone(),
            heartbeat: config.server.heartbeat,
            body: config.server.body,
            connections: server.max_connections,
            max_auth_failures: config.limits.refused_credentials,
            model_bytes: config.limits.model_bytes,
            body_bytes: config.limits.body_bytes,
            answer_bytes: config.limits.answer_bytes,
            event_body_bytes: config.limits.event_body_bytes,
            host_allowlist: is_guarded(&config.server).then(|| {
                let pages = config.server.cors_origins.iter().cloned();
                names.clone().with_origins(pages)
            }),
            cors_origins: config.server.cors_origins.clone(),
            has_console: config.server.has_console,
            sign_in,
            shared_mcp: config.host_api.shared_mcp,
        });
        Ok(Self {
            router: api::router(state),
            runs,
            tools,
            knowledge,
            exporter,
            change_export,
            tasks,
            server,
            names,
            builtin,
            _database_lock: database_lock,
        })
    }

    /// The runs of this gateway.
    pub(crate) fn runs(&self) -> &Runs {
        &self.runs
    }

    /// The store of this gateway.
    pub(crate) fn store(&self) -> &Store {
        self.runs.store()
    }

    /// The tools, of MCP servers included.
    pub(crate) fn tools(&self) -> &Tools {
        &self.tools
    }

    pub(crate) fn knowledge(&self) -> &Knowledge {
        &self.knowledge
    }

    /// Serves until the first signal, then drains. A second signal stops at once.
    pub(crate) async fn serve(
        self,
        listener: TcpListener,
        metrics: Option<MetricsServer>,
        mut signals: Signals,
    ) -> anyhow::Result<()> {
        let closing = CancellationToken::new();
        if let Some(metrics) = metrics {
            metrics.spawn(&self.runs, &self.tasks, self.names, closing.clone());
        }
        self.tasks.spawn(serve(
            listener,
            self.router.clone(),
            self.server.clone(),
            closing.clone(),
        ));
        let exporter_stop = CancellationToken::new();
        if let Some(exporter) = self.exporter {
            self.tasks.spawn(exporter.run(exporter_stop.clone()));
        }
        if let Some(export) = self.change_export {
            let stopped = closing.clone();
            keep(&self.tasks, &self.runs, move |_| {
                let (export, stopped) = (Arc::clone(&export), stopped.clone());
                async move {
                    stopped.run_until_cancelled(export.keep_exporting()).await;
                }
            });
        }
        let (tools, stopped) = (self.tools.clone(), closing.clone());
        keep(&self.tasks, &self.runs, move |_| {
            let (tools, stopped) = (tools.clone(), stopped.clone());
            async move {
                stopped.run_until_cancelled(tools.keep()).await;
            }
        });
        keep(&self.tasks, &self.runs, |runs| async move {
            runs.leases.keep_leases().await;
        });
        keep(&self.tasks, &self.runs, |runs| async move {
            runs.recovery.keep_sweeps().await;
        });
        keep(&self.tasks, &self.runs, |runs| async move {
            runs.pauses.keep_pauses().await;
        });
        keep(&self.tasks, &self.runs, |runs| async move {
            runs.jobs.keep_jobs().await;
        });
        keep(&self.tasks, &self.runs, |runs| async move {
            runs.notifications.keep_notifying().await;
        });
        keep(&self.tasks, &self.runs, |runs| async move {
            runs.feed.keep_publishing().await;
        });
        keep(&self.tasks, &self.runs, |runs| async move {
            runs.webhooks.keep_delivering(agent_run).await;
        });
        keep(&self.tasks, &self.runs, |runs| async move {
            runs.schedules.keep_triggering().await;
        });
        keep(&self.tasks, &self.runs, |runs| async move {
            runs.keep_keys().await;
        });
        keep(&self.tasks, &self.runs, |runs| async move {
            runs.upkeep.keep_tidy().await;
        });
        keep(&self.tasks, &self.runs, |runs| async move {
            runs.key_uses.keep_recording().await;
        });
        keep(&self.tasks, &self.runs, |runs| async move {
            runs.endpoints.keep_discovering().await;
        });
        signals.next().await;
        tracing::info!(
            grace_ms = self.runs.limits().shutdown_grace.as_millis(),
            "stopping; live runs may finish within the grace period"
        );
        let stop = async {
            // Runs end before the listener closes: their runners still append results and call the host API.
            self.runs.finish().await;
            closing.cancel();
            let last = async {
                self.runs.end().await;
                self.knowledge.end().await;
                self.builtin.end().await;
                // The exporter stops after the runs, since the end of a run still records spans.
                exporter_stop.cancel();
                self.tasks.close();
                // After all writers, so that the last writes are committed.
                self.runs.store().close().await;
                self.tasks.wait().await;
            };
            tokio::time::timeout(EXIT_TIMEOUT, last).await
        };
        tokio::select! {
            stopped = stop => if stopped.is_ok() {
                tracing::info!("stopped");
            } else {
                tracing::error!("some runs did not end within the grace period; the next start ends them");
            },
            () = signals.next() => tracing::warn!("stopped at once; the next start ends the remaining runs"),
        }
        Ok(())
    }
}

/// The HTTP client for all outgoing requests. It refuses the gateway's own listeners.
fn guarded(
    config: &Config,
    listener: &TcpListener,
    metrics: Option<&MetricsServer>,
    builtin: &BuiltinServers,
) -> anyhow::Result<Egress> {
    let rules = config.egress.allow.iter().cloned().chain(builtin.rules());
    let egress =
        // A URL of an agent or a tool must not reach this gateway: requests would loop.
        Egress::new(rules.collect(), config.limits.connect)?.refusing_own(listener.local_addr()?);
    Ok(match metrics {
        Some(metrics) => egress.refusing_own(metrics.address()?),
        None => egress,
    })
}

/// Runs background work until shutdown and restarts it after a panic. Without it, expired leases and orphans are
/// noticed late.
fn keep<K: Future<Output = ()> + Send + 'static>(
    tasks: &TaskTracker,
    runs: &Runs,
    keeping: impl Fn(Runs) -> K + Send + 'static,
) {
    const PAUSE: Duration = Duration::from_secs(1);
    // The closure is called once more after a panic, so it gets its own clone.
    let runs = runs.clone();
    tasks.spawn(async move {
        while AssertUnwindSafe(keeping(runs.clone()))
            .catch_unwind()
            .await
            .is_err()
        {
            tracing::error!("background task panicked, restarting in 1 s");
            panicked(PanickedTask::Upkeep);
            tokio::time::sleep(PAUSE).await;
        }
    });
}

/// Connection limits and timeouts of the listener.
fn server_options(config: &Config) -> ServerOptions {
    let max_connections = affordable_connections(config.server.connections);
    let of_peer = config.server.connections_per_peer;
    ServerOptions {
        max_connections,
        max_per_peer: of_peer.unwrap_or((max_connections / 4).max(1)),
        exempt_loopback: of_peer.is_none(),
        exempt_addresses: config.server.proxies.clone().into(),
        header_timeout: config.server.head,
        write_timeout: config.server.write,
        drain: RESPONSE_DRAIN,
    }
}

/// Host names that requests may use where the host allow-list applies.
fn host_allowlist(server: &ServerConfig) -> HostAllowlist {
    let public = server.public_url.as_ref().and_then(|url| url.host_str());
    let names = server.allowed_hosts.iter().map(String::as_str);
    HostAllowlist::new(names.chain(public).map(str::to_owned))
}

/// The host allow-list applies to loopback listeners, and to others if the operator lists names.
fn is_guarded(server: &ServerConfig) -> bool {
    server.listen.ip().is_loopback() || !server.allowed_hosts.is_empty()
}
