//! The real binary as a child process: started, killed, stopped, started again at the same address.

use std::fmt::Write;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use url::Url;
use uuid::Uuid;

use super::client::Client;
use super::database::{Database, Engine};
use super::runner::{RUNNER_ID, SECRET, StubRunner};
use super::{Directory, Printed, run, within};

pub const BINARY: &str = env!("CARGO_BIN_EXE_runnel");
/// A secret in the environment of every gateway, as `env:STUB_API_KEY`.
pub const STUB_API_KEY: (&str, &str) = ("STUB_API_KEY", "opens-sesame");

/// The sections are TOML as they stand in the file.
pub struct Config {
    pub server: String,
    pub egress: String,
    pub bus: String,
    pub ledger: String,
    pub limits: String,
    pub runs: String,
    pub endpoint: String,
    pub agents: Vec<Agent>,
    /// Tables that stand after all others: models, tools, more endpoints.
    pub rest: String,
    /// Variables of the gateway's process.
    pub environment: Vec<(&'static str, String)>,
    runner_url: String,
}

pub struct Agent {
    pub name: &'static str,
    pub event_types: &'static str,
    pub timeout_seconds: f64,
    pub concurrency: &'static str,
    pub retries: u32,
    pub runner_id: &'static str,
    pub resources: &'static str,
    pub state_scopes: &'static str,
}

impl Default for Agent {
    fn default() -> Self {
        Self {
            name: "main",
            event_types: "message.received",
            timeout_seconds: 50.0,
            concurrency: "concurrent",
            retries: 0,
            runner_id: RUNNER_ID,
            resources: r#"history = ["page"]"#,
            state_scopes: r#""conversation", "actor""#,
        }
    }
}

impl Config {
    pub fn new(runner: &StubRunner) -> Self {
        Self::for_runner_at(&runner.url)
    }

    pub fn for_runner_at(url: &str) -> Self {
        Self {
            server: String::new(),
            egress: "allow = [\"127.0.0.0/8\"]".to_owned(),
            bus: String::new(),
            ledger: String::new(),
            limits: String::new(),
            runs: String::new(),
            endpoint: String::new(),
            agents: vec![Agent::default()],
            rest: String::new(),
            environment: Vec::new(),
            runner_url: url.to_owned(),
        }
    }

    fn write(&self, listen: &str, database: &Database, directory: &Directory) -> PathBuf {
        let mut text = format!(
            "[server]\nlisten = \"{listen}\"\n{server}\n\
             [auth]\nmaster_key = \"file:{key}\"\n\
             [database]\nurl = \"{database}\"\n\
             [bus]\n{bus}\n\
             [ledger]\n{ledger}\n\
             [egress]\n{egress}\n\
             [limits]\n{limits}\n\
             [runs]\n{runs}\n\
             [[runner_endpoints]]\nname = \"stub\"\nbase_url = \"{runner}\"\n\
             secret = \"file:{secret}\"\n{endpoint}\n",
            server = self.server,
            egress = self.egress,
            bus = self.bus,
            ledger = self.ledger,
            key = directory.file("master.key").display(),
            database = database.url(),
            limits = self.limits,
            runs = self.runs,
            runner = self.runner_url,
            secret = directory.file("endpoint.secret").display(),
            endpoint = self.endpoint,
        );
        for agent in &self.agents {
            write!(
                text,
                "[[agents]]\nname = \"{}\"\nevent_types = [\"{}\"]\nconcurrency = \"{}\"\n\
                 scope = {{ kind = \"global\" }}\nrunner_id = \"{}\"\n\
                 config = {{ timeout = {:?} }}\nretry = {{ max = {} }}\n\
                 resource_policy = {{ {} }}\n\
                 state_policy = {{ enabled = true, scopes = [{}] }}\n",
                agent.name,
                agent.event_types,
                agent.concurrency,
                agent.runner_id,
                agent.timeout_seconds,
                agent.retries,
                agent.resources,
                agent.state_scopes,
            )
            .unwrap();
        }
        text.push_str(&self.rest);
        directory.write("runnel.toml", &text)
    }
}

/// Fields drop in this order: the process before the database and the files that it holds open.
pub struct Gateway {
    process: Process,
    pub url: String,
    key: String,
    config: Config,
    database: Database,
    directory: Directory,
}

impl Gateway {
    /// `None` when the engine is not at hand.
    pub async fn start(engine: Engine, config: Config) -> Option<Self> {
        let directory = Directory::new();
        let database = Database::create(engine, &directory).await?;
        directory.write("master.key", &random_hex(32));
        directory.write("endpoint.secret", SECRET);

        let file = config.write(&own_address(), &database, &directory);
        let key = create_key("client", &file).await;
        let (process, url) = Process::spawn(&config, &file, &directory.file("stderr.log")).await;
        Some(Self {
            process,
            url,
            key,
            config,
            database,
            directory,
        })
    }

    pub fn client(&self) -> Client {
        Client::new(&self.url, &self.key)
    }

    /// With a key of role admin, made while the gateway serves.
    pub async fn admin(&self) -> Client {
        let key = create_key("admin", &self.directory.file("runnel.toml")).await;
        Client::new(&self.url, &key)
    }

    /// A command on the gateway's configuration, while it serves.
    pub async fn command(&self, arguments: &[&str]) -> Printed {
        let mut command = Command::new(BINARY);
        command
            .args(arguments)
            .arg("--config")
            .arg(self.directory.file("runnel.toml"))
            .env(STUB_API_KEY.0, STUB_API_KEY.1);
        run(&mut command).await
    }

    /// Puts another master key into the file for who reads it from now on. Gives the one before.
    pub fn replace_master_key(&self, key: &str) -> String {
        let before = std::fs::read_to_string(self.directory.file("master.key")).unwrap();
        self.directory.write("master.key", key);
        before
    }

    /// What the gateway has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.file("stderr.log")).unwrap()
    }

    /// The most memory that the process has ever had, in KiB. `None` where no `/proc` tells.
    pub fn peak_memory(&self) -> Option<u64> {
        let pid = self.process.child.id().expect("the gateway still runs");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.split_whitespace().next()?.parse().ok()
    }

    /// The URL of the database.
    pub fn database_url(&self) -> String {
        self.database.url()
    }

    /// Another replica on the same database, with the same configuration and an address of its own.
    pub async fn beside(&self) -> Replica {
        let directory = Directory::new();
        for name in ["master.key", "endpoint.secret"] {
            directory.write(
                name,
                &std::fs::read_to_string(self.directory.file(name)).unwrap(),
            );
        }
        let file = self
            .config
            .write(&own_address(), &self.database, &directory);
        let (process, url) =
            Process::spawn(&self.config, &file, &directory.file("stderr.log")).await;
        Replica {
            client: Client::new(&url, &self.key),
            _process: process,
            _directory: directory,
        }
    }

    /// SIGKILL, and gone when this returns.
    pub async fn kill(&mut self) {
        within("the killed gateway to be gone", self.process.child.kill())
            .await
            .unwrap();
    }

    /// SIGTERM; returns at once.
    pub async fn terminate(&self) {
        let pid = self
            .process
            .child
            .id()
            .expect("the gateway still runs")
            .to_string();
        let sent = Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .await
            .unwrap();
        assert!(sent.success(), "kill -TERM {pid}");
    }

    pub async fn exited(&mut self) -> ExitStatus {
        within("the gateway to exit", self.process.child.wait())
            .await
            .unwrap()
    }

    /// SIGTERM, and gone when this returns.
    pub async fn stop(&mut self) {
        self.terminate().await;
        let status = self.exited().await;
        assert!(status.success(), "a graceful stop ends with {status}");
    }

    /// The same database, configuration and address; the process before must be gone.
    pub async fn start_again(&mut self) {
        let listen = self.url.trim_start_matches("http://").to_owned();
        let file = self.config.write(&listen, &self.database, &self.directory);
        let (process, url) =
            Process::spawn(&self.config, &file, &self.directory.file("stderr.log")).await;
        assert_eq!(url, self.url);
        self.process = process;
    }
}

/// A second process on the database of a [`Gateway`]. Gone before it, as it was made after it.
pub struct Replica {
    pub client: Client,
    _process: Process,
    _directory: Directory,
}

/// An address of its own on loopback with port 0: no one takes the port while the gateway is down.
fn own_address() -> String {
    let [a, b, ..] = *Uuid::new_v4().as_bytes();
    if cfg!(target_os = "linux") {
        format!("127.{a}.{b}.1:0")
    } else {
        "127.0.0.1:0".to_owned()
    }
}

fn random_hex(bytes: usize) -> String {
    let mut random = vec![0_u8; bytes];
    aws_lc_rs::rand::fill(&mut random).unwrap();
    random
        .iter()
        .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

async fn create_key(role: &str, config: &Path) -> String {
    let output = Command::new(BINARY)
        .args([
            "token", "create", "--role", role, "--name", "e2e", "--json", "--config",
        ])
        .arg(config)
        .env(STUB_API_KEY.0, STUB_API_KEY.1)
        .kill_on_drop(true)
        .output();
    let output = within("`runnel token create`", output).await.unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "token create: {}\n{stderr}",
        output.status
    );
    let created: Value = serde_json::from_slice(&output.stdout).unwrap();
    created["key"].as_str().unwrap().to_owned()
}

struct Process {
    child: Child,
    /// Kept open: a closed pipe would be an error for whoever prints into it.
    stdout: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
}

impl Process {
    /// Returns when the gateway accepts connections, with its URL.
    async fn spawn(config: &Config, file: &Path, log: &Path) -> (Self, String) {
        let stderr = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .unwrap();
        let mut child = Command::new(BINARY)
            .args(["serve", "--config"])
            .arg(file)
            .env(STUB_API_KEY.0, STUB_API_KEY.1)
            .envs(config.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Self {
            child,
            stdout,
            log: log.to_owned(),
        };
        let url = within("the gateway to listen", process.listening()).await;
        (process, url)
    }

    async fn listening(&mut self) -> String {
        while let Some(line) = self.stdout.next_line().await.unwrap() {
            if let Some(url) = line.strip_prefix("listening ") {
                return Url::parse(url).unwrap().origin().ascii_serialization();
            }
        }
        panic!("the gateway ended before it listened");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.start_kill();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            eprintln!("--- stderr of the gateway ---\n{log}---");
        }
    }
}
