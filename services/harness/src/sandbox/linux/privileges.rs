//! User and capabilities of the command.

use nix::unistd::User;
use rustix::process::{getegid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities,
};

use crate::sandbox::{Account, SandboxError};

/// Account to change to; `None` for this process's own user.
pub(in crate::sandbox) fn account(user: Option<&str>) -> Result<Option<Account>, SandboxError> {
    let Some(name) = user else {
        return Ok(None);
    };
    let found = User::from_name(name).map_err(|error| SandboxError::UserLookup {
        name: name.to_owned(),
        source: error.into(),
    })?;
    let found = found.ok_or_else(|| SandboxError::UnknownUser(name.to_owned()))?;
    let account = Account {
        user: found.uid.as_raw(),
        group: found.gid.as_raw(),
    };
    let own = Account {
        user: geteuid().as_raw(),
        group: getegid().as_raw(),
    };
    validate_account(name, account, own)
}

fn validate_account(
    name: &str,
    account: Account,
    own: Account,
) -> Result<Option<Account>, SandboxError> {
    let name = || name.to_owned();
    // Root could undo the sandbox; its group owns files of the system.
    if account.user == 0 || account.group == 0 {
        return Err(SandboxError::RootUser(name()));
    }
    if own.user == 0 {
        return Ok(Some(account));
    }
    if own.user == account.user {
        return Ok(None);
    }
    Err(SandboxError::NotRoot(name()))
}

/// Drops all capabilities. `no_new_privs` keeps root from regaining them by `exec`.
pub(super) fn drop_capabilities(account: Option<Account>) -> Result<(), SandboxError> {
    let failed = |error| SandboxError::setup("capabilities", error);
    clear_ambient_capability_set().map_err(failed)?;
    let base = match account {
        // The change of the user needs its capabilities and drops them itself.
        Some(_) => capabilities(None).map_err(failed)?,
        None => CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        },
    };
    let sets = CapabilitySets {
        inheritable: CapabilitySet::empty(),
        ..base
    };
    set_capabilities(None, sets).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn of(user: u32, group: u32) -> Account {
        Account { user, group }
    }

    const ROOT: Account = of(0, 0);
    const AGENT: Account = of(1000, 1000);

    #[test]
    fn only_root_changes_the_user() {
        assert_eq!(validate_account("a", AGENT, ROOT).unwrap(), Some(AGENT));
        assert_eq!(validate_account("a", AGENT, AGENT).unwrap(), None);
        let refused = validate_account("a", AGENT, of(1001, 1001)).unwrap_err();
        assert!(matches!(refused, SandboxError::NotRoot(_)), "{refused}");
    }

    #[test]
    fn rejects_root_and_its_group() {
        for account in [ROOT, of(0, 1000), of(1000, 0)] {
            let refused = validate_account("a", account, ROOT).unwrap_err();
            assert!(matches!(refused, SandboxError::RootUser(_)), "{refused}");
        }
    }

    #[test]
    fn rejects_unknown_users() {
        let refused = account(Some("no-such-user-of-runnel")).unwrap_err();
        assert!(matches!(refused, SandboxError::UnknownUser(_)), "{refused}");
    }
}
