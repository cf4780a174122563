//! User that harnesses run as: owner of their workspaces, homes and files.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use anyhow::Context as _;
use rustix::fd::AsFd;
use rustix::fs::{Gid, Uid, fchown, fstat};
use rustix::process::{getegid, geteuid};

use crate::sandbox;

/// A user and its group.
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

    /// The user of the settings, or else that of this process. An error for a user that no run could change to.
    pub fn of(user: Option<&str>) -> anyhow::Result<Self> {
        let account = sandbox::account(user).context("user: harnesses cannot run as it")?;
        Ok(account.map_or_else(Self::own, |account| Self {
            user: Uid::from_raw(account.user),
            group: Gid::from_raw(account.group),
        }))
    }

    /// Whether harnesses run as the user of this process.
    pub(crate) fn is_own(self) -> bool {
        self.user == geteuid()
    }

    /// Whether a file of this user id belongs to the user.
    pub(crate) fn owns(self, user: u32) -> bool {
        self.user.as_raw() == user
    }

    /// Gives an open file or directory to the user, unless it belongs to it already. Only root gives to others.
    pub(crate) fn take(self, file: impl AsFd) -> io::Result<()> {
        if self.owns(fstat(&file)?.st_uid) {
            return Ok(());
        }
        Ok(fchown(file, Some(self.user), Some(self.group))?)
    }

    /// The arguments of a `chown`.
    pub(crate) fn ids(self) -> (Option<Uid>, Option<Gid>) {
        (Some(self.user), Some(self.group))
    }

    /// Whether the user may enter a directory, as far as its mode tells. Its own supplementary groups do not count:
    /// harnesses have none.
    pub(crate) fn enters(self, directory: &Metadata) -> bool {
        let bit = if self.user.is_root() {
            return true;
        } else if self.owns(directory.uid()) {
            0o100
        } else if self.group.as_raw() == directory.gid() {
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
