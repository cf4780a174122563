//! Harness process: started by its supervisor, stopped with all descendants. The end of its standard error is buffered.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_core::RunFailure;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinSet;

use crate::failure::{COMMAND_NOT_FOUND, EXITED};
use crate::own_process;
use crate::supervisor::{GRACE, NOT_FOUND};

/// Maximum buffered bytes of standard error; the oldest are dropped.
const MAX_STDERR_BYTES: usize = 64 * 1024;
/// Exit code of a command that exists and cannot be executed, as shells report it.
const NOT_EXECUTABLE: i32 = 126;
/// Maximum lines of standard error in logs and failures.
const LINES: usize = 20;
/// Time for the supervisor in addition to the grace period of the harness.
const SUPERVISOR_TIME: Duration = Duration::from_secs(5);

/// Command line and environment of a process. Secrets belong in `env`: other users can read `args`.
pub(crate) struct Launch {
    pub(crate) command: OsString,
    pub(crate) args: Vec<OsString>,
    /// Start in new namespaces.
    pub(crate) namespaces: bool,
    /// Complete environment: nothing is inherited.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) directory: PathBuf,
    /// Timeout of each request before the first turn.
    pub(crate) start_time: Duration,
    /// Command name for error messages.
    pub(crate) shown: String,
    /// Texts that errors and logs redact.
    pub(crate) secrets: Vec<String>,
}

/// Running harness. Dropping it stops the supervisor, which ends all descendants.
pub(crate) struct HarnessProcess {
    child: Child,
    /// Task that reads standard error until its end.
    reading: JoinSet<()>,
    stderr: Arc<Mutex<VecDeque<u8>>>,
    shown: String,
    secrets: Vec<String>,
}

impl HarnessProcess {
    /// Starts a command under the supervisor of this program.
    pub(crate) fn start(launch: Launch) -> Result<(Self, ChildStdin, ChildStdout), RunFailure> {
        let failed = |message: String| RunFailure::new(EXITED, message);
        let program = std::env::current_exe()
            .map_err(|error| failed(format!("the supervisor cannot be found: {error}")))?;
        let mut command = Command::new(program);
        command
            .args([own_process::NAME, "supervise"])
            .args(launch.namespaces.then_some("--namespaces"))
            // The supervisor compares it with its parent: this process may end before it starts.
            .args(["--parent", &std::process::id().to_string(), "--"])
            .arg(&launch.command)
            .args(&launch.args)
            .env_clear()
            .envs(launch.env)
            .current_dir(&launch.directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| failed(format!("the supervisor cannot be started: {error}")))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(failed("the harness has no standard streams".to_owned()));
        };
        let buffer = Arc::<Mutex<VecDeque<u8>>>::default();
        let mut reading = JoinSet::new();
        // Always drain standard error: a full pipe would block the harness.
        reading.spawn(keep_last(stderr, Arc::clone(&buffer)));
        let process = Self {
            child,
            reading,
            stderr: buffer,
            shown: launch.shown,
            secrets: launch.secrets,
        };
        Ok((process, stdin, stdout))
    }

    /// Failure of a process whose output has ended. Waits for its exit status.
    pub(crate) async fn ended(&mut self) -> RunFailure {
        // A process may close its output and live on; do not wait for it without a limit.
        let status = tokio::time::timeout(GRACE + SUPERVISOR_TIME, self.child.wait()).await;
        let shown = &self.shown;
        match status {
            Ok(Ok(status)) if status.code() == Some(i32::from(NOT_FOUND)) => RunFailure::new(
                COMMAND_NOT_FOUND,
                format!(
                    "{shown} cannot be started: install it, or set `command` in the settings of the harness service"
                ),
            ),
            Ok(Ok(status)) if status.code() == Some(NOT_EXECUTABLE) => RunFailure::new(
                COMMAND_NOT_FOUND,
                format!(
                    "{shown} cannot be executed in the sandbox, which reads the system's directories and the command's own: name the others in `readable` of the service's settings, and let `user` read them"
                ),
            ),
            Ok(Ok(status)) => RunFailure::new(
                EXITED,
                format!("{shown} exited before it was done ({status})"),
            ),
            _ => RunFailure::new(
                EXITED,
                format!("{shown} closed its output before it was done"),
            ),
        }
    }

    /// Stops the harness and all its descendants: SIGTERM, and SIGKILL after [`GRACE`]. Returns at most [`LINES`] last
    /// lines of standard error, each of at most 1,000 characters, with secrets redacted.
    pub(crate) async fn stop(mut self) -> Vec<String> {
        self.terminate();
        if tokio::time::timeout(GRACE + SUPERVISOR_TIME, self.child.wait())
            .await
            .is_err()
        {
            // An error means that the process has already exited.
            let _ = self.child.kill().await;
        }
        // The end of the process closes its standard error; before that, the last line may be missing.
        let _ = tokio::time::timeout(SUPERVISOR_TIME, self.reading.join_next()).await;
        self.last_lines()
    }

    fn terminate(&self) {
        // `None` after the exit status was read: the id may belong to another process by then.
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = id.and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    fn last_lines(&self) -> Vec<String> {
        let mut buffer = lock(&self.stderr);
        // The buffer may start within a character.
        let text = String::from_utf8_lossy(buffer.make_contiguous()).into_owned();
        let lines = text.lines().filter(|line| !line.trim().is_empty()).rev();
        let mut lines: Vec<String> = lines
            .take(LINES)
            .map(|line| {
                line.chars()
                    .filter(|char| !char.is_control())
                    .take(1_000)
                    .collect()
            })
            .map(|line: String| {
                self.secrets
                    .iter()
                    .fold(line, |line, secret| line.replace(secret, "[redacted]"))
            })
            .collect();
        lines.reverse();
        lines
    }
}

impl Drop for HarnessProcess {
    fn drop(&mut self) {
        self.terminate();
    }
}

async fn keep_last(mut stderr: ChildStderr, buffer: Arc<Mutex<VecDeque<u8>>>) {
    let mut chunk = [0; 4096];
    while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
        let mut buffer = lock(&buffer);
        let over = (buffer.len() + read).saturating_sub(MAX_STDERR_BYTES);
        buffer.drain(..over);
        buffer.extend(&chunk[..read]);
    }
}

// A panic cannot leave the bytes inconsistent, so a poisoned lock is usable.
fn lock(buffer: &Mutex<VecDeque<u8>>) -> MutexGuard<'_, VecDeque<u8>> {
    buffer.lock().unwrap_or_else(PoisonError::into_inner)
}
