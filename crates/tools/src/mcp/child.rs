//! An MCP server as a child process: starts with a clean environment, logs stderr, and ends with all its
//! descendants.

use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

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

use super::super::{ANSWER_BYTES, McpServerSpec, McpTransport};
use super::message_limits::MessageLines;
use egress::redact::Redactor;

/// Maximum length of a logged stderr line.
const LINE_BYTES: usize = 1024;
/// Maximum number of logged lines per minute. Further lines are dropped.
const LINES: u32 = 60;

/// Standard output of a process, line by line.
type StdoutLines = StreamReader<FramedRead<ChildStdout, MessageLines>, Bytes>;

/// A process in its own process group. Dropping it kills the group.
pub(super) struct Child {
    process: tokio::process::Child,
    group: Option<Pid>,
    stderr: Option<ChildStderr>,
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
            .env_clear()
            .envs(env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let id = process.id().and_then(|id| i32::try_from(id).ok());
        Ok(Self {
            group: id.and_then(Pid::from_raw),
            stderr: process.stderr.take(),
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
        let lines = MessageLines::new(server.into(), Arc::clone(noise), 2 * ANSWER_BYTES);
        let said = FramedRead::new(stdout, lines);
        let transport = AsyncRwTransport::new_client(StreamReader::new(said), stdin);
        Some(transport.with_max_line_length(2 * ANSWER_BYTES))
    }

    /// Logs standard error until the process exits. Returns how it exited.
    pub(super) async fn run(&mut self, server: &str, redactor: &Redactor) -> String {
        let hearing = async {
            if let Some(stderr) = self.stderr.take() {
                log_lines(stderr, |line| {
                    let line = redactor.redact(line);
                    tracing::info!(mcp.server = server, "MCP server stderr: {line}");
                })
                .await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = self.process.wait() => match ended {
                Ok(status) => format!("its process ended: {status}"),
                Err(error) => format!("its process cannot be waited for: {error}"),
            },
            () = hearing => String::new(),
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

/// Passes lines to `tell`, limited in length and rate.
async fn log_lines(mut stream: impl AsyncRead + Unpin, tell: impl Fn(&str)) {
    let (mut line, mut buffer) = (Vec::new(), [0; 4096]);
    let (mut since, mut told) = (Instant::now(), 0);
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        for &byte in &buffer[..read] {
            if byte != b'\n' {
                if line.len() < LINE_BYTES {
                    line.push(byte);
                }
                continue;
            }
            if since.elapsed().as_secs() >= 60 {
                (since, told) = (Instant::now(), 0);
            }
            told += 1;
            let text = String::from_utf8_lossy(&line);
            let text = text.trim();
            if told <= LINES && !text.is_empty() {
                tell(text);
            }
            line.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn limits_length_and_rate_of_stderr_lines() {
        let told = Mutex::new(Vec::new());
        let said = format!("\n{}\nb\n{}c", "a".repeat(5000), "x\n".repeat(500));
        log_lines(said.as_bytes(), |line| {
            told.lock().unwrap().push(line.to_owned());
        })
        .await;
        let told = told.into_inner().unwrap();
        assert_eq!(told[0].len(), LINE_BYTES);
        assert_eq!(told[1], "b");
        let most = usize::try_from(LINES).unwrap();
        assert_eq!(told.len(), most - 1, "the empty one counts, too");
    }
}
