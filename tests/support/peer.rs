//! Python programs that read a JSON question from stdin and print a JSON answer.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Once;
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::{Mutex, OnceCell};
use uuid::Uuid;

use super::repository::repository_file;
use super::waiting::{skipped, within};

const LANGBOT: &str = "langbot-plugin==0.7.18";

/// The entities of LangBot's own SDK, called through the scripts of `tests/peer`.
pub struct LangbotPeer {
    environment: PathBuf,
}

static PEER: OnceCell<Option<PathBuf>> = OnceCell::const_new();
static NO_PEER: Once = Once::new();

impl LangbotPeer {
    /// Returns `None` if the SDK is not installed and cannot be installed.
    pub async fn find() -> Option<Self> {
        let environment = PEER.get_or_init(install).await.clone();
        if environment.is_none() {
            skipped(&NO_PEER, "langbot", "langbot-plugin could not be installed");
        }
        Some(Self {
            environment: environment?,
        })
    }

    /// Runs `tests/peer/langbot_peer.py` on `input` and returns its answer.
    pub async fn ask(&self, question: &str, input: &Value) -> Value {
        self.run("tests/peer/langbot_peer.py", question, input)
            .await
    }

    /// Runs a script of this repository on `input` and returns its answer.
    pub async fn run(&self, script: &str, question: &str, input: &Value) -> Value {
        let mut python = Command::new(self.environment.join("bin/python"));
        ask(python.arg(repository_file(script)).arg(question), input).await
    }
}

/// Writes JSON to the input of a program and returns the JSON of its output.
pub async fn ask(program: &mut Command, input: &Value) -> Value {
    let mut child = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.to_string().as_bytes()).await.unwrap();
    drop(stdin);
    let output = within("the peer to answer", child.wait_with_output()).await;
    let output = output.unwrap();
    assert!(
        output.status.success(),
        "the peer ended with {}",
        output.status
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

async fn install() -> Option<PathBuf> {
    environment(LANGBOT, &[LANGBOT]).await
}

static INSTALLING: Mutex<()> = Mutex::const_new(());

/// A virtual environment `name` with the pip packages `what`, installed once for all test runs. The first run
/// moves the finished environment into place.
pub async fn environment(name: &str, what: &[impl AsRef<OsStr>]) -> Option<PathBuf> {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let finished = cache.join(name);
    // Serialize installs of this process. Another test run may still install at the same time.
    let _turn = INSTALLING.lock().await;
    if finished.exists() {
        return Some(finished);
    }
    let unfinished = cache.join(format!("{name}-{}", Uuid::new_v4()));
    let mut venv = Command::new("python3");
    let mut pip = Command::new(unfinished.join("bin/pip"));
    let done = succeeds(venv.args(["-m", "venv"]).arg(&unfinished)).await
        && succeeds(pip.args(["install", "--quiet", "--no-compile"]).args(what)).await
        && (std::fs::rename(&unfinished, &finished).is_ok() || finished.exists());
    let _ = std::fs::remove_dir_all(&unfinished);
    done.then_some(finished)
}

async fn succeeds(command: &mut Command) -> bool {
    let status = command.stdin(Stdio::null()).kill_on_drop(true).status();
    let ended = tokio::time::timeout(Duration::from_mins(5), status).await;
    ended.is_ok_and(|status| status.is_ok_and(|status| status.success()))
}
