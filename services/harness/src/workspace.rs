//! Workspaces: one directory for each conversation below the operator's root, or a directory that the operator names.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::directory::Directory;
use crate::failure::{Failure, WORKSPACE_FAILED};
use crate::hash::short_hash;
use crate::owner::Owner;

/// Readable and writable by their owner alone.
const MODE: u32 = 0o700;
/// The folders of one workspace: where the harness works, and its home directory.
const WORK: &str = "work";
const HOME: &str = "home";
/// Entries of one workspace that are looked at to know its size.
const MOST_ENTRIES: usize = 100_000;

/// All workspaces of a service. Clones share what is in use.
#[derive(Clone, Debug)]
pub struct Workspaces {
    path: PathBuf,
    owner: Owner,
    in_use: Arc<Mutex<BTreeSet<String>>>,
}

/// The workspace of one run. Dropping it frees it.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// Where the harness works.
    pub(crate) path: PathBuf,
    /// The directory of that path. The service works in it by this descriptor alone.
    pub(crate) directory: Directory,
    /// The path of its home directory, kept from run to run for its sessions.
    pub(crate) home_path: PathBuf,
    /// The directory of that path.
    pub(crate) home: Directory,
    _use: InUse,
}

/// The mark that a workspace is in use. Dropping it frees the workspace.
#[derive(Debug)]
struct InUse {
    name: String,
    all: Workspaces,
}

impl Workspaces {
    /// Those below `path`, which is made if it is missing. `owner`: the user that harnesses run as; an error where it
    /// cannot get there.
    pub fn new(path: &Path, owner: Owner) -> io::Result<Self> {
        make_root(path)?;
        let workspaces = Self {
            path: path.canonicalize()?,
            owner,
            in_use: Arc::default(),
        };
        workspaces.root()?;
        let mut above = workspaces.path.ancestors().skip(1);
        if !owner.is_own()
            && let Some(closed) =
                above.find(|path| !path.metadata().is_ok_and(|it| owner.enters(&it)))
        {
            return Err(io::Error::other(format!(
                "the user of the harnesses cannot enter {}: let it (chmod o+x), or name another place",
                closed.display()
            )));
        }
        Ok(workspaces)
    }

    /// The directory above all workspaces, the service's own: harnesses rename nothing there.
    fn root(&self) -> io::Result<Directory> {
        make_root(&self.path)?;
        let root = Directory::open(&self.path, Owner::own())?;
        self.open_way(root)
    }

    /// Lets the user of the harnesses through a directory of the service.
    fn open_way(&self, directory: Directory) -> io::Result<Directory> {
        if !self.owner.is_own() {
            directory.let_through()?;
        }
        Ok(directory)
    }

    /// The workspace of a conversation. `named`: a directory of the operator to work in instead of an own one.
    /// An error while another run of this service uses it.
    pub(crate) fn open(
        &self,
        conversation: &str,
        named: Option<&Path>,
    ) -> Result<Workspace, Failure> {
        let name = short_hash(conversation);
        if !self.in_use().insert(name.clone()) {
            let message = "another run works in this conversation's workspace; set the agent's `concurrency` to `enqueue` or `steer`";
            return Err(Failure::new("harness.workspace_busy", message).retryable());
        }
        let in_use = InUse {
            name,
            all: self.clone(),
        };
        let path = self.path.join(&in_use.name);
        self.make(in_use, named).map_err(|error| {
            let path = named.map_or_else(|| path.join(WORK), Path::to_path_buf);
            let path = path.display();
            let message = format!("the workspace {path} cannot be used: {error}");
            Failure::new(WORKSPACE_FAILED, message)
        })
    }

    fn make(&self, in_use: InUse, named: Option<&Path>) -> io::Result<Workspace> {
        let path = self.path.join(&in_use.name);
        let parent = self.root()?.make_folder(OsStr::new(&in_use.name))?;
        parent.adopt()?;
        let parent = self.open_way(parent)?.for_user(self.owner);
        let folder = |name: &str| {
            let folder = parent.make_folder(OsStr::new(name))?;
            // Made by an earlier service of another user, or for one.
            folder.adopt().map(|()| folder)
        };
        let home = folder(HOME)?;
        let (path, home_path) = (path.join(WORK), path.join(HOME));
        let (path, directory) = match named {
            None => (path, folder(WORK)?),
            Some(named) => (named.to_path_buf(), Directory::open(named, self.owner)?),
        };
        Ok(Workspace {
            path,
            directory,
            home_path,
            home,
            _use: in_use,
        })
    }

    /// Removes workspaces that were not used for `age`, and the oldest of the others until all take at most `bytes`.
    /// Never one that is in use.
    pub fn sweep(&self, age: Duration, bytes: u64) -> io::Result<()> {
        let mut kept = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let used_at = last_used(&entry.path())?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if used_at.elapsed().is_ok_and(|elapsed| elapsed > age) {
                self.remove(&name)?;
            } else {
                kept.push((used_at, size_of(&entry.path()), name));
            }
        }
        kept.sort();
        let mut total: u64 = kept.iter().map(|(_, size, _)| size).sum();
        for (_, size, name) in kept {
            if total <= bytes {
                break;
            }
            if self.remove(&name)? {
                total -= size;
            }
        }
        Ok(())
    }

    /// Whether it was removed; not while it is in use.
    fn remove(&self, name: &str) -> io::Result<bool> {
        let in_use = self.in_use();
        if in_use.contains(name) {
            return Ok(false);
        }
        // The lock is held: no run opens the workspace meanwhile.
        std::fs::remove_dir_all(self.path.join(name))?;
        tracing::info!(workspace = name, "workspace {name} removed");
        Ok(true)
    }

    // The set is whole after any panic.
    fn in_use(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.all.in_use().remove(&self.name);
    }
}

fn make_root(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(MODE).create(path)
}

/// When a workspace was last written to, as its directories tell.
fn last_used(path: &Path) -> io::Result<SystemTime> {
    let mut newest = path.symlink_metadata()?.modified()?;
    for part in [WORK, HOME] {
        if let Ok(modified) = path
            .join(part)
            .symlink_metadata()
            .and_then(|meta| meta.modified())
        {
            newest = newest.max(modified);
        }
    }
    Ok(newest)
}

/// Bytes below a path, links not followed, of at most [`MOST_ENTRIES`] entries.
fn size_of(path: &Path) -> u64 {
    let (mut bytes, mut seen, mut waiting) = (0, 0, vec![path.to_path_buf()]);
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            bytes += metadata.blocks() * 512;
            seen += 1;
            if seen >= MOST_ENTRIES {
                return bytes;
            }
            if metadata.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspaces() -> (Workspaces, PathBuf) {
        let root = std::env::temp_dir().join(format!("runnel-workspaces-{}", uuid::Uuid::new_v4()));
        (Workspaces::new(&root, Owner::own()).unwrap(), root)
    }

    #[test]
    fn a_conversation_keeps_its_private_directory() {
        let (workspaces, root) = workspaces();
        let first = workspaces.open("a", None).unwrap();
        let directory = first.path.clone();
        assert_eq!(directory.metadata().unwrap().mode() & 0o777, 0o700);
        assert_eq!(
            workspaces.open("a", None).unwrap_err().code,
            "harness.workspace_busy"
        );
        drop(first);
        assert_eq!(workspaces.open("a", None).unwrap().path, directory);
        assert_ne!(workspaces.open("b", None).unwrap().path, directory);
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn refuses_a_link_in_the_place_of_a_workspace() {
        let (workspaces, root) = workspaces();
        let directory = workspaces.open("a", None).unwrap().path.clone();
        std::fs::remove_dir_all(&directory).unwrap();
        std::os::unix::fs::symlink("/etc", &directory).unwrap();
        assert_eq!(
            workspaces.open("a", None).unwrap_err().code,
            WORKSPACE_FAILED
        );
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn sweeps_by_age_and_size_but_not_a_live_run() {
        let (workspaces, root) = workspaces();
        let live = workspaces.open("live", None).unwrap();
        let old = workspaces.open("old", None).unwrap().path.clone();
        std::fs::write(old.join("file"), vec![0; 100_000]).unwrap();
        workspaces.sweep(Duration::from_hours(1), u64::MAX).unwrap();
        assert!(old.exists());
        workspaces.sweep(Duration::from_hours(1), 0).unwrap();
        assert!(!old.exists() && live.path.exists());
        std::fs::remove_dir_all(root).unwrap();
    }
}
