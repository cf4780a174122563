//! `runnel dev` as a child process.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::json;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::client::Client;
use super::programs::runnel;
use super::{until, within};

pub struct Playground {
    pub url: String,
    pub key: String,
    /// Output at the start.
    pub greeting: String,
    log: PathBuf,
    child: Child,
    /// Kept open: with a closed pipe, prints of the program would fail.
    _stdout: Lines<BufReader<ChildStdout>>,
}

impl Playground {
    /// Returns once the greeting is printed. The log is written next to `data`. The scripted model answers.
    pub async fn start(data: &Path) -> Self {
        Self::start_with(data, &[], &[]).await
    }

    /// Adds a second agent that takes every message and runs on the echo runner.
    pub async fn start_echoing(data: &Path) -> Self {
        let playground = Self::start(data).await;
        let agent = json!({"name": "echo", "event_types": ["message.received"], "scope": {"kind": "workspace"},
            "runner_id": "plugin:runnel/echo/default", "resource_policy": {"history": ["page"]}});
        let made = playground.client().create("/v1/agents", &agent).await;
        assert_eq!(made.status, 201, "{}", made.body);
        playground
    }

    /// Runs in the parent directory of `data`, with these arguments and environment variables.
    pub async fn start_with(data: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(data.with_extension("log"))
            .unwrap();
        let mut command = Command::new(runnel());
        for name in [
            "OPENAI_API_KEY",
            "OPENAI_BASE_URL",
            "OPENAI_MODEL",
            "RUNNER_SECRET",
        ] {
            command.env_remove(name);
        }
        let mut child = command
            .args(["dev", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(data)
            .args(arguments)
            .envs(variables.iter().copied())
            .current_dir(data.parent().unwrap())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        let greeting = within("the playground to greet", read_greeting(&mut stdout)).await;
        let word = |start: &str| {
            let line = greeting.lines().find_map(|line| line.strip_prefix(start));
            line.unwrap()
                .split_whitespace()
                .next_back()
                .unwrap()
                .to_owned()
        };
        Self {
            url: word("runnel "),
            key: word("key "),
            greeting,
            log: data.with_extension("log"),
            child,
            _stdout: stdout,
        }
    }

    /// The suggested command of the greeting, byte for byte.
    pub fn try_command(&self) -> &str {
        let (_, command) = self.greeting.split_once("\ntry ").unwrap();
        command
    }

    pub fn client(&self) -> Client {
        Client::new(&self.url, &self.key)
    }

    /// Standard error so far, of earlier playgrounds with the same data as well.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for a line of standard error with this text, and returns it.
    pub async fn logged(&self, text: &str) -> String {
        let mut found = None;
        until(text, async || {
            let log = self.log();
            found = log
                .lines()
                .find(|line| line.contains(text))
                .map(str::to_owned);
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    /// The greeting line that starts with this word, without the word.
    pub fn line(&self, word: &str) -> Option<&str> {
        let mut lines = self.greeting.lines();
        let rest = lines.find_map(|line| line.strip_prefix(word));
        rest.map(str::trim_start)
    }

    /// Sends a signal, such as `HUP`, and returns at once.
    pub async fn signal(&self, name: &str) {
        let (name, pid) = (format!("-{name}"), self.child.id().unwrap().to_string());
        let sent = Command::new("kill").args([&name, &pid]).status().await;
        assert!(sent.unwrap().success(), "kill {name} {pid}");
    }

    /// Sends SIGTERM and waits for the exit.
    pub async fn stop(mut self) {
        self.signal("TERM").await;
        let status = within("the playground to exit", self.child.wait()).await;
        assert!(status.unwrap().success());
    }
}

/// Reads up to the end of the command after `try`: the first line without a final backslash.
async fn read_greeting(stdout: &mut Lines<BufReader<ChildStdout>>) -> String {
    let mut greeting = String::new();
    while let Some(line) = stdout.next_line().await.unwrap() {
        greeting.push_str(&line);
        greeting.push('\n');
        if greeting.contains("\ntry ") && !line.ends_with('\\') {
            return greeting;
        }
    }
    panic!("the playground ended in the middle of its greeting: {greeting}");
}
