//! Directories that a harness may change while the service works in them. Each is opened once; every operation is
//! relative to its descriptor and follows no link, so that a planted link cannot redirect the service.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, Dir, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, chownat, fchmod, fstat, futimens,
    mkdirat, open, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use crate::owner::ProcessOwner;

/// Open directory, independent of its current path. Clones share the descriptor.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    opened: Arc<OwnedFd>,
    /// Owner of new entries.
    owner: ProcessOwner,
}

/// Maximum depth of [`Directory::change_owner`]. Deeper folders keep their owner.
const MAX_DEPTH: usize = 128;

const FOLDER: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
const NEW_FILE: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// `NONBLOCK`: opening a named pipe would wait for its writer.
const READ_FILE: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

impl Directory {
    /// Opens a directory by its path. Its last part must not be a link; the operator controls the parts before it.
    /// `owner`: owner of new entries.
    pub(crate) fn open(path: &Path, owner: ProcessOwner) -> io::Result<Self> {
        let opened = Arc::new(open(path, FOLDER, Mode::empty())?);
        Ok(Self { opened, owner })
    }

    /// Same directory with another owner of new entries.
    pub(crate) fn for_user(self, owner: ProcessOwner) -> Self {
        Self { owner, ..self }
    }

    /// Opens a folder in this directory.
    pub(crate) fn folder(&self, name: &OsStr) -> io::Result<Self> {
        let opened = openat(&*self.opened, single(name)?, FOLDER, Mode::empty())?;
        Ok(Self {
            opened: Arc::new(opened),
            owner: self.owner,
        })
    }

    /// Opens a folder; creates it with mode 0700 if it is missing.
    pub(crate) fn make_folder(&self, name: &OsStr) -> io::Result<Self> {
        match mkdirat(&*self.opened, single(name)?, Mode::RWXU) {
            Ok(()) => {
                // Open first, then change the owner of the descriptor: the name may be replaced in between.
                let folder = self.folder(name)?;
                self.owner.take(&*folder.opened)?;
                Ok(folder)
            }
            Err(Errno::EXIST) => self.folder(name),
            Err(error) => Err(error.into()),
        }
    }

    /// Changes the owner of this directory and of all entries below it to its owner. Links change themselves.
    pub(crate) fn change_owner(&self) -> io::Result<()> {
        self.change_owner_below(MAX_DEPTH)
    }

    fn change_owner_below(&self, depth: usize) -> io::Result<()> {
        if depth == 0 || self.owner.owns(fstat(&*self.opened)?.st_uid) {
            return Ok(());
        }
        for name in self.names(usize::MAX)? {
            if let Ok(folder) = self.folder(&name) {
                folder.change_owner_below(depth - 1)?;
                continue;
            }
            let stat = statat(&*self.opened, &name, AtFlags::SYMLINK_NOFOLLOW)?;
            // A file with a second hard link may be a file of another user.
            if stat.st_nlink == 1 {
                let (user, group) = self.owner.ids();
                chownat(&*self.opened, &name, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
            }
        }
        // The directory itself is last: its owner marks the tree as done, and an interrupted change is repeated.
        self.owner.take(&*self.opened)
    }

    /// Sets the modification time to now.
    pub(crate) fn touch(&self) -> io::Result<()> {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        };
        let times = Timestamps {
            last_access: now,
            last_modification: now,
        };
        Ok(futimens(&*self.opened, &times)?)
    }

    /// Adds the search permission for every user, not the read permission: entries stay unlisted.
    pub(crate) fn allow_search(&self) -> io::Result<()> {
        let enter = Mode::XUSR | Mode::XGRP | Mode::XOTH;
        let mode = Mode::from_raw_mode(fstat(&*self.opened)?.st_mode);
        if mode.contains(enter) {
            return Ok(());
        }
        Ok(fchmod(&*self.opened, mode | enter)?)
    }

    /// Parent folder of a relative path, created if it is missing, and the file name.
    fn parent_of<'a>(&self, path: &'a Path) -> io::Result<(Self, &'a OsStr)> {
        let mut folder = self.clone();
        let mut parts = path.components();
        let Some(Component::Normal(name)) = parts.next_back() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        for part in parts {
            folder = folder.make_folder(part.as_os_str())?;
        }
        Ok((folder, name))
    }

    /// Creates a file with mode 0600. Fails with `AlreadyExists` if the name is taken, also by a link.
    pub(crate) fn create(&self, name: &OsStr) -> io::Result<File> {
        let mode = Mode::RUSR | Mode::WUSR;
        let file = openat(&*self.opened, single(name)?, NEW_FILE, mode)?;
        self.owner.take(&file)?;
        Ok(File::from(file))
    }

    /// Replaces the entry at a relative path by a file of mode 0600; creates missing folders.
    /// The entry serves [`DirectoryEntry::remove`].
    pub(crate) fn replace(&self, path: &Path, content: &[u8]) -> io::Result<DirectoryEntry> {
        let (folder, name) = self.parent_of(path)?;
        // Never write into an existing file: it may be a hard link, or open in a harness.
        folder.remove(name)?;
        folder.create(name)?.write_all(content)?;
        Ok(DirectoryEntry {
            folder,
            name: name.to_owned(),
        })
    }

    /// Opens a regular file of the owner for reading. Fails with `InvalidInput` for anything else.
    pub(crate) fn read(&self, name: &OsStr) -> io::Result<File> {
        let file = File::from(openat(
            &*self.opened,
            single(name)?,
            READ_FILE,
            Mode::empty(),
        )?);
        let metadata = file.metadata()?;
        // A hard link to a file of another user would be read with the rights of the service.
        if metadata.is_file() && (self.owner.is_own() || self.owner.owns(metadata.uid())) {
            Ok(file)
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }

    /// True if an entry has this name; a dangling link counts.
    pub(crate) fn contains(&self, name: &OsStr) -> bool {
        let name = single(name);
        name.is_ok_and(|name| statat(&*self.opened, name, AtFlags::SYMLINK_NOFOLLOW).is_ok())
    }

    /// Time of the last write or rename of an entry; `None` if it is absent. Links are not followed.
    pub(crate) fn changed_at(&self, name: &OsStr) -> Option<SystemTime> {
        let stat = statat(&*self.opened, single(name).ok()?, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let at = |seconds: i64, nanoseconds| {
            let seconds = u64::try_from(seconds).unwrap_or_default();
            SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds)
        };
        let written = u32::try_from(stat.st_mtime_nsec).unwrap_or_default();
        let renamed = u32::try_from(stat.st_ctime_nsec).unwrap_or_default();
        // A move keeps the modification time and updates the change time only.
        Some(at(stat.st_mtime, written).max(at(stat.st_ctime, renamed)))
    }

    /// Renames an entry within this directory. A link is renamed itself.
    pub(crate) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(renameat(
            &*self.opened,
            single(from)?,
            &*self.opened,
            single(to)?,
        )?)
    }

    /// Removes a file or a link, if it is there.
    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        match unlinkat(&*self.opened, single(name)?, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Names of the entries, at most `max_entries`, in the order of the file system.
    pub(crate) fn names(&self, max_entries: usize) -> io::Result<Vec<OsString>> {
        let entries = Dir::read_from(&*self.opened)?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                names.push(name.to_owned());
            }
            // A harness may create millions of entries; memory stays bounded.
            if names.len() == max_entries {
                break;
            }
        }
        Ok(names)
    }
}

/// File in an open directory.
#[derive(Debug)]
pub(crate) struct DirectoryEntry {
    folder: Directory,
    name: OsString,
}

impl DirectoryEntry {
    /// Removes the file, if it is still there.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.folder.remove(&self.name)
    }
}

/// Checks that a name has no path: `openat` follows links in all parts but the last.
fn single(name: &OsStr) -> io::Result<&OsStr> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.contains(&b'/') || bytes == b"." || bytes == b".." {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Directory with links to `outside`, as a hostile harness plants them.
    struct Planted {
        root: std::path::PathBuf,
        directory: Directory,
    }

    impl Planted {
        fn new() -> Self {
            let name = format!("runnel-directory-{}", uuid::Uuid::new_v4());
            let root = std::env::temp_dir().join(name);
            std::fs::create_dir_all(root.join("inside")).unwrap();
            std::fs::create_dir_all(root.join("outside")).unwrap();
            std::fs::write(root.join("outside/secret"), "secret").unwrap();
            symlink("../outside", root.join("inside/folder")).unwrap();
            symlink("../outside/secret", root.join("inside/file")).unwrap();
            let directory = Directory::open(&root.join("inside"), ProcessOwner::own()).unwrap();
            Self { root, directory }
        }

        /// The names outside, and the secret.
        fn outside(&self) -> (usize, String) {
            let outside = self.root.join("outside");
            let secret = std::fs::read_to_string(outside.join("secret")).unwrap();
            (std::fs::read_dir(outside).unwrap().count(), secret)
        }
    }

    impl Drop for Planted {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }

    #[test]
    fn planted_links_stay_inside_directory() {
        let planted = Planted::new();
        let directory = &planted.directory;
        let name = OsStr::new;
        assert!(directory.folder(name("folder")).is_err());
        assert!(directory.make_folder(name("folder")).is_err());
        assert!(directory.read(name("file")).is_err());
        assert!(directory.create(name("file")).is_err());
        assert!(directory.replace(Path::new("folder/new"), b"x").is_err());
        for path in ["folder/secret", "../outside/secret", "..", ""] {
            assert!(directory.read(name(path)).is_err(), "{path}");
            assert!(
                directory.rename(name(path), name("taken")).is_err(),
                "{path}"
            );
        }
        // Replace, rename and remove act on the link itself.
        directory.replace(Path::new("file"), b"new").unwrap();
        directory.rename(name("folder"), name("renamed")).unwrap();
        directory.remove(name("renamed")).unwrap();
        assert_eq!(directory.names(10).unwrap(), ["file"]);
        assert_eq!(planted.outside(), (1, "secret".to_owned()));
    }

    #[test]
    fn keeps_directory_handle_after_path_change() {
        let planted = Planted::new();
        let inside = planted.root.join("inside");
        std::fs::rename(&inside, planted.root.join("moved")).unwrap();
        symlink("outside", &inside).unwrap();
        let entry = planted
            .directory
            .replace(Path::new("a/b"), b"text")
            .unwrap();
        let mut text = String::new();
        let mut file = std::fs::File::open(planted.root.join("moved/a/b")).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        entry.remove().unwrap();
        assert!(!planted.root.join("moved/a/b").exists());
        assert_eq!(planted.outside().0, 1);
        assert!(Directory::open(&inside, ProcessOwner::own()).is_err());
    }

    /// Owner of an entry; links are not followed.
    fn user_of(path: &Path) -> u32 {
        path.symlink_metadata().unwrap().uid()
    }

    #[test]
    fn gives_trees_to_the_user_without_following_links() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let planted = Planted::new();
        let inside = planted.root.join("inside");
        std::fs::create_dir(inside.join("deep")).unwrap();
        std::fs::write(inside.join("deep/note"), "x").unwrap();
        std::fs::hard_link(planted.root.join("outside/secret"), inside.join("second")).unwrap();
        let user = ProcessOwner::testing();
        let directory = planted.directory.clone().for_user(user);
        directory.change_owner().unwrap();
        for name in ["", "deep", "deep/note", "file", "folder"] {
            assert!(user.owns(user_of(&inside.join(name))), "{name}");
        }
        for name in ["outside", "outside/secret"] {
            assert_eq!(user_of(&planted.root.join(name)), 0, "{name}");
        }
        assert!(directory.read(OsStr::new("second")).is_err());
        // New files and folders belong to the user, too.
        directory.replace(Path::new("new/file"), b"x").unwrap();
        for name in ["new", "new/file"] {
            assert!(user.owns(user_of(&inside.join(name))), "{name}");
        }
    }
}
