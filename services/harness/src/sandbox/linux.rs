//! Confinement on Linux. The order matters: lookups that need files and sockets come before the rules that close them.

use std::fs;
use std::os::fd::RawFd;

use nix::errno::Errno;
use rustix::fs::Mode;
use rustix::process::umask;
use rustix::thread::set_no_new_privs;

use super::{Account, Confinement, SandboxError, Support};

mod init;
mod limits;
mod mount_table;
mod namespaces;
mod privileges;
mod processes;
mod rules;
mod sockets;
mod view;

pub(super) use init::run as run_first;
pub(super) use namespaces::{are_available as has_namespaces, enter as enter_namespaces};
pub(super) use privileges::account;
pub(super) use view::enter as enter_view;

/// Probes the kernel in a separate thread: Landlock and seccomp restrict the calling thread permanently.
pub(super) fn support() -> Support {
    let probe = || {
        let landlock = Support::of(rules::probe());
        let has_filters = sockets::restrict().is_ok();
        Support {
            network: landlock.network && has_filters,
            filters: has_filters,
            ..landlock
        }
    };
    let thread = std::thread::Builder::new().spawn(probe);
    let answer = thread.ok().and_then(|thread| thread.join().ok());
    answer.unwrap_or_default()
}

/// Confines the calling thread and the programs that it executes. The returned account is left to the caller's `exec`,
/// which still has the privileges to change to it.
pub(super) fn confine(confinement: &Confinement) -> Result<Option<Account>, SandboxError> {
    close_inherited_descriptors()?;
    umask(Mode::RWXG | Mode::RWXO);
    let account = privileges::account(confinement.user.as_deref())?;
    // `sandbox = "off"` keeps the user, limits, and closed descriptors.
    if confinement.is_open {
        limits::set(confinement.limits)?;
        return Ok(account);
    }
    // Paths are opened before the privileges to reach them are dropped.
    let rules = rules::open(confinement)?;
    limits::set(confinement.limits)?;
    privileges::drop_capabilities(account)?;
    // Landlock and seccomp require this flag of a thread without CAP_SYS_ADMIN.
    set_no_new_privs(true).map_err(|error| SandboxError::setup("no new privileges", error))?;
    rules.restrict()?;
    // Without `--require`, the run continues with the other protections.
    if let Err(error) = sockets::restrict()
        && confinement.is_required
    {
        return Err(SandboxError::setup("the filter of system calls", error));
    }
    Ok(account)
}

/// Checks user and paths of a confinement without applying it.
pub(super) fn check(confinement: &Confinement) -> Result<(), SandboxError> {
    privileges::account(confinement.user.as_deref())?;
    if !confinement.is_open {
        rules::open(confinement)?;
    }
    Ok(())
}

/// Closes all descriptors above 2: inherited ones could bypass the rules. This process owns none, see `execute`.
fn close_inherited_descriptors() -> Result<(), SandboxError> {
    const DESCRIPTORS_PATH: &str = "/proc/self/fd";
    let failed = |error| {
        SandboxError::setup(
            "the descriptors: cannot list /proc/self/fd, mount /proc",
            error,
        )
    };
    // The list includes the descriptor of the listing itself, which is closed before the loop (`EBADF`).
    let open: Vec<RawFd> = fs::read_dir(DESCRIPTORS_PATH)
        .map_err(failed)?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|descriptor| *descriptor > 2)
        .collect();
    for descriptor in open {
        match nix::unistd::close(descriptor) {
            // Linux releases the descriptor even if `close` is interrupted.
            Ok(()) | Err(Errno::EBADF | Errno::EINTR) => {}
            Err(error) => return Err(SandboxError::setup("the descriptors", error)),
        }
    }
    Ok(())
}
