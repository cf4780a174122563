//! One gateway with the default configuration for each database engine, shared by tests. Each test has its own
//! workspace. A test that kills, stops, pauses or configures its gateway, or reads its log, uses
//! [`OwnStage`](super::OwnStage).

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use tokio::sync::OnceCell;
use url::Url;
use uuid::Uuid;

use super::TempDirectory;
use super::client::Client;
use super::database::Engine;
use super::gateway::{Config, STUB_API_KEY, STUB_SECRET, unused_loopback_address};
use super::programs::runnel;
use super::runner::SECRET;
use super::template::Template;
use super::twins::is_twin_skipped;

/// The process of a shared gateway. It exits when this process exits and so closes its standard input.
pub struct SharedGateway {
    owner: Client,
    log: std::path::PathBuf,
    _child: Child,
    /// Kept open for the output of the gateway.
    _stdout: BufReader<ChildStdout>,
}

/// A workspace of a shared gateway.
pub struct TestWorkspace {
    pub id: String,
    pub client: Client,
    pub admin: Client,
    gateway: &'static SharedGateway,
}

static SQLITE: OnceCell<Option<SharedGateway>> = OnceCell::const_new();
static POSTGRES: OnceCell<Option<SharedGateway>> = OnceCell::const_new();

/// Kills the gateway and removes its directory when the write end of its standard input closes.
const UNTIL_INPUT_ENDS: &str = r#"exec 3<&0
( read -r _ <&3; kill -KILL $$; rm -rf "$0" ) >/dev/null 2>&1 &
exec "$@" </dev/null 3<&-"#;

impl SharedGateway {
    /// Returns `None` if the engine is not available.
    pub async fn of(engine: Engine) -> Option<&'static Self> {
        if is_twin_skipped() {
            return None;
        }
        let cell = match engine {
            Engine::Sqlite => &SQLITE,
            Engine::Postgres => &POSTGRES,
        };
        cell.get_or_init(|| Self::start(engine)).await.as_ref()
    }

    async fn start(engine: Engine) -> Option<Self> {
        let template = Template::of(engine).await?;
        let directory = TempDirectory::new();
        let database = template.copy(&directory).await;
        directory.write("master.key", &template.keys.master);
        directory.write("endpoint.secret", SECRET);
        let mut config = Config::for_runner_at("http://127.0.0.1:9");
        config.agents.clear();
        config.artifact_directory = directory.file("artifacts");
        let file = config.write(&unused_loopback_address(), &database, &directory);
        let log = directory.file("stderr.log");
        let mut child = Command::new("sh")
            .args(["-c", UNTIL_INPUT_ENDS])
            .arg(directory.file(""))
            .arg(runnel())
            .args(["serve", "--config"])
            .arg(&file)
            .envs([STUB_API_KEY, STUB_SECRET])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        // The shell removes the directory; a later test process drops the database.
        std::mem::forget((directory, database));
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let url = listening(&mut stdout);
        Some(Self {
            owner: Client::new(&url, &template.keys.owner),
            log,
            _child: child,
            _stdout: stdout,
        })
    }

    /// Creates a workspace for one test, without agents and endpoints.
    pub async fn workspace(&'static self) -> TestWorkspace {
        let id = format!("w-{}", Uuid::new_v4());
        let made = self
            .owner
            .create("/v1/workspaces", &json!({"id": id}))
            .await;
        assert_eq!(made.status, 201, "{}", made.body);
        let admin = self.client_with(&made.body["api_key"]);
        let spec = json!({"name": "e2e", "role": "client"});
        let made = admin.create("/v1/api-keys", &spec).await.expect(201);
        TestWorkspace {
            id,
            client: self.client_with(&made.body),
            admin,
            gateway: self,
        }
    }

    fn client_with(&self, created: &Value) -> Client {
        Client::new(&self.owner.url, created["key"].as_str().unwrap())
    }
}

fn listening(stdout: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    while stdout.read_line(&mut line).unwrap() > 0 {
        if let Some(url) = line.trim_end().strip_prefix("listening ") {
            return Url::parse(url).unwrap().origin().ascii_serialization();
        }
        line.clear();
    }
    panic!("the shared gateway ended before it listened");
}

impl TestWorkspace {
    /// Registers a runner as endpoint `stub`, and the agents on it.
    pub async fn enter(&self, config: &Config) {
        let endpoint = json!({"name": "stub", "base_url": config.runner_url, "secret": SECRET});
        let made = self.admin.create("/v1/runner-endpoints", &endpoint).await;
        assert_eq!(made.status, 201, "{}", made.body);
        for agent in &config.agents {
            let made = self.admin.create("/v1/agents", &agent.spec()).await;
            assert_eq!(made.status, 201, "{}", made.body);
        }
    }
}

impl Drop for TestWorkspace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(&self.gateway.log).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(60)..];
            eprintln!(
                "--- the end of the shared gateway's stderr ---\n{}\n---",
                last.join("\n")
            );
        }
    }
}
