//! A harness process: started below its supervisor, its standard error kept in a ring, stopped with all descendants.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinSet;

use crate::failure::{COMMAND_NOT_FOUND, EXITED, HarnessFailure};
use crate::own_process;
use crate::supervisor::{GRACE, NOT_FOUND};

/// Bytes of standard error that are kept: the last ones.
const RING_BYTES: usize = 64 * 1024;
/// The exit code of a command that exists and cannot be executed, as shells have it.
const NOT_EXECUTABLE: i32 = 126;
/// Lines of it that are told.
const LINES: usize = 20;
/// How long the supervisor may take beyond the grace that it gives the harness.
const SUPERVISOR_TIME: Duration = Duration::from_secs(5);

/// A command, as it is started. Secrets stand in `env` alone, never in `args`.
pub(crate) struct Launch {
    pub(crate) command: OsString,
    pub(crate) args: Vec<OsString>,
    /// Whether it starts in namespaces of its own.
    pub(crate) namespaces: bool,
    /// The whole environment.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) directory: PathBuf,
    /// How long each request of the start may take.
    pub(crate) start_time: Duration,
    /// The name that errors show.
    pub(crate) shown: String,
    /// Texts that errors and logs leave out.
    pub(crate) secrets: Vec<String>,
}

/// A running harness. Dropping it stops the supervisor, which stops the rest.
pub(crate) struct HarnessProcess {
    child: Child,
    /// Reads standard error until its end.
    reading: JoinSet<()>,
    stderr: Arc<Mutex<VecDeque<u8>>>,
    shown: String,
    secrets: Vec<String>,
}

impl HarnessProcess {
    /// Starts a command below the supervisor of this program.
    pub(crate) fn start(launch: Launch) -> Result<(Self, ChildStdin, ChildStdout), HarnessFailure> {
        let failed = |message: String| HarnessFailure::new(EXITED, message);
        let program = std::env::current_exe()
            .map_err(|error| failed(format!("the supervisor cannot be found: {error}")))?;
        let mut command = Command::new(program);
        command
            .args([own_process::NAME, "supervise"])
            .args(launch.namespaces.then_some("--namespaces"))
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
        let ring = Arc::<Mutex<VecDeque<u8>>>::default();
        let mut reading = JoinSet::new();
        reading.spawn(keep_last(stderr, Arc::clone(&ring)));
        let process = Self {
            child,
            reading,
            stderr: ring,
            shown: launch.shown,
            secrets: launch.secrets,
        };
        Ok((process, stdin, stdout))
    }

    /// The failure of a process whose output has ended. Waits for its exit status.
    pub(crate) async fn ended(&mut self) -> HarnessFailure {
        let status = tokio::time::timeout(GRACE + SUPERVISOR_TIME, self.child.wait()).await;
        let shown = &self.shown;
        match status {
            Ok(Ok(status)) if status.code() == Some(i32::from(NOT_FOUND)) => HarnessFailure::new(
                COMMAND_NOT_FOUND,
                format!(
                    "{shown} cannot be started: install it, or set `command` in the settings of the harness service"
                ),
            ),
            Ok(Ok(status)) if status.code() == Some(NOT_EXECUTABLE) => HarnessFailure::new(
                COMMAND_NOT_FOUND,
                format!(
                    "{shown} cannot be executed in the sandbox, which reads the system's directories and the command's own: name the others in `readable` of the service's settings, and let `user` read them"
                ),
            ),
            Ok(Ok(status)) => HarnessFailure::new(
                EXITED,
                format!("{shown} exited before it was done ({status})"),
            ),
            _ => HarnessFailure::new(
                EXITED,
                format!("{shown} closed its output before it was done"),
            ),
        }
    }

    /// Stops the harness and all its descendants: SIGTERM, and SIGKILL after [`GRACE`]. The last lines of standard error,
    /// at most [`LINES`], each of at most 1,000 characters, without secrets.
    pub(crate) async fn stop(mut self) -> Vec<String> {
        self.terminate();
        if tokio::time::timeout(GRACE + SUPERVISOR_TIME, self.child.wait())
            .await
            .is_err()
        {
            let _ = self.child.kill().await;
        }
        // The end of the process ends its standard error; only then is the last line there.
        let _ = tokio::time::timeout(SUPERVISOR_TIME, self.reading.join_next()).await;
        self.last_lines()
    }

    fn terminate(&self) {
        // `None` once it was waited for.
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = id.and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    fn last_lines(&self) -> Vec<String> {
        let mut ring = lock(&self.stderr);
        let text = String::from_utf8_lossy(ring.make_contiguous()).into_owned();
        let kept = text.lines().filter(|line| !line.trim().is_empty()).rev();
        let mut kept: Vec<String> = kept
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
        kept.reverse();
        kept
    }
}

impl Drop for HarnessProcess {
    fn drop(&mut self) {
        self.terminate();
    }
}

async fn keep_last(mut stderr: ChildStderr, ring: Arc<Mutex<VecDeque<u8>>>) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        let mut ring = lock(&ring);
        let over = (ring.len() + read).saturating_sub(RING_BYTES);
        ring.drain(..over);
        ring.extend(&buffer[..read]);
    }
}

// Bytes are whole after any panic.
fn lock(ring: &Mutex<VecDeque<u8>>) -> MutexGuard<'_, VecDeque<u8>> {
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}
