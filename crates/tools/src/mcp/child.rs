//! An MCP server as a child process: starts with a clean environment, logs stderr, and ends with all its
//! descendants.

use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use rmcp::service::RoleClient;
use rmcp::transport::async_rw::AsyncRwTransport;
use rustix::process::{Pid, Signal, kill_process_group};
use secrecy::ExposeSecret as _;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::Instant;
use tokio_util::codec::FramedRead;
use tokio_util::io::StreamReader;

use super::super::result_size::ANSWER_BYTES;
use super::super::{McpServerSpec, McpTransport};
use super::message_limits::MessageLines;

/// Maximum length of a logged stderr line.
const LINE_BYTES: usize = 1024;
/// Maximum number of logged lines per minute. Further lines are dropped.
const LINES: u32 = 60;
/// Time for a process that ended to deliver the rest of its standard error.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Standard output of a process, line by line.
type StdoutLines = StreamReader<FramedRead<ChildStdout, MessageLines>, Bytes>;

/// A process in its own process group. Dropping it kills the group.
pub(super) struct Child {
    process: tokio::process::Child,
    group: Option<Pid>,
    stderr: Option<StderrReader<ChildStderr>>,
}

impl Child {
    pub(super) fn spawn(spec: &McpServerSpec) -> io::Result<Self> {
        let McpTransport::Child {
            program,
            arguments,
            env,
        } = &spec.transport
        else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let env = env
            .iter()
            .map(|(name, value)| (name, value.expose_secret()));
        let mut process = Command::new(program)
            .args(arguments)
            // The gateway's environment holds its secrets.
            .env_clear()
            .envs(env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Descendants share the group, so a kill reaches them, too.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let id = process.id().and_then(|id| i32::try_from(id).ok());
        Ok(Self {
            group: id.and_then(Pid::from_raw),
            stderr: process.stderr.take().map(StderrReader::new),
            process,
        })
    }

    /// Transport over standard input and output. `None` on the second call.
    pub(super) fn transport(
        &mut self,
        server: &str,
        noise: &Arc<AtomicU64>,
    ) -> Option<AsyncRwTransport<RoleClient, StdoutLines, ChildStdin>> {
        let (stdout, stdin) = (self.process.stdout.take()?, self.process.stdin.take()?);
        // Twice the response limit: escapes can double the size of a JSON text.
        let lines = MessageLines::new(server.into(), Arc::clone(noise), 2 * ANSWER_BYTES);
        let frames = FramedRead::new(stdout, lines);
        let transport = AsyncRwTransport::new_client(StreamReader::new(frames), stdin);
        Some(transport.with_max_line_length(2 * ANSWER_BYTES))
    }

    /// Passes lines of standard error to `log` until the process exits. Returns how it exited.
    pub(super) async fn run(&mut self, log: impl Fn(&str)) -> String {
        let Self {
            process, stderr, ..
        } = self;
        let hearing = async {
            if let Some(stderr) = stderr {
                stderr.read(log).await;
            }
            // The end of standard error is no exit: a process may close it early.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = process.wait() => match ended {
                Ok(status) => format!("its process ended: {status}"),
                Err(error) => format!("its process cannot be waited for: {error}"),
            },
            () = hearing => String::new(),
        }
    }

    /// Adds what the process wrote on standard error to the reason of its end.
    pub(super) async fn with_last_words(&mut self, why: String, log: impl Fn(&str)) -> String {
        let Some(stderr) = &mut self.stderr else {
            return why;
        };
        // A descendant may keep the stream open.
        let _ = tokio::time::timeout(LAST_WORDS, stderr.read(log)).await;
        match stderr.summary() {
            Some(words) => format!("{why}; standard error: {words}"),
            None => why,
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // Fails if the group is gone already.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Reads lines, limited in length and rate. Reading may be cancelled and continued.
struct StderrReader<S> {
    stream: S,
    line: Vec<u8>,
    since: Instant,
    logged: u32,
    /// The first two lines, where most programs name the error.
    first: Vec<String>,
    last: Option<String>,
}

impl<S: AsyncRead + Unpin> StderrReader<S> {
    fn new(stream: S) -> Self {
        Self {
            stream,
            line: Vec::new(),
            since: Instant::now(),
            logged: 0,
            first: Vec::new(),
            last: None,
        }
    }

    /// Passes lines to `tell` until the stream ends.
    async fn read(&mut self, tell: impl Fn(&str)) {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = self.stream.read(&mut buffer).await {
            for &byte in &buffer[..read] {
                if byte == b'\n' {
                    self.end_line(&tell);
                // Longer lines are cut, so that a line without an end costs no memory.
                } else if self.line.len() < LINE_BYTES {
                    self.line.push(byte);
                }
            }
        }
    }

    fn end_line(&mut self, tell: &impl Fn(&str)) {
        if self.since.elapsed().as_secs() >= 60 {
            (self.since, self.logged) = (Instant::now(), 0);
        }
        self.logged = self.logged.saturating_add(1);
        let text = String::from_utf8_lossy(&self.line).trim().to_owned();
        self.line.clear();
        if text.is_empty() {
            return;
        }
        if self.logged <= LINES {
            tell(&text);
        }
        if self.first.len() < 2 {
            self.first.push(text);
        } else {
            self.last = Some(text);
        }
    }

    /// The first two lines and the last one.
    fn summary(&self) -> Option<String> {
        let lines: Vec<_> = self.first.iter().chain(&self.last).cloned().collect();
        (!lines.is_empty()).then(|| lines.join(" … "))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn limits_length_and_rate_of_stderr_lines() {
        let lines = Mutex::new(Vec::new());
        let output = format!("\n{}\nb\n{}c", "a".repeat(5000), "x\n".repeat(500));
        let mut reader = StderrReader::new(output.as_bytes());
        reader
            .read(|line| lines.lock().unwrap().push(line.to_owned()))
            .await;
        let lines = lines.into_inner().unwrap();
        assert_eq!(lines[0].len(), LINE_BYTES);
        assert_eq!(lines[1], "b");
        let max_lines = usize::try_from(LINES).unwrap();
        assert_eq!(lines.len(), max_lines - 1, "the empty one counts, too");
        let summary = reader.summary().unwrap();
        assert!(summary.ends_with("a … b … x"), "{summary}");
    }
}
