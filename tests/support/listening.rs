//! A child process that prints its URL on its first line.

use std::io;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::programs::{echo_runner, local_agent};
use super::runner::SECRET;
use super::within;

/// Killed on drop.
pub struct ChildServer {
    pub url: String,
    /// Words after the URL on the first line.
    pub details: Vec<String>,
    child: Child,
    /// Kept open: with a closed pipe, prints of the program would fail.
    _stdout: Lines<BufReader<ChildStdout>>,
}

impl ChildServer {
    /// Fails if the program does not exist.
    pub async fn spawn(command: &mut Command) -> io::Result<Self> {
        within("a program to listen", Self::spawn_slow(command)).await
    }

    /// Like `spawn`, for programs that take minutes to start.
    pub async fn spawn_slow(command: &mut Command) -> io::Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = stdout.next_line().await;
        let line = line.unwrap().expect("it ended before it listened");
        let mut words = line.split_whitespace().map(str::to_owned);
        let url = words.find(|word| word.starts_with("http://"));
        Ok(Self {
            url: url.expect("the line names a URL"),
            details: words.collect(),
            child,
            _stdout: stdout,
        })
    }
}

impl ChildServer {
    /// Kills the program and waits for the exit.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }
}

/// The runner of `examples/rust`.
pub async fn rust_echo() -> ChildServer {
    let mut command = Command::new(echo_runner());
    command.env("PORT", "0").env("RUNNER_SECRET", SECRET);
    ChildServer::spawn(&mut command).await.unwrap()
}

/// The Local Agent, with this runner secret.
pub async fn local_agent_under(secret: &str) -> ChildServer {
    let mut command = Command::new(local_agent());
    command
        .args(["--listen", "127.0.0.1:0"])
        .env("LOCAL_AGENT_SECRET", secret);
    ChildServer::spawn(&mut command).await.unwrap()
}
