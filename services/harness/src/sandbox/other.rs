//! Systems without Landlock: nothing is confined, and `--require` refuses.

use std::ffi::OsString;
use std::process::ExitCode;

use super::{Account, Confinement, SandboxError, Support};

pub(super) fn support() -> Support {
    Support::default()
}

pub(super) fn confine(confinement: &Confinement) -> Result<Option<Account>, SandboxError> {
    account(confinement.user.as_deref())
}

pub(super) fn check(confinement: &Confinement) -> Result<(), SandboxError> {
    account(confinement.user.as_deref()).map(drop)
}

pub(super) fn has_namespaces() -> bool {
    false
}

pub(super) fn enter_namespaces() -> Result<(), SandboxError> {
    Err(SandboxError::Unsupported("namespaces (Linux)".to_owned()))
}

pub(super) fn enter_view(_: &Confinement) -> Result<(), SandboxError> {
    enter_namespaces()
}

pub(super) fn run_first(_: &Confinement, _: &[OsString]) -> Result<ExitCode, SandboxError> {
    Err(SandboxError::Unsupported("namespaces (Linux)".to_owned()))
}

pub(super) fn account(user: Option<&str>) -> Result<Option<Account>, SandboxError> {
    match user {
        Some(name) => Err(SandboxError::NotRoot(name.to_owned())),
        None => Ok(None),
    }
}
