//! A program that says on its first line where it listens.

use std::io;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::programs::{echo_runner, local_agent};
use super::runner::SECRET;
use super::within;

/// Killed on drop.
pub struct Listening {
    pub url: String,
    _child: Child,
    /// Kept open: a closed pipe would be an error for whoever prints into it.
    _stdout: Lines<BufReader<ChildStdout>>,
}

impl Listening {
    /// An error when there is no such program.
    pub async fn spawn(command: &mut Command) -> io::Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = within("a program to listen", stdout.next_line()).await;
        let line = line.unwrap().expect("it ended before it listened");
        Ok(Self {
            url: url_in(&line).to_owned(),
            _child: child,
            _stdout: stdout,
        })
    }
}

fn url_in(line: &str) -> &str {
    let mut words = line.split_whitespace();
    words.find(|word| word.starts_with("http://")).unwrap()
}

/// The runner of `examples/rust`.
pub async fn rust_echo() -> Listening {
    let mut command = Command::new(echo_runner());
    command.env("PORT", "0").env("RUNNER_SECRET", SECRET);
    Listening::spawn(&mut command).await.unwrap()
}

/// The Local Agent, which is asked under this secret.
pub async fn local_agent_under(secret: &str) -> Listening {
    let mut command = Command::new(local_agent());
    command
        .args(["--listen", "127.0.0.1:0"])
        .env("LOCAL_AGENT_SECRET", secret);
    Listening::spawn(&mut command).await.unwrap()
}
