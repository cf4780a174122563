//! A gateway process, a database of its own, a runner that misbehaves on demand and a client that can be cut.

pub mod bent;
pub mod client;
pub mod collector;
pub mod database;
pub mod deferred;
pub mod forger;
pub mod gateway;
pub mod half_sent;
pub mod held;
pub mod ledger;
pub mod listening;
pub mod nats;
pub mod node;
pub mod playground;
pub mod proxy;
pub mod python;
pub mod routes;
pub mod runner;
pub mod script;
pub mod slow;
pub mod stage;
pub mod stream;
pub mod talker;
pub mod terminal;
pub mod tool_server;
pub mod upstream;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Once;
use std::time::{Duration, UNIX_EPOCH};

use tokio::process::Command;
use uuid::Uuid;

pub use database::Engine::{self, Postgres, Sqlite};
pub use stage::Stage;

/// Far more than anything here takes: it only tells slow from never.
const PATIENCE: Duration = Duration::from_mins(1);

/// Waits for `future` and names what did not come.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(PATIENCE, future).await;
    waited.unwrap_or_else(|_| panic!("waited {PATIENCE:?} for {what}"))
}

/// Says once that tests are left out, unless `RUNNEL_TEST_REQUIRE` names what they need.
pub fn skipped(once: &Once, need: &str, why: &str) {
    let required = std::env::var("RUNNEL_TEST_REQUIRE").unwrap_or_default();
    assert!(
        !required.contains(need),
        "RUNNEL_TEST_REQUIRE names {need}, but {why}"
    );
    // Not by `eprintln`, which is shown for failed tests only.
    once.call_once(|| {
        let _ = writeln!(std::io::stderr(), "SKIPPED {need}: {why}");
    });
}

/// Two small digits a byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

/// How much a test does: what the variable says, which is one test's own, or `default`, which is short.
pub fn number(variable: &str, default: usize) -> usize {
    given(variable).map_or(default, |text| text.parse().unwrap())
}

/// Where a test begins that does only some of what it could: another place each time, and the same
/// again for the number that `RUNNEL_TEST_SEED` gives and a failed test has printed.
pub fn seed() -> u64 {
    let now = || {
        let time = UNIX_EPOCH.elapsed().unwrap();
        u64::try_from(time.as_micros()).unwrap()
    };
    let seed = given("RUNNEL_TEST_SEED").map_or_else(now, |text| text.parse().unwrap());
    eprintln!("RUNNEL_TEST_SEED={seed}");
    seed
}

fn given(variable: &str) -> Option<String> {
    std::env::var(variable).ok()
}

/// Returns once `holds`; looks again and again, with a breath in between.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    within(what, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// What a command printed, once it has ended.
#[derive(Debug)]
pub struct Printed {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

pub async fn run(command: &mut Command) -> Printed {
    let output = command.kill_on_drop(true).output();
    let output = within("a command to end", output).await.unwrap();
    Printed {
        status: output.status,
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Removed with everything in it on drop.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new() -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("e2e-{}", Uuid::new_v4()));
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

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The directory of a skill of the fixtures.
pub fn skill(name: &str) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    format!("{root}/../../tests/fixtures/skills/{name}")
}
