//! Test support: gateway process, database, stub and faulty runners, clients, proxies and fake services.

/// The value of an `Option`. Without one the test ends: its database, interpreter or server is not available.
macro_rules! or_skip {
    ($available:expr) => {{
        let Some(available) = $available else {
            return;
        };
        available
    }};
}

/// Checks that a text contains each of these parts. A failure shows the text.
macro_rules! assert_contains {
    ($text:expr, $($part:expr),+ $(,)?) => {{
        let text = &$text;
        $(assert!(text.contains($part), "{} is missing in {text}", stringify!($part));)+
    }};
}

/// Checks that a text contains none of these parts. A failure shows the text.
macro_rules! assert_lacks {
    ($text:expr, $($part:expr),+ $(,)?) => {{
        let text = &$text;
        $(assert!(!text.contains($part), "{} is in {text}", stringify!($part));)+
    }};
}

/// Checks members of a JSON object. A failure shows the object.
macro_rules! assert_members {
    ($found:expr, { $($name:literal: $value:expr),+ $(,)? }) => {{
        let found = &$found;
        $(assert_eq!(found[$name], serde_json::json!($value), "{} of {found}", $name);)+
    }};
}

/// Checks the start of a text. A failure shows the text.
macro_rules! assert_starts_with {
    ($text:expr, $start:expr $(,)?) => {{
        let text = &$text;
        assert!(text.starts_with($start), "{text}");
    }};
}

pub mod client;
pub mod collector;
pub mod connectors;
pub mod database;
pub mod deferred;
pub mod disk;
pub mod documents;
pub mod effect_server;
pub mod fake_platforms;
pub mod faketime;
pub mod faulty_runner;
pub mod forger;
pub mod gateway;
pub mod graphs;
pub mod harness;
pub mod harness_packages;
pub mod held;
pub mod langbot_database;
pub mod ledger;
pub mod listening;
pub mod nats;
pub mod node;
pub mod paused_request;
pub mod peer;
pub mod playground;
pub mod postgres_servers;
pub mod programs;
pub mod proxy;
pub mod python;
pub mod receiver;
pub mod repository;
pub mod rotel;
pub mod routes;
pub mod runner;
pub mod script;
pub mod shared;
pub mod slow;
pub mod stage;
pub mod stream;
pub mod talker;
pub mod template;
pub mod terminal;
pub mod tool_server;
pub mod twins;
pub mod upstream;
pub mod waiting;

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, UNIX_EPOCH};

use axum::Router;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::JoinSet;
use uuid::Uuid;

pub use database::Engine::{self, Postgres, Sqlite};
pub use stage::{OwnStage, Stage};
pub use waiting::{skipped, until, within};

/// Serves `router` on a free port of loopback. Returns its URL and its task, which ends on drop.
pub async fn serve(router: Router) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut server = JoinSet::new();
    server.spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, server)
}

/// Encodes bytes as lowercase hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

/// Size of a test: the value of the environment variable `variable`, or the short `default`.
pub fn number(variable: &str, default: usize) -> usize {
    given(variable).map_or(default, |text| text.parse().unwrap())
}

/// Random seed of a sampling test. It differs in each run and is printed. `RUNNEL_TEST_SEED` sets it to
/// reproduce a failure.
pub fn seed() -> u64 {
    let now = || {
        let time = UNIX_EPOCH.elapsed().unwrap();
        u64::try_from(time.as_micros()).unwrap()
    };
    let seed = given("RUNNEL_TEST_SEED").map_or_else(now, |text| text.parse().unwrap());
    eprintln!("RUNNEL_TEST_SEED={seed}");
    seed
}

/// Pseudo-random durations, reproducible by seed.
pub struct RandomDurations(pub u64);

impl RandomDurations {
    pub fn up_to(&mut self, longest: Duration) -> Duration {
        Duration::from_micros(self.next() % u64::try_from(longest.as_micros()).unwrap())
    }

    /// Splitmix64.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

fn given(variable: &str) -> Option<String> {
    std::env::var(variable).ok()
}

/// Exit status and output of a finished command.
#[derive(Debug)]
pub struct CommandOutput {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl CommandOutput {
    /// The output of a command that must end with this status.
    #[track_caller]
    pub fn exited(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self:?}");
        self
    }

    /// Its standard output, which must be a JSON document.
    #[track_caller]
    pub fn json(&self) -> Value {
        let parsed = serde_json::from_str(&self.stdout);
        parsed.unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

pub async fn run(command: &mut Command) -> CommandOutput {
    let output = command.kill_on_drop(true).output();
    let output = within("a command to end", output).await.unwrap();
    CommandOutput {
        status: output.status,
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Temporary directory, removed with its content on drop.
pub struct TempDirectory(PathBuf);

impl TempDirectory {
    pub fn new() -> Self {
        Self::within(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    /// Also reachable for servers, which run as another user.
    pub fn reachable() -> Self {
        Self::within(&std::env::temp_dir())
    }

    fn within(parent: &Path) -> Self {
        let path = parent.join(format!("e2e-{}", Uuid::new_v4()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.file(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for TempDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Directory of a skill fixture.
pub fn skill(name: &str) -> String {
    let directory = repository::repository_file("tests/fixtures/skills");
    directory.join(name).display().to_string()
}
