//! Namespaces of a harness: processes, System V objects and, without root, users. The first process adds a mount
//! namespace.

use std::fs;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, unshare};
use rustix::process::{getegid, geteuid, getpid};
use rustix::thread::{
    CapabilitySet, capabilities, configure_capability_in_ambient_set, set_capabilities,
};

use crate::own_process;
use crate::sandbox::SandboxError;

/// Moves this process into new namespaces; its next children are in the new process namespace. Call it before starting
/// threads: the kernel denies a user namespace to a process with several threads.
pub(in crate::sandbox) fn enter() -> Result<(), SandboxError> {
    let failed = |error: std::io::Error| SandboxError::setup("namespaces", error);
    let (user, group) = (geteuid(), getegid());
    let mut flags = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWIPC;
    // Other users may create namespaces only inside a user namespace of their own.
    if !user.is_root() {
        flags |= CloneFlags::CLONE_NEWUSER;
    }
    unshare(flags).map_err(|error| failed(error.into()))?;
    if !user.is_root() {
        let (user, group) = (user.as_raw(), group.as_raw());
        // The kernel requires this before an unprivileged process maps its group.
        fs::write("/proc/self/setgroups", "deny").map_err(failed)?;
        fs::write("/proc/self/uid_map", format!("{user} {user} 1")).map_err(failed)?;
        fs::write("/proc/self/gid_map", format!("{group} {group} 1")).map_err(failed)?;
        pass_mount_capability().map_err(|error| failed(error.into()))?;
    }
    Ok(())
}

/// Passes the mount capability to the next program: without root, `exec` drops all capabilities that are not ambient.
fn pass_mount_capability() -> rustix::io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable |= CapabilitySet::SYS_ADMIN;
    set_capabilities(None, sets)?;
    configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true)
}

/// Tests namespaces and view with short-lived processes of this program.
pub(in crate::sandbox) fn are_available() -> bool {
    let Ok(program) = std::env::current_exe() else {
        return false;
    };
    let parent = getpid().as_raw_pid().to_string();
    let supervise = [
        own_process::NAME,
        "supervise",
        "--namespaces",
        "--parent",
        &parent,
        "--",
    ];
    let status = Command::new(&program)
        .args(supervise)
        .arg(&program)
        .args([own_process::NAME, "try-view"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}
