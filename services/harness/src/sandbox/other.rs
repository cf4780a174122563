//! Systems without Landlock: nothing is confined, and `--require` refuses.

use super::{Account, Confinement, SandboxError, Support};

pub(super) fn support() -> Support {
    Support::default()
}

pub(super) fn confine(confinement: &Confinement) -> Result<Option<Account>, SandboxError> {
    match &confinement.user {
        Some(name) => Err(SandboxError::NotRoot(name.clone())),
        None => Ok(None),
    }
}
