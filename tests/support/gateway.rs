//! The real binary as a child process: start, kill, stop, restart at the same address.

use std::fmt::Write;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use url::Url;
use uuid::Uuid;

use super::client::Client;
use super::database::{Database, Engine};
use super::programs::runnel;
use super::runner::{RUNNER_ID, SECRET, StubRunner};
use super::template::{Keys, Template, create_key, master_key};
use super::{CommandOutput, TempDirectory, run, within};

/// A secret in the environment of every gateway, referenced as `env:STUB_API_KEY`.
pub const STUB_API_KEY: (&str, &str) = ("STUB_API_KEY", "opens-sesame");
/// Secret of stub runners in the environment of every gateway, for additional endpoints.
pub const STUB_SECRET: (&str, &str) = ("STUB_SECRET", SECRET);

/// Gateway configuration. Sections are TOML as in `runnel.toml`.
pub struct Config {
    pub server: String,
    pub egress: String,
    pub bus: String,
    pub ledger: String,
    pub limits: String,
    pub runs: String,
    pub artifacts: String,
    pub endpoint: String,
    pub agents: Vec<Agent>,
    /// Tables after all other sections: models, tools, more endpoints.
    pub rest: String,
    /// Rewrites the database URL, for example to a proxy.
    pub database_at: Option<UrlRewrite>,
    /// Start with an empty database and a new master key.
    pub has_fresh_database: bool,
    /// Environment variables of the gateway process.
    pub environment: Vec<(&'static str, String)>,
    pub runner_url: String,
    /// Artifact directory of all replicas, used unless `artifacts` names another.
    pub artifact_directory: PathBuf,
}

pub type UrlRewrite = Box<dyn Fn(&str) -> String + Send + Sync>;

pub struct Agent {
    pub name: &'static str,
    pub event_types: &'static str,
    pub timeout_seconds: f64,
    pub concurrency: &'static str,
    pub retries: u32,
    /// Members of `limits`.
    pub limits: &'static str,
    /// Further members of `retry`.
    pub restarts: &'static str,
    pub runner_id: &'static str,
    pub resources: &'static str,
    pub interactions: bool,
    /// Platform actions with their approval, in TOML.
    pub platform_actions: &'static str,
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
            limits: "",
            restarts: "",
            runner_id: RUNNER_ID,
            resources: r#"history = ["page"]"#,
            interactions: false,
            platform_actions: "",
            state_scopes: r#""conversation", "actor""#,
        }
    }
}

impl Agent {
    fn toml(&self) -> String {
        // An empty table is refused.
        let limits = if self.limits.is_empty() {
            String::new()
        } else {
            format!("limits = {{ {} }}\n", self.limits)
        };
        format!(
            "name = \"{}\"\nevent_types = [\"{}\"]\nconcurrency = \"{}\"\n\
             scope = {{ kind = \"global\" }}\nrunner_id = \"{}\"\n\
             config = {{ timeout = {:?} }}\nretry = {{ max = {}{} }}\n\
             resource_policy = {{ {} }}\n\
             delivery_policy = {{ interactions = {}, platform_actions = {{ {} }} }}\n\
             state_policy = {{ enabled = true, scopes = [{}] }}\n{limits}",
            self.name,
            self.event_types,
            self.concurrency,
            self.runner_id,
            self.timeout_seconds,
            self.retries,
            self.restarts,
            self.resources,
            self.interactions,
            self.platform_actions,
            self.state_scopes,
        )
    }

    /// The agent as the body of `POST /v1/agents`.
    pub fn spec(&self) -> Value {
        toml::from_str(&self.toml()).unwrap()
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
            artifacts: String::new(),
            endpoint: String::new(),
            agents: vec![Agent::default()],
            rest: String::new(),
            database_at: None,
            has_fresh_database: false,
            environment: Vec::new(),
            runner_url: url.to_owned(),
            artifact_directory: PathBuf::new(),
        }
    }

    /// True if only agents differ from the default configuration, so that a shared gateway can serve it.
    pub fn is_default_except_agents(&self) -> bool {
        let default = Self::for_runner_at(&self.runner_url);
        let sections = |of: &Self| {
            [
                of.server.clone(),
                of.egress.clone(),
                of.bus.clone(),
                of.ledger.clone(),
                of.limits.clone(),
                of.runs.clone(),
                of.artifacts.clone(),
                of.endpoint.clone(),
                of.rest.clone(),
            ]
        };
        sections(self) == sections(&default)
            && self.database_at.is_none()
            && !self.has_fresh_database
            && self.environment.is_empty()
    }

    /// Sets the URL of the runner, for example that of a proxy in front of it.
    pub fn set_runner_url(&mut self, url: &str) {
        url.clone_into(&mut self.runner_url);
    }

    /// Reaches the database through the proxy at this address.
    pub fn use_database_proxy(&mut self, proxy: std::net::SocketAddr) {
        self.database_at = Some(Box::new(move |url| {
            let mut url = Url::parse(url).unwrap();
            url.set_ip_host(proxy.ip()).unwrap();
            url.set_port(Some(proxy.port())).unwrap();
            // The proxy parses the traffic, so disable TLS.
            url.set_query(Some("sslmode=disable"));
            url.into()
        }));
    }

    fn database_url(&self, database: &Database) -> String {
        let url = database.url();
        match &self.database_at {
            Some(rewrite) => rewrite(&url),
            None => url,
        }
    }

    /// Writes `runnel.toml` and the secrets that it references into `directory`.
    pub fn write(&self, listen: &str, database: &Database, directory: &TempDirectory) -> PathBuf {
        let mut text = format!(
            "[server]\nlisten = \"{listen}\"\n{server}\n\
             [auth]\nmaster_key = \"file:{key}\"\n\
             [database]\nurl = \"{database}\"\n\
             [bus]\n{bus}\n\
             [ledger]\n{ledger}\n\
             [egress]\n{egress}\n\
             [limits]\n{limits}\n\
             [runs]\n{breaker}{runs}\n\
             [artifacts]\n{place}{artifacts}\n\
             [[runner_endpoints]]\nname = \"stub\"\nbase_url = \"{runner}\"\n\
             secret = \"file:{secret}\"\n{endpoint}\n",
            server = self.server,
            egress = self.egress,
            bus = bus_section(&self.bus),
            ledger = self.ledger,
            key = directory.file("master.key").display(),
            database = self.database_url(database),
            limits = self.limits,
            // Tests may fail an endpoint any number of times, so switch the circuit breaker off by default.
            breaker = if self.runs.contains("breaker_failures") {
                ""
            } else {
                "breaker_failures = 0\n"
            },
            runs = self.runs,
            place = if self.artifacts.contains("url = ") {
                String::new()
            } else {
                format!("url = \"file://{}\"\n", self.artifact_directory.display())
            },
            artifacts = self.artifacts,
            runner = self.runner_url,
            secret = directory.file("endpoint.secret").display(),
            endpoint = self.endpoint,
        );
        for agent in &self.agents {
            write!(text, "[[agents]]\n{}", agent.toml()).unwrap();
        }
        text.push_str(&self.rest);
        directory.write("runnel.toml", &text)
    }
}

/// The `bus` section of the test. Without a `kind`, `RUNNEL_TEST_BUS` sets it; `none` runs the complete suite
/// without notifications.
fn bus_section(of_test: &str) -> String {
    match std::env::var("RUNNEL_TEST_BUS") {
        Ok(kind) if !of_test.contains("kind = ") => format!("kind = \"{kind}\"\n{of_test}"),
        _ => of_test.to_owned(),
    }
}

/// Fields drop in this order: the process before the database and its open files.
pub struct GatewayProcess {
    process: Process,
    pub url: String,
    keys: Keys,
    config: Config,
    database: Database,
    directory: TempDirectory,
}

impl GatewayProcess {
    /// Returns `None` if the engine is not available.
    pub async fn start(engine: Engine, mut config: Config) -> Option<Self> {
        let directory = TempDirectory::new();
        config.artifact_directory = directory.file("artifacts");
        directory.write("endpoint.secret", SECRET);
        let (database, keys, file) = if config.has_fresh_database {
            let database = Database::create(engine, &directory).await?;
            let master = master_key();
            directory.write("master.key", &master);
            let file = config.write(&unused_loopback_address(), &database, &directory);
            let keys = Keys::create(master, &file, &config.environment).await;
            (database, keys, file)
        } else {
            let template = Template::of(engine).await?;
            let database = template.copy(&directory).await;
            directory.write("master.key", &template.keys.master);
            let file = config.write(&unused_loopback_address(), &database, &directory);
            (database, template.keys.clone(), file)
        };
        let log = directory.file("stderr.log");
        let (process, url) = Process::spawn_under(&[], &config.environment, &file, &log).await;
        Some(Self {
            process,
            url,
            keys,
            config,
            database,
            directory,
        })
    }

    pub fn client(&self) -> Client {
        Client::new(&self.url, &self.keys.client)
    }

    /// Client with a key of role `admin`.
    pub fn admin(&self) -> Client {
        Client::new(&self.url, &self.keys.admin)
    }

    /// Client with a key of role `owner`.
    pub fn owner(&self) -> Client {
        Client::new(&self.url, &self.keys.owner)
    }

    /// Runs a CLI command on the gateway's configuration while the gateway serves.
    pub async fn command(&self, arguments: &[&str]) -> CommandOutput {
        let mut command = Command::new(runnel());
        command
            .args(arguments)
            .arg("--config")
            .arg(self.directory.file("runnel.toml"))
            .env(STUB_API_KEY.0, STUB_API_KEY.1)
            .env(STUB_SECRET.0, STUB_SECRET.1)
            .envs(
                self.config
                    .environment
                    .iter()
                    .map(|(name, value)| (name, value)),
            );
        if arguments == ["serve"] {
            // Give the command another listen address, because the port is in use.
            command.env("RUNNEL__SERVER__LISTEN", unused_loopback_address());
        }
        run(&mut command).await
    }

    /// Replaces the master key file for processes that start later. Returns the old key.
    pub fn replace_master_key(&self, key: &str) -> String {
        let before = std::fs::read_to_string(self.directory.file("master.key")).unwrap();
        self.directory.write("master.key", key);
        before
    }

    /// The master key, which seals secrets in the database.
    pub fn master_key(&self) -> String {
        std::fs::read_to_string(self.directory.file("master.key")).unwrap()
    }

    /// The artifact directory of this gateway.
    pub fn artifact_directory(&self) -> &Path {
        &self.config.artifact_directory
    }

    /// The log of the gateway.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.file("stderr.log")).unwrap()
    }

    /// Peak resident memory of the process in KiB. `None` on systems without `/proc`.
    pub fn peak_memory(&self) -> Option<u64> {
        let pid = self.pid();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.split_whitespace().next()?.parse().ok()
    }

    /// The URL of the database itself, not of a proxy.
    pub fn database_url(&self) -> String {
        self.database.url()
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.process.child.id().expect("the gateway still runs")
    }

    /// Starts another replica on the same database, with the same configuration and its own address.
    pub async fn start_replica(&self) -> Replica {
        self.start_replica_with(&[]).await
    }

    /// Starts a replica with additional environment variables.
    pub async fn start_replica_with(&self, variables: &[(&str, &str)]) -> Replica {
        let directory = TempDirectory::new();
        for name in ["master.key", "endpoint.secret"] {
            directory.write(
                name,
                &std::fs::read_to_string(self.directory.file(name)).unwrap(),
            );
        }
        let file = self
            .config
            .write(&unused_loopback_address(), &self.database, &directory);
        let log = directory.file("stderr.log");
        let (process, url) =
            Process::spawn_under(variables, &self.config.environment, &file, &log).await;
        Replica {
            client: Client::new(&url, &self.keys.client),
            process,
            file,
            environment: self.config.environment.clone(),
            directory,
        }
    }

    /// Sends SIGKILL and waits for the exit.
    pub async fn kill(&mut self) {
        self.process.kill().await;
    }

    /// Sends SIGTERM and returns at once.
    pub async fn terminate(&self) {
        self.process.signal("TERM").await;
    }

    /// Sends SIGHUP and returns at once.
    pub async fn send_hangup(&self) {
        self.process.signal("HUP").await;
    }

    /// Sends SIGSTOP: the process freezes, and its peers get no notice.
    pub async fn pause(&self) {
        self.process.signal("STOP").await;
    }

    /// Sends SIGCONT.
    pub async fn unfreeze(&self) {
        self.process.signal("CONT").await;
    }

    pub async fn exited(&mut self) -> ExitStatus {
        self.process.exited().await
    }

    /// Sends SIGTERM and waits for the exit.
    pub async fn stop(&mut self) {
        self.terminate().await;
        let status = self.exited().await;
        assert!(status.success(), "a graceful stop ends with {status}");
    }

    /// Restarts with the same database, configuration and address. Kills the old process if it still runs.
    pub async fn restart(&mut self) {
        // Two processes cannot have one address.
        if self.process.child.try_wait().unwrap().is_none() {
            self.kill().await;
        }
        let listens = self.start_with_failpoints("").await;
        assert!(listens, "the gateway ended before it listened");
    }

    /// Like `restart`, with `failpoints` in `FAILPOINTS`. Returns false if the gateway exits before it
    /// listens.
    pub async fn start_with_failpoints(&mut self, failpoints: &str) -> bool {
        self.process = self.begin(failpoints);
        let listening = within("the gateway to listen", self.process.listening()).await;
        if let Some(url) = &listening {
            assert_eq!(*url, self.url);
        }
        listening.is_some()
    }

    /// Like `restart`, but kills the process after this time, whatever its state.
    pub async fn start_and_kill(&mut self, after: Duration) {
        self.process = self.begin("");
        // Not a wait for a condition: the test needs a kill at this moment.
        tokio::time::sleep(after).await;
        self.kill().await;
    }

    /// Changes the configuration for the next start.
    pub fn reconfigure(&mut self, change: impl FnOnce(&mut Config)) {
        change(&mut self.config);
    }

    fn begin(&self, failpoints: &str) -> Process {
        let listen = self.url.trim_start_matches("http://").to_owned();
        let file = self.config.write(&listen, &self.database, &self.directory);
        let log = self.directory.file("stderr.log");
        Process::begin(&self.config.environment, &file, &log, failpoints, &[])
    }
}

/// A second process on the database of a [`GatewayProcess`]. Drop it before the gateway.
pub struct Replica {
    pub client: Client,
    process: Process,
    file: PathBuf,
    environment: Vec<(&'static str, String)>,
    directory: TempDirectory,
}

impl Replica {
    /// Client with a new key of role `client`.
    pub async fn client(&self) -> Client {
        let key = create_key("client", &self.file, &self.environment).await;
        Client::new(&self.client.url, &key)
    }

    /// The log of the replica.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.file("stderr.log")).unwrap()
    }

    /// Sends SIGKILL and waits for the exit.
    pub async fn kill(&mut self) {
        self.process.kill().await;
    }

    /// Sends SIGTERM and waits for the exit.
    pub async fn stop(&mut self) {
        self.process.signal("TERM").await;
        let status = self.process.exited().await;
        assert!(status.success(), "a graceful stop ends with {status}");
    }

    /// Restarts at a new address and updates the client.
    pub async fn restart(&mut self) {
        let log = self.directory.file("stderr.log");
        let (process, url) = Process::spawn_under(&[], &self.environment, &self.file, &log).await;
        self.client = Client::new(&url, &self.client.key);
        self.process = process;
    }
}

/// A separate loopback address with a fixed port: no other process takes the port while the gateway is down.
pub fn unused_loopback_address() -> String {
    let [a, b, ..] = *Uuid::new_v4().as_bytes();
    if cfg!(target_os = "linux") {
        format!("127.{a}.{b}.1:0")
    } else {
        "127.0.0.1:0".to_owned()
    }
}

struct Process {
    child: Child,
    /// Kept open: with a closed pipe, prints of the gateway would fail.
    stdout: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
}

impl Process {
    /// Waits until the gateway accepts connections, and returns its URL.
    async fn spawn_under(
        variables: &[(&str, &str)],
        environment: &[(&'static str, String)],
        file: &Path,
        log: &Path,
    ) -> (Self, String) {
        let mut process = Self::begin(environment, file, log, "", variables);
        let url = within("the gateway to listen", process.listening()).await;
        (process, url.expect("the gateway ended before it listened"))
    }

    fn begin(
        environment: &[(&'static str, String)],
        file: &Path,
        log: &Path,
        failpoints: &str,
        variables: &[(&str, &str)],
    ) -> Self {
        let stderr = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .unwrap();
        let mut child = Command::new(runnel())
            .args(["serve", "--config"])
            .arg(file)
            .env(STUB_API_KEY.0, STUB_API_KEY.1)
            .env(STUB_SECRET.0, STUB_SECRET.1)
            .env("FAILPOINTS", failpoints)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            child,
            stdout,
            log: log.to_owned(),
        }
    }

    async fn kill(&mut self) {
        within("the killed gateway to be gone", self.child.kill())
            .await
            .unwrap();
    }

    async fn signal(&self, name: &str) {
        let pid = self.child.id().expect("the gateway still runs").to_string();
        let sent = Command::new("kill")
            .args([format!("-{name}"), pid])
            .status()
            .await
            .unwrap();
        assert!(sent.success(), "kill -{name}");
    }

    async fn exited(&mut self) -> ExitStatus {
        within("the gateway to exit", self.child.wait())
            .await
            .unwrap()
    }

    /// Returns `None` if the gateway exits before it listens.
    async fn listening(&mut self) -> Option<String> {
        while let Some(line) = self.stdout.next_line().await.unwrap() {
            if let Some(url) = line.strip_prefix("listening ") {
                return Some(Url::parse(url).unwrap().origin().ascii_serialization());
            }
        }
        None
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
