//! A database with keys that is migrated once. Each test uses a copy.

use std::path::Path;

use serde_json::Value;
use tokio::process::Command;
use tokio::sync::OnceCell;

use super::database::{Database, DatabaseSnapshot, Engine, drop_abandoned, postgres_server};
use super::gateway::{STUB_API_KEY, STUB_SECRET};
use super::programs::runnel;
use super::twins::is_twin_skipped;
use super::{TempDirectory, hex, run};

/// A migrated database and its keys, shared by all copies.
pub struct Template {
    source: DatabaseSnapshot,
    pub keys: Keys,
}

/// Variables of the command that creates keys.
type Environment<'a> = &'a [(&'static str, String)];

/// Keys of a database.
#[derive(Clone)]
pub struct Keys {
    /// Seals secrets in the database.
    pub master: String,
    /// An API key of role `client`.
    pub client: String,
    /// An API key of role `admin`.
    pub admin: String,
    /// An API key of role `owner`.
    pub owner: String,
}

impl Keys {
    /// Creates API keys by `runnel token create` in the database of this configuration.
    pub async fn create(master: String, config: &Path, environment: Environment<'_>) -> Self {
        Self {
            master,
            client: create_key("client", config, environment).await,
            admin: create_key("admin", config, environment).await,
            owner: create_key("owner", config, environment).await,
        }
    }
}

/// A new random master key.
pub fn master_key() -> String {
    let mut random = [0_u8; 32];
    aws_lc_rs::rand::fill(&mut random).unwrap();
    hex(&random)
}

static SQLITE: OnceCell<Option<Template>> = OnceCell::const_new();
static POSTGRES: OnceCell<Option<Template>> = OnceCell::const_new();

impl Template {
    /// Returns `None` if the engine is not available.
    pub async fn of(engine: Engine) -> Option<&'static Self> {
        // Check before the cell is initialized: another test may need this engine.
        if is_twin_skipped() {
            return None;
        }
        let cell = match engine {
            Engine::Sqlite => &SQLITE,
            Engine::Postgres => &POSTGRES,
        };
        cell.get_or_init(|| make(engine)).await.as_ref()
    }

    /// Copies the database for one test.
    pub async fn copy(&self, directory: &TempDirectory) -> Database {
        self.source.copy(directory).await
    }
}

async fn make(engine: Engine) -> Option<Template> {
    if let Engine::Postgres = engine {
        drop_abandoned(&postgres_server()?).await;
    }
    let directory = TempDirectory::new();
    let database = Database::create(engine, &directory).await?;
    let master_key = master_key();
    let key_file = directory.write("master.key", &master_key);
    let config = format!(
        "[auth]\nmaster_key = \"file:{}\"\n[database]\nurl = \"{}\"\n",
        key_file.display(),
        database.url()
    );
    let config = directory.write("runnel.toml", &config);
    let keys = Keys::create(master_key, &config, &[]).await;
    let source = database.into_source();
    Some(Template { source, keys })
}

/// Creates an API key by `runnel token create`.
pub async fn create_key(role: &str, config: &Path, environment: Environment<'_>) -> String {
    let mut command = Command::new(runnel());
    command
        .args([
            "token", "create", "--role", role, "--name", "e2e", "--json", "--config",
        ])
        .arg(config)
        .envs([STUB_API_KEY, STUB_SECRET])
        .envs(environment.iter().map(|(name, value)| (name, value)));
    let printed = run(&mut command).await;
    assert!(printed.status.success(), "token create: {printed:?}");
    let created: Value = serde_json::from_str(&printed.stdout).unwrap();
    created["key"].as_str().unwrap().to_owned()
}
