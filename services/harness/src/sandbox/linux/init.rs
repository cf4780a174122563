//! The first process of a process namespace: starts the command in the view, and ends all others with itself.

use std::process::{Command, ExitCode};

use rustix::process::{Signal, WaitOptions, WaitStatus, set_parent_process_death_signal, wait};

use super::{setup, view};
use crate::own_process;
use crate::sandbox::{Confinement, SandboxError, Stage};

/// This program, also in a view that does not show its file.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Runs the command confined. The exit code is the command's, or 128 and the signal that ended it. The kernel kills all
/// processes of the namespace then.
pub(in crate::sandbox) fn run(
    confinement: &Confinement,
    command: &[std::ffi::OsString],
) -> Result<ExitCode, SandboxError> {
    // The main thread of the supervisor started this process, and ends with it.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| setup("the end with the supervisor", error))?;
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
        // Orphans of the namespace are children of this process.
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if Some(pid.as_raw_pid()) == child => {
                return Ok(code_of(status));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(setup("the wait for the command", error)),
        }
    }
}

fn code_of(status: WaitStatus) -> ExitCode {
    let signal = status.terminating_signal().map(|signal| 128 + signal);
    let code = status.exit_status().or(signal);
    let code = code.and_then(|code| u8::try_from(code).ok());
    ExitCode::from(code.unwrap_or(1))
}
