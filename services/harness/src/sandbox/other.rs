//! Systems without Landlock: nothing is confined, and `--require` refuses.

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

pub(super) fn account(user: Option<&str>) -> Result<Option<Account>, SandboxError> {
    match user {
        Some(name) => Err(SandboxError::NotRoot(name.to_owned())),
        None => Ok(None),
    }
}
