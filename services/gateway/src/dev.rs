//! The playground: database, agent, model, tool, knowledge base and API key in one process.
//!
//! It is defined by a configuration: `dev.toml`, a template that is read like any `runnel.toml`. The runners and
//! servers that it names run in this process on loopback ports.

mod clock_server;
mod connectors;
mod files;
mod harness;
mod knowledge;
mod model;
mod settings;
mod sidecars; // runners and the tool server

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use protocol::api_key::{ApiKeySpec, KeyRole};
use protocol::id::{DEFAULT_WORKSPACE, WorkspaceId};
use secrecy::ExposeSecret;
use tokio::net::TcpListener;

use crate::app::App;
use crate::config::reachable;
use crate::shutdown::Signals;
use api::http_server::bind;
use base::clock::Clock;
use keys::api_key::{issue, prefix_of};
use sidecars::Sidecars;

pub(crate) use connectors::ConnectorArgs;
pub(crate) use files::{DEV_FILE, DevFile, write_private};
pub(crate) use model::{ModelOrigin, ModelPreference};

/// A playground that is ready to serve.
pub(crate) struct Playground {
    pub(crate) url: String,
    pub(crate) key: String,
    pub(crate) agent: String,
    pub(crate) runner: String,
    pub(crate) model: String,
    pub(crate) model_origin: ModelOrigin,
    pub(crate) tools: Vec<String>,
    pub(crate) knowledge_base: String,
    /// Names of the coding agents and of their conversations.
    pub(crate) harnesses: Vec<String>,
    /// Names of the connector agents and of their conversations.
    pub(crate) connectors: Vec<String>,
    /// Number of passages in the knowledge base.
    pub(crate) passages: u64,
    /// Path of the configuration file.
    pub(crate) settings: PathBuf,
    app: App,
    listener: TcpListener,
    signals: Signals,
    sidecars: Sidecars,
}

/// Builds a playground in `data_dir`. A later start reuses its data.
pub(crate) async fn build(
    data_dir: &Path,
    listen: SocketAddr,
    wanted: ModelPreference,
    harnesses: &[String],
    connectors: &ConnectorArgs,
) -> anyhow::Result<Playground> {
    let connectors = connectors.read()?;
    files::make_private_dir(data_dir)?;
    let signals = Signals::listen()?;
    let listener = bind(listen).with_context(|| {
        format!("cannot listen on {listen}; is another `runnel dev` running? else try --listen 127.0.0.1:0")
    })?;
    let address = listener.local_addr()?;
    let url = format!("http://{}", reachable(address));
    let master_key = files::master_key(data_dir)?;
    let chosen = model::choose(data_dir, wanted).await?;
    let sidecars = Sidecars::default();
    let addresses = sidecars.start(data_dir, harnesses, &connectors).await?;
    let agents = (harnesses, &connectors);
    let (config, declared) =
        settings::write_and_load(data_dir, address, &addresses, &chosen, agents)?;
    let agent = declared.agents.first();
    let agent = agent.map(|agent| (agent.name.clone(), agent.runner_id.to_string()));
    let (agent, runner) = agent.context("the playground has no agent")?;
    let app = App::build(&config, declared, master_key, &listener, None, &url).await?;
    let passages = knowledge::put(&app).await?;
    // The first run needs the tool: tools are listed after the first connection.
    let servers = app.tools().probe().await;
    let key = api_key(&app, &data_dir.join(DEV_FILE), &url).await?;
    Ok(Playground {
        url,
        key,
        agent,
        runner,
        model: chosen.model_id,
        model_origin: chosen.origin,
        tools: servers
            .into_iter()
            .flat_map(|server| server.tools)
            .collect(),
        knowledge_base: knowledge::BASE.to_owned(),
        harnesses: harnesses.to_vec(),
        connectors: connectors.names(),
        passages,
        settings: data_dir.join(settings::SETTINGS_FILE),
        app,
        listener,
        signals,
        sidecars,
    })
}

impl Playground {
    /// Serves until a stop signal.
    pub(crate) async fn serve(self) -> anyhow::Result<()> {
        self.app.serve(self.listener, None, self.signals).await?;
        self.sidecars.end().await;
        Ok(())
    }
}

/// The API key of `dev.json` if the database knows it, else a new key.
async fn api_key(app: &App, file: &Path, url: &str) -> anyhow::Result<String> {
    let known = std::fs::read(file)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok());
    let mut key = None;
    if let Some(DevFile { api_key, .. }) = known {
        let prefix = prefix_of(&api_key).unwrap_or_default();
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
        };
        let (_, key) = issue(app.store(), &Clock::system(), &workspace, &spec).await?;
        key.expose_secret().to_owned()
    };
    let dev_file = DevFile {
        url: url.to_owned(),
        api_key: api_key.clone(),
    };
    write_private(file, &serde_json::to_string_pretty(&dev_file)?)?;
    Ok(api_key)
}
