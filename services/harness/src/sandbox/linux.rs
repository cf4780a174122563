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

/// Probes in a thread of its own, because Landlock and seccomp restrict the calling thread for good.
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

/// Confines the calling thread and what it executes. Leaves the change of the user to the caller's `exec`, which needs
/// the privileges of root for it.
pub(super) fn confine(confinement: &Confinement) -> Result<Option<Account>, SandboxError> {
    close_inherited_descriptors()?;
    umask(Mode::RWXG | Mode::RWXO);
    let account = privileges::account(confinement.user.as_deref())?;
    if confinement.is_open {
        limits::set(confinement.limits)?;
        return Ok(account);
    }
    let rules = rules::open(confinement)?;
    limits::set(confinement.limits)?;
    privileges::drop_capabilities(account)?;
    set_no_new_privs(true).map_err(|error| setup("no new privileges", error))?;
    rules.restrict()?;
    if let Err(error) = sockets::restrict()
        && confinement.is_required
    {
        return Err(setup("the filter of system calls", error));
    }
    Ok(account)
}

/// The part of [`confine`] that looks things up.
pub(super) fn check(confinement: &Confinement) -> Result<(), SandboxError> {
    privileges::account(confinement.user.as_deref())?;
    if !confinement.is_open {
        rules::open(confinement)?;
    }
    Ok(())
}

/// Closes all descriptors above standard error. Nothing in this process owns one: see `execute`.
fn close_inherited_descriptors() -> Result<(), SandboxError> {
    const PLACE: &str = "/proc/self/fd";
    let failed = |error| {
        setup(
            "the descriptors: cannot list /proc/self/fd, mount /proc",
            error,
        )
    };
    // The listing's own descriptor is among them and closed before the loop.
    let open: Vec<RawFd> = fs::read_dir(PLACE)
        .map_err(failed)?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|descriptor| *descriptor > 2)
        .collect();
    for descriptor in open {
        match nix::unistd::close(descriptor) {
            // Linux releases the descriptor also when `close` is interrupted.
            Ok(()) | Err(Errno::EBADF | Errno::EINTR) => {}
            Err(error) => return Err(setup("the descriptors", error)),
        }
    }
    Ok(())
}

fn setup(
    step: &'static str,
    source: impl std::error::Error + Send + Sync + 'static,
) -> SandboxError {
    SandboxError::Setup {
        step,
        source: Box::new(source),
    }
}
