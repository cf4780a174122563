//! The one-command playground: embedded database, echo runner, agent and key in one process.
//!
//! The echo runner is served on a loopback port of its own and reached over HTTP like any other.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::Context as _;
use protocol::admin::{AgentSpec, EndpointSpec};
use protocol::api_key::{ApiKeySpec, KeyRole};
use protocol::id::WorkspaceId;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api_key::{issue, prefix_of};
use crate::app::{App, DEFAULT_WORKSPACE, Declared, DeclaredModels};
use crate::bus::BusSettings;
use crate::clock::Clock;
use crate::config::{AllowRule, Config};
use crate::http_server::bind;
use crate::outbound::artifact::ArtifactPlace;
use crate::outbound::signature::SigningSecret;
use crate::seal::MasterKey;
use crate::shutdown::Signals;

const ECHO: &str = "plugin:runnel/echo/default";

/// A playground, ready to serve.
pub(crate) struct Playground {
    pub(crate) url: String,
    pub(crate) key: String,
    pub(crate) agent: String,
    pub(crate) runner: String,
    app: App,
    listener: TcpListener,
    signals: Signals,
    runner_tasks: TaskTracker,
    stop_runner: CancellationToken,
}

/// What `send` finds: where the playground is and how to enter it.
#[derive(Serialize, Deserialize)]
pub(crate) struct DevFile {
    pub(crate) url: String,
    pub(crate) api_key: String,
}

/// The file's name in the data directory.
pub(crate) const DEV_FILE: &str = "dev.json";

/// Builds a playground in `data_dir`. A second start finds everything again.
pub(crate) async fn build(data_dir: &Path, listen: SocketAddr) -> anyhow::Result<Playground> {
    make_private_dir(data_dir)?;
    let signals = Signals::listen()?;
    let listener = bind(listen).with_context(|| {
        format!("cannot listen on {listen}; is another `runnel dev` running? else try --listen 127.0.0.1:0")
    })?;
    let url = format!("http://{}", listener.local_addr()?);
    let master_key = master_key(&data_dir.join("master.key"))?;
    let (runner_tasks, stop_runner) = (TaskTracker::new(), CancellationToken::new());
    let (runner_address, secret) = serve_echo(&runner_tasks, stop_runner.clone()).await?;
    let mut config = Config::for_dev(data_dir, listen);
    config.egress.allow.push(AllowRule::from(runner_address));
    let mut declared = declared(runner_address, &secret)?;
    declared.artifacts = ArtifactPlace::Directory(data_dir.join("artifacts"));
    let agent = declared
        .agents
        .first()
        .map(|spec| spec.name.clone())
        .unwrap_or_default();
    let app = App::build(&config, declared, master_key, &listener, None, &url).await?;
    let key = api_key(&app, &data_dir.join(DEV_FILE), &url).await?;
    let runner = ECHO.to_owned();
    Ok(Playground {
        url,
        key,
        agent,
        runner,
        app,
        listener,
        signals,
        runner_tasks,
        stop_runner,
    })
}

impl Playground {
    /// Serves until a signal comes.
    pub(crate) async fn serve(self) -> anyhow::Result<()> {
        self.app.serve(self.listener, None, self.signals).await?;
        self.stop_runner.cancel();
        self.runner_tasks.close();
        self.runner_tasks.wait().await;
        Ok(())
    }
}

async fn serve_echo(
    tasks: &TaskTracker,
    stop: CancellationToken,
) -> anyhow::Result<(SocketAddr, String)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let secret = SigningSecret::generate();
    let router = runner_kit::router(vec![echo_runner::echo()], secret.parse()?);
    tasks.spawn(async move {
        if let Err(error) = runner_kit::serve(listener, router, stop).await {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the echo runner stopped"
            );
        }
    });
    Ok((address, secret))
}

fn declared(runner: SocketAddr, secret: &str) -> anyhow::Result<Declared> {
    let agent: AgentSpec = serde_json::from_value(json!({
        "name": "hello", "event_types": ["message.received"], "scope": {"kind": "global"},
        "runner_id": ECHO, "resource_policy": {"history": ["page"]},
    }))?;
    let endpoint: EndpointSpec = serde_json::from_value(json!({
        "name": "echo", "base_url": format!("http://{runner}"), "secret": secret,
    }))?;
    let catalog = domain::authorization::Catalog::default();
    Ok(Declared {
        knowledge: BTreeMap::new(),
        endpoints: vec![endpoint],
        agents: vec![agent],
        catalog,
        models: DeclaredModels::default(),
        tools: crate::outbound::tool::ToolSpecs::default(),
        bus: BusSettings::Silent,
        artifacts: ArtifactPlace::Directory("artifacts".into()),
    })
}

/// The key of `dev.json`, when the database still knows it; else a new one.
async fn api_key(app: &App, file: &Path, url: &str) -> anyhow::Result<String> {
    let known = std::fs::read(file)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok());
    let mut key = None;
    if let Some(DevFile { api_key, .. }) = known {
        let prefix = prefix_of(&api_key).unwrap_or_default();
        if app.store().find_api_key(prefix).await?.is_some() {
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

fn master_key(file: &Path) -> anyhow::Result<MasterKey> {
    if let Ok(text) = std::fs::read_to_string(file) {
        let text = SecretString::from(text.trim().to_owned());
        return MasterKey::parse(&text)
            .with_context(|| format!("{} cannot be used", file.display()));
    }
    let (key, text) = MasterKey::generate();
    write_private(file, &text)?;
    Ok(key)
}

fn make_private_dir(directory: &Path) -> anyhow::Result<()> {
    let made = std::fs::create_dir_all(directory)
        .and_then(|()| std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700)));
    made.with_context(|| format!("the data directory {} cannot be made", directory.display()))
}

fn write_private(file: &Path, text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut options = std::fs::OpenOptions::new();
    let mut opened = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(file)?;
    opened.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    opened
        .write_all(text.as_bytes())
        .with_context(|| format!("cannot write {}", file.display()))
}
