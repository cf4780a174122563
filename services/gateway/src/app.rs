//! The composition root: settings in, a gateway out.

mod settings;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use protocol::id::{AgentId, WorkspaceId};
use store::{SaveAgent, SaveEndpoint, Store};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::api::{self, Api, ApiState, Router};
use crate::clock::Clock;
use crate::config::Config;
use crate::http_server::{ServerOptions, serve};
use crate::outbound::egress::Egress;
use crate::outbound::runner::RunnerClient;
use crate::runs::keyring::Keyring;
use crate::runs::{Parts, Runs};
use crate::seal::MasterKey;
use crate::shutdown::Signals;

pub(crate) use settings::{Declared, declared, run_limits};

/// The workspace that migration 1 makes.
pub(crate) const DEFAULT_WORKSPACE: &str = "default";

/// A gateway that is ready to serve.
pub(crate) struct App {
    runs: Runs,
    router: Router,
    tasks: TaskTracker,
    drain: Duration,
}

/// Opens the database and runs its writer in `tasks`.
pub(crate) async fn open_store(url: &str, tasks: &TaskTracker) -> anyhow::Result<Store> {
    if let Some(path) = url.strip_prefix("sqlite://")
        && let Some(directory) = std::path::Path::new(path).parent()
    {
        let made = tokio::fs::create_dir_all(directory).await;
        made.with_context(|| format!("the directory of {url} cannot be made"))?;
    }
    let (store, writer) = Store::open(url)
        .await
        .context("the database cannot be opened")?;
    tasks.spawn(writer);
    Ok(store)
}

impl App {
    /// Builds everything, enters what the configuration declares, and settles what an earlier
    /// process left behind. `listener` is where it will be served; `public_url` has no slash at its end.
    pub(crate) async fn build(
        config: &Config,
        declared: Declared,
        master_key: MasterKey,
        listener: &TcpListener,
        public_url: &str,
    ) -> anyhow::Result<Self> {
        let tasks = TaskTracker::new();
        let store = open_store(&config.database.url, &tasks).await?;
        let clock = Clock::system();
        let master_key = Arc::new(master_key);
        let keys = Keyring::open(
            store.clone(),
            Arc::clone(&master_key),
            clock,
            public_url,
            config.auth.signing_key_age,
        )
        .await?;
        let egress = Egress::new(config.egress.allow.clone(), config.limits.connect)?
            .refusing_own(listener.local_addr()?);
        let runs = Runs::new(Parts {
            client: RunnerClient::new(egress.clone(), clock),
            keys,
            master_key,
            catalog: declared.catalog.clone(),
            limits: settings::run_limits(config),
            owner: Uuid::now_v7().to_string(),
            egress,
            store,
            clock,
        });
        enter(&runs, declared).await?;
        runs.sweep_at_boot()
            .await
            .context("what an earlier start left behind cannot be settled")?;
        let state = ApiState::new(Api {
            runs: runs.clone(),
            heartbeat: config.server.heartbeat,
        });
        let drain = config.runs.shutdown_grace;
        Ok(Self {
            router: api::router(state),
            runs,
            tasks,
            drain,
        })
    }

    /// The store behind the gateway.
    pub(crate) fn store(&self) -> &Store {
        self.runs.store()
    }

    /// Serves until a signal comes, then drains. A second signal ends it at once.
    pub(crate) async fn serve(
        self,
        listener: TcpListener,
        mut signals: Signals,
    ) -> anyhow::Result<()> {
        let closing = CancellationToken::new();
        let options = ServerOptions {
            drain: Duration::from_secs(2),
            ..ServerOptions::default()
        };
        self.tasks.spawn(serve(
            listener,
            self.router.clone(),
            options,
            closing.clone(),
        ));
        let leases = self.runs.clone();
        self.tasks.spawn(async move { leases.keep_leases().await });
        let doorbell = self.runs.clone();
        self.tasks
            .spawn(async move { doorbell.keep_ringing().await });
        let keys = self.runs.clone();
        self.tasks.spawn(async move { keys.keep_keys().await });
        let endpoints = self.runs.clone();
        self.tasks
            .spawn(async move { endpoints.keep_discovering().await });
        signals.next().await;
        tracing::info!(
            grace_ms = self.drain.as_millis(),
            "stopping: live runs get the grace"
        );
        let stop = async {
            self.runs.shutdown().await;
            closing.cancel();
            self.tasks.close();
            self.runs.store().close().await;
            self.tasks.wait().await;
        };
        tokio::select! {
            () = stop => tracing::info!("stopped"),
            () = signals.next() => tracing::warn!("stopped at once; the next start settles the rest"),
        }
        Ok(())
    }
}

/// Enters endpoints and agents of the configuration; those that are gone from it are disabled.
async fn enter(runs: &Runs, declared: Declared) -> anyhow::Result<()> {
    let workspace = WorkspaceId(DEFAULT_WORKSPACE.to_owned());
    let names = declared
        .endpoints
        .iter()
        .map(|spec| spec.name.clone())
        .collect();
    let store = runs.store();
    store
        .write(SaveEndpoint::DisableUnnamed {
            workspace: workspace.clone(),
            names,
        })
        .await?;
    let entering = declared
        .endpoints
        .iter()
        .map(|spec| runs.configure_endpoint(&workspace, spec));
    for entered in futures_util::future::join_all(entering).await {
        entered.context("an endpoint of the configuration cannot be entered")?;
    }
    settings::check_against_runners(store, &workspace, &declared.agents).await?;
    let at = runs.clock().now_ms();
    let names = declared
        .agents
        .iter()
        .map(|spec| spec.name.clone())
        .collect();
    store
        .write(SaveAgent::DisableUnnamed {
            workspace: workspace.clone(),
            names,
            at,
        })
        .await?;
    for spec in declared.agents {
        let new_id = AgentId(Uuid::now_v7());
        let workspace = workspace.clone();
        store
            .write(SaveAgent::Configure {
                new_id,
                workspace,
                spec,
                at,
            })
            .await?;
    }
    Ok(())
}
