//! A gateway, the harness service, and an agent of one harness.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::SemaphorePermit;
use uuid::Uuid;

use super::client::Client;
use super::gateway::{Config, GatewayProcess};
use super::listening::ChildServer;
use super::programs::runnel_harness;
use super::repository::repository;
use super::runner::SECRET;
use super::stage::ending_of;
use super::waiting::until;
use super::{Engine, Sqlite};

/// File with the turns of the scripted model.
const SCRIPT: &str = "script.toml";

/// Settings of a test.
#[derive(Default)]
pub struct HarnessSetup<'a> {
    /// The harness's table in the settings file, without its header.
    pub harness: String,
    /// Paths that the harness may read.
    pub readable: Vec<PathBuf>,
    /// More settings of the service.
    pub settings: &'a str,
    /// Members of the agent's `config` besides the model, as TOML.
    pub config: &'a str,
    /// Second and third part of the runner id.
    pub runner: &'a str,
    /// Tools of the agent, and the tables of their servers.
    pub tools: &'a str,
    pub catalog: String,
    /// Turns of the scripted model.
    pub script: &'a str,
}

/// The gateway, the service and the agent. The service is killed on drop.
pub struct HarnessFixture {
    pub client: Client,
    pub admin: Client,
    pub gateway: GatewayProcess,
    /// Parent directory of the workspaces.
    pub root: PathBuf,
    /// Of a real harness, which occupies a core while it starts.
    pub permit: Option<SemaphorePermit<'static>>,
    service: Option<ChildServer>,
    settings: PathBuf,
}

/// A fake agent in this mode.
pub fn fake(mode: &str) -> HarnessSetup<'static> {
    let script = repository().join("tests/fixtures/acp_agent.py");
    let words: Vec<_> = mode.split_whitespace().collect();
    let args: Vec<_> = std::iter::once(script.to_str().unwrap())
        .chain(words)
        .collect();
    let (python, prefix) = python();
    HarnessSetup {
        harness: format!(
            "preset = \"acp\"\ncommand = {}\nargs = {args:?}",
            quoted(python)
        ),
        readable: vec![prefix.clone()],
        runner: "acp/default",
        ..HarnessSetup::default()
    }
}

/// A fake agent in this mode that every user can execute, in a folder that the test removes.
pub fn fake_for_all(mode: &str, folder: &Path) -> HarnessSetup<'static> {
    let script = folder.join("acp_agent.py");
    std::fs::create_dir_all(folder).unwrap();
    std::fs::copy(repository().join("tests/fixtures/acp_agent.py"), &script).unwrap();
    let mut words = vec![script.to_str().unwrap()];
    words.extend(mode.split_whitespace());
    HarnessSetup {
        harness: format!("preset = \"acp\"\ncommand = {SYSTEM_PYTHON:?}\nargs = {words:?}"),
        readable: vec![folder.to_owned()],
        runner: "acp/default",
        ..HarnessSetup::default()
    }
}

/// The system's Python, which every user may read.
pub const SYSTEM_PYTHON: &str = "/usr/bin/python3";

/// A path as a TOML string.
pub fn quoted(path: &Path) -> String {
    format!("{:?}", path.to_string_lossy())
}

/// Paths of the interpreter itself and of its library, because `python3` may be a wrapper script.
fn python() -> &'static (PathBuf, PathBuf) {
    static PYTHON: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let program =
            "import os, sys; print(os.path.realpath(sys.executable)); print(sys.base_prefix)";
        let printed = std::process::Command::new("python3")
            .args(["-c", program])
            .output()
            .unwrap();
        let printed = String::from_utf8(printed.stdout).unwrap();
        let mut lines = printed.lines().map(PathBuf::from);
        (lines.next().unwrap(), lines.next().unwrap())
    })
}

impl HarnessFixture {
    pub async fn open(setup: HarnessSetup<'_>) -> Self {
        Self::open_on(Sqlite, setup)
            .await
            .expect("SQLite is always at hand")
    }

    /// Returns `None` if the engine is not available.
    pub async fn open_on(engine: Engine, setup: HarnessSetup<'_>) -> Option<Self> {
        let root = std::env::temp_dir().join(format!("runnel-harness-{}", Uuid::new_v4().simple()));
        std::fs::create_dir_all(&root).unwrap();
        let settings = root.join("harness.toml");
        let mut readable = setup.readable;
        readable.push(repository().join("tests/fixtures"));
        // Fix the port, so that a restarted service keeps its address.
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let text = format!(
            "listen = \"127.0.0.1:{port}\"\nsecret = \"env:HARNESS_SECRET\"\nworkspaces = {}\nreadable = {:?}\n{}\n[[harnesses]]\n{}\n",
            quoted(&root.join("workspaces")),
            readable,
            setup.settings,
            setup.harness,
        );
        std::fs::write(&settings, text).unwrap();
        let service = serve(&settings).await;
        let mut config = Config::for_runner_at(&service.url);
        config.agents.clear();
        let script = root.join(SCRIPT);
        let turns = if setup.script.is_empty() {
            "[[turns]]\nanswer = \"You said: {input}\""
        } else {
            setup.script
        };
        std::fs::write(&script, turns).unwrap();
        config.rest = format!(
            "[[agents]]\nname = \"coder\"\nevent_types = [\"message.received\"]\nscope = {{ kind = \"global\" }}\n\
             runner_id = \"plugin:runnel/{runner}\"\nconcurrency = \"steer\"\n\
             state_policy = {{ enabled = true, scopes = [\"conversation\"] }}\n\
             delivery_policy = {{ interactions = true }}\n\
             [agents.resource_policy]\nmodels = [\"scripted\"]\nhistory = [\"page\"]\n\
             artifacts = [\"metadata\", \"read\", \"create\"]\ntools = [{tools}]\n\
             [agents.config]\nmodel = \"scripted\"\n{config}\n\
             [[model_providers]]\nname = \"script\"\nkind = \"scripted\"\nscript = {script}\n\
             [[models]]\nmodel_id = \"scripted\"\nprovider = \"script\"\n{catalog}",
            runner = setup.runner,
            tools = setup.tools,
            config = setup.config,
            catalog = setup.catalog,
            script = quoted(&script),
        );
        let gateway = GatewayProcess::start(engine, config).await?;
        Some(Self {
            client: gateway.client(),
            admin: gateway.admin(),
            gateway,
            root,
            permit: None,
            service: Some(service),
            settings,
        })
    }

    /// Posts a message in conversation `c` on a surface that shows interactions. Returns the run id.
    pub async fn post(&self, text: &str) -> String {
        self.client.post(&user_message(text, true)).await.run_id()
    }

    /// Posts a message and waits until its run ends.
    pub async fn ask(&self, text: &str) -> FinishedRun {
        let run = self.post(text).await;
        self.ended(&run).await
    }

    /// Waits until the run ends.
    pub async fn ended(&self, run: &str) -> FinishedRun {
        FinishedRun {
            run: self.client.finished(run).await,
            results: self
                .client
                .ledger(run)
                .await
                .0
                .iter()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect(),
        }
    }

    /// Waits for the only open interaction of a run.
    pub async fn question(&self, run: &str) -> Value {
        let mut found = Value::Null;
        until("a question", async || {
            let path = format!("/v1/interactions?run_id={run}&status=open");
            found = self.client.get(&path).await.body["items"][0].clone();
            !found.is_null()
        })
        .await;
        found
    }

    /// Answers an interaction.
    pub async fn answer(&self, question: &Value, action: &str) {
        let id = question["id"].as_str().unwrap();
        let body = json!({"interaction_id": question["request"]["interaction_id"], "action_id": action, "values": {}});
        let answered = self
            .client
            .create(&format!("/v1/interactions/{id}/submit"), &body)
            .await;
        assert!(answered.status < 300, "{}", answered.body);
    }

    /// The workspace of the only conversation.
    pub fn workspace(&self) -> PathBuf {
        let mut entries = std::fs::read_dir(self.root.join("workspaces")).unwrap();
        entries.next().unwrap().unwrap().path().join("work")
    }

    /// Processes that run below the root: harnesses and their children.
    pub fn processes(&self) -> Vec<i32> {
        processes_below(&self.root.join("workspaces"))
    }

    /// Waits until all harness processes have exited.
    pub async fn wait_for_no_process(&self) {
        until("no process to be left", async || {
            self.processes().is_empty()
        })
        .await;
    }

    /// Kills the gateway with SIGKILL, and restarts it at the same address.
    pub async fn restart_gateway(&mut self) {
        self.gateway.kill().await;
        self.gateway.restart().await;
    }

    /// Replaces the turns of the scripted model from the next start of the gateway on.
    pub fn replace_script(&self, script: &str) {
        std::fs::write(self.root.join(SCRIPT), script).unwrap();
    }

    /// Kills the service with SIGKILL.
    pub fn kill_service(&mut self) {
        self.service = None;
    }

    /// Restarts the service at the same address.
    pub async fn start_service(&mut self) {
        self.service = Some(serve(&self.settings).await);
    }
}

impl Drop for HarnessFixture {
    fn drop(&mut self) {
        self.service = None;
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

async fn serve(settings: &Path) -> ChildServer {
    let mut command = Command::new(runnel_harness());
    command
        .arg("serve")
        .arg("--settings")
        .arg(settings)
        .env("HARNESS_SECRET", SECRET);
    ChildServer::spawn(&mut command).await.unwrap()
}

fn processes_below(root: &Path) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let directory = std::fs::read_link(format!("/proc/{pid}/cwd"));
        directory.is_ok_and(|directory| directory.starts_with(root))
    })
    .collect()
}

/// A message in conversation `c`. With `shows`, the surface shows interactions.
pub fn user_message(text: &str, shows: bool) -> Value {
    let mut event = json!({
        "event_type": "message.received", "input": {"text": text},
        "conversation": {"conversation_id": "c"}, "actor": {"actor_type": "user", "actor_id": "u-1"},
    });
    if shows {
        event["delivery"] = json!({
            "surface": "chat", "supports_streaming": true,
            "interactions": {"field_types": [], "action_styles": ["primary", "danger"]},
        });
    }
    event
}

/// A finished run.
pub struct FinishedRun {
    pub run: Value,
    pub results: Vec<Value>,
}

impl FinishedRun {
    /// The status and, unless completed, the error code.
    pub fn ending(&self) -> String {
        ending_of(&self.run)
    }

    /// The texts of all completed messages.
    pub fn text(&self) -> String {
        let messages = self.of("message.completed");
        let texts: Vec<_> = messages
            .iter()
            .map(|data| data["message"]["content"].as_str().unwrap_or_default())
            .collect();
        texts.join("\n")
    }

    /// The texts of `processor.log`.
    pub fn logs(&self) -> String {
        let texts = self.of("processor.log").into_iter();
        let texts: Vec<_> = texts.filter_map(|data| data["text"].as_str()).collect();
        texts.join("\n")
    }

    /// The data of all results of this type.
    pub fn of(&self, kind: &str) -> Vec<&Value> {
        let results = self.results.iter().filter(|result| result["type"] == kind);
        results.map(|result| &result["data"]).collect()
    }
}
