//! A program that says on its first line where it listens.

use std::io;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

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
            url: line.strip_prefix("listening ").unwrap().to_owned(),
            _child: child,
            _stdout: stdout,
        })
    }
}
