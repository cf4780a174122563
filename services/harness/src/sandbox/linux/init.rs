//! First process of a process namespace: starts the command in its view of the file system. Its end ends all others.

use std::process::{Command, ExitCode};

use rustix::process::{Signal, WaitOptions, WaitStatus, set_parent_process_death_signal, wait};

use super::view;
use crate::own_process;
use crate::sandbox::{Confinement, SandboxError, Stage};

/// Path of this program. It works in a view that does not contain the file, too.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Runs the command confined. Returns its exit code, or 128 plus the signal that ended it. The kernel then kills all
/// processes of the namespace.
pub(in crate::sandbox) fn run(
    confinement: &Confinement,
    command: &[std::ffi::OsString],
) -> Result<ExitCode, SandboxError> {
    // Safe here: the main thread of the supervisor is the parent and lives as long as its process.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| SandboxError::setup("the end with the supervisor", error))?;
    view::enter(confinement)?;
    let mut line = Command::new(OWN_PROGRAM);
    line.arg(own_process::NAME)
        .args(confinement.stage(Stage::Sandbox, command));
    let child = line.spawn().map_err(|source| SandboxError::Execute {
        command: OWN_PROGRAM.to_owned(),
        source,
    })?;
    let child = i32::try_from(child.id()).ok();
    loop {
        // The first process inherits all orphans of the namespace and has to reap them.
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if Some(pid.as_raw_pid()) == child => {
                return Ok(code_of(status));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(SandboxError::setup("the wait for the command", error)),
        }
    }
}

fn code_of(status: WaitStatus) -> ExitCode {
    let signal = status.terminating_signal().map(|signal| 128 + signal);
    let code = status.exit_status().or(signal);
    let code = code.and_then(|code| u8::try_from(code).ok());
    ExitCode::from(code.unwrap_or(1))
}
