//! Supervisor of one harness: none of its processes outlives the run, however the run ends.
//!
//! The process `supervise -- COMMAND` starts the command in a process group of its own and stays its parent. It is the
//! subreaper of all descendants, so that a process that leaves the group, or whose parent exits, still ends with it. A
//! pidfd reports the end of the service. The parent-death signal of Linux would not do: the kernel sends it when the
//! thread that started the supervisor ends, and a thread pool ends its idle threads.
//!
//! With namespaces, the child is the first process of a process namespace. The kernel ends all others with it, also if
//! the supervisor is killed. A process that has entered a process namespace for its children cannot start threads.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, getppid, kill_process, pidfd_open,
    set_child_subreaper,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use crate::sandbox;

/// Grace period of a harness between SIGTERM and SIGKILL.
pub const GRACE: Duration = Duration::from_secs(5);
/// Maximum rounds of killing the remaining processes, and the pause between rounds.
const ROUNDS: usize = 100;
const PAUSE: Duration = Duration::from_millis(20);
/// Exit code of a command that cannot be started, as shells report it.
pub(crate) const NOT_FOUND: u8 = 127;

/// Arguments of the process `supervise`.
#[derive(Debug, clap::Args)]
pub struct SuperviseArgs {
    /// The process id of the parent that started the supervisor.
    #[arg(long)]
    parent: i32,
    /// Start the command in namespaces of its own.
    #[arg(long)]
    namespaces: bool,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs the command until it ends, SIGTERM arrives, or the parent dies; then kills all descendants. Returns the exit
/// code of the command, 128 plus the signal if it was killed, and 127 if it cannot be started.
pub fn execute(args: &SuperviseArgs) -> ExitCode {
    if args.namespaces
        && let Err(error) = sandbox::enter_namespaces()
    {
        report(&format!("{error:#}"));
        return ExitCode::from(sandbox::EXIT_CONFIGURATION);
    }
    // One thread: a multi-threaded runtime could not start in a process with namespaces.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(runtime) = runtime else {
        return ExitCode::FAILURE;
    };
    let code = runtime.block_on(supervise(args));
    ExitCode::from(code.unwrap_or(1))
}

async fn supervise(args: &SuperviseArgs) -> std::io::Result<u8> {
    // Handlers first: a signal must not kill the supervisor before it has stopped its child.
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    set_child_subreaper(Some(getpid()))?;
    let Some(parent) = getppid().filter(|parent| parent.as_raw_pid() == args.parent) else {
        return Ok(1);
    };
    let parent = pidfd_open(parent, PidfdFlags::empty())?;
    // The parent may have died before its descriptor was opened, so that its id names another process.
    if getppid().map(Pid::as_raw_pid) != Some(args.parent) {
        return Ok(1);
    }
    #[expect(
        deprecated,
        reason = "its replacement is unsafe; an owned descriptor fulfils the contract"
    )]
    let parent = AsyncFd::with_interest(parent, Interest::READABLE)?;
    let (command, rest) = args.command.split_first().expect("clap requires one");
    let child = Command::new(command).args(rest).process_group(0).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            report(&format!("cannot execute {}: {error}", command.display()));
            return Ok(NOT_FOUND);
        }
    };
    let status = tokio::select! {
        status = child.wait() => Some(status?),
        _ = terminated.recv() => None,
        _ = interrupted.recv() => None,
        _ = parent.readable() => None,
    };
    let status = if let Some(status) = status {
        status
    } else {
        each_descendant(Signal::TERM);
        if let Ok(status) = tokio::time::timeout(GRACE, child.wait()).await {
            status?
        } else {
            child.start_kill()?;
            child.wait().await?
        }
    };
    kill_rest().await;
    Ok(code_of(status))
}

#[expect(
    clippy::print_stderr,
    reason = "the service reads it as that of the harness"
)]
fn report(message: &str) {
    eprintln!("{message}");
}

fn code_of(status: ExitStatus) -> u8 {
    let code = status.code();
    let code = code.or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Kills all remaining descendants in rounds: a process may fork while the list is read.
async fn kill_rest() {
    for _ in 0..ROUNDS {
        // Reap first: zombies of the last round must not count as remaining.
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        if each_descendant(Signal::KILL) == 0 {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Sends a signal to each descendant and returns their number.
fn each_descendant(signal: Signal) -> usize {
    let all = descendants(getpid().as_raw_pid(), &parents());
    for pid in all.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        // An error means that the process has just ended.
        let _ = kill_process(pid, signal);
    }
    all.len()
}

/// Parent of each process, without zombies.
fn parents() -> HashMap<i32, i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, parent_in(&stat)?))
    })
    .collect()
}

/// Parses the parent from `/proc/PID/stat`; `None` for a zombie.
fn parent_in(stat: &str) -> Option<i32> {
    // The process name is in brackets and may contain brackets and spaces itself.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.next()?.parse().ok()
}

fn descendants(root: i32, parents: &HashMap<i32, i32>) -> Vec<i32> {
    let mut found = vec![root];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        found.extend(
            parents
                .iter()
                .filter(|(_, of)| **of == parent)
                .map(|(pid, _)| *pid),
        );
        at += 1;
    }
    found.split_off(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_parent_behind_any_name() {
        assert_eq!(parent_in("12 (a) b) S 7 12 12 0"), Some(7));
        assert_eq!(parent_in("12 (sh) Z 7 12 12 0"), None);
        assert_eq!(parent_in(""), None);
    }

    #[test]
    fn finds_descendants_of_descendants() {
        let parents = HashMap::from([(2, 1), (3, 2), (4, 3), (5, 9), (9, 0)]);
        let mut found = descendants(2, &parents);
        found.sort_unstable();
        assert_eq!(found, [3, 4]);
    }
}
