//! User that harnesses run as. It owns their workspaces, homes and files.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use anyhow::Context as _;
use rustix::fd::AsFd;
use rustix::fs::{Gid, Uid, fchown, fstat};
use rustix::process::{getegid, geteuid};

use crate::sandbox;

/// User id and group id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessOwner {
    user: Uid,
    group: Gid,
}

impl ProcessOwner {
    /// The user of this process.
    pub fn own() -> Self {
        Self {
            user: geteuid(),
            group: getegid(),
        }
    }

    /// User of the settings, otherwise of this process. Fails if no run could change to that user.
    pub fn of(user: Option<&str>) -> anyhow::Result<Self> {
        let account = sandbox::account(user).context("user: harnesses cannot run as it")?;
        Ok(account.map_or_else(Self::own, |account| Self {
            user: Uid::from_raw(account.user),
            group: Gid::from_raw(account.group),
        }))
    }

    /// True if harnesses run as the user of this process.
    pub(crate) fn is_own(self) -> bool {
        self.user == geteuid()
    }

    /// True if this user id, as of a file, is the user's.
    pub(crate) fn owns(self, user: u32) -> bool {
        self.user.as_raw() == user
    }

    /// Changes the owner of an open file or directory to the user.
    pub(crate) fn take(self, file: impl AsFd) -> io::Result<()> {
        // Only root may change an owner, so entries of the own user are skipped.
        if self.owns(fstat(&file)?.st_uid) {
            return Ok(());
        }
        Ok(fchown(file, Some(self.user), Some(self.group))?)
    }

    /// User and group as arguments of `chown`.
    pub(crate) fn ids(self) -> (Option<Uid>, Option<Gid>) {
        (Some(self.user), Some(self.group))
    }

    /// Tests the search permission of the user by the directory's mode. Access control lists are ignored.
    pub(crate) fn can_enter(self, directory: &Metadata) -> bool {
        let bit = if self.user.is_root() {
            return true;
        } else if self.owns(directory.uid()) {
            0o100
        } else if self.group.as_raw() == directory.gid() {
            // Supplementary groups do not count: harnesses have none.
            0o010
        } else {
            0o001
        };
        directory.mode() & bit != 0
    }
}

#[cfg(test)]
impl ProcessOwner {
    /// A user without privileges.
    pub(crate) fn testing() -> Self {
        Self {
            user: Uid::from_raw(65_534),
            group: Gid::from_raw(65_534),
        }
    }
}
