//! Workspaces: one directory for each conversation in the operator's root, or a directory that the operator names.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use agent_core::RunFailure;

use crate::directory::Directory;
use crate::failure::WORKSPACE_FAILED;
use crate::hash::{is_short_hash, short_hash};
use crate::owner::ProcessOwner;

/// Mode of new directories: access for the owner only.
const MODE: u32 = 0o700;
/// Folders of one workspace: the working directory and the home directory of the harness.
const WORK: &str = "work";
const HOME: &str = "home";
/// Name prefix of workspaces during their removal.
const REMOVED: &str = ".removed-";
/// Minimum retention after the last use of a workspace.
const RECENT: Duration = Duration::from_mins(1);
/// Maximum entries counted for the size of one workspace.
const MAX_ENTRIES: usize = 100_000;

/// All workspaces of a service. Clones share the set of those in use.
#[derive(Clone, Debug)]
pub struct Workspaces {
    path: PathBuf,
    owner: ProcessOwner,
    in_use: Arc<Mutex<BTreeSet<String>>>,
}

/// Workspace of one run. Dropping it releases the workspace.
#[derive(Debug)]
pub(crate) struct RunWorkspace {
    /// Working directory of the harness.
    pub(crate) path: PathBuf,
    /// Handle of that directory. The service accesses its files only through this descriptor.
    pub(crate) directory: Directory,
    /// Path of the home directory. It persists across runs and holds the harness's sessions.
    pub(crate) home_path: PathBuf,
    /// Handle of the home directory.
    pub(crate) home: Directory,
    _use: InUse,
}

/// Mark of a workspace in use. Dropping it releases the workspace.
#[derive(Debug)]
struct InUse {
    name: String,
    all: Workspaces,
}

impl Workspaces {
    /// Workspaces in `path`, which is created if it is missing. `owner`: the user of harnesses; fails if that user
    /// cannot enter the path.
    pub fn new(path: &Path, owner: ProcessOwner) -> io::Result<Self> {
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
                above.find(|path| !path.metadata().is_ok_and(|it| owner.can_enter(&it)))
        {
            return Err(io::Error::other(format!(
                "the user of the harnesses cannot enter {}: let it (chmod o+x), or name another place",
                closed.display()
            )));
        }
        Ok(workspaces)
    }

    /// Parent directory of all workspaces. The service owns it, so that harnesses cannot rename its entries.
    fn root(&self) -> io::Result<Directory> {
        make_root(&self.path)?;
        let root = Directory::open(&self.path, ProcessOwner::own())?;
        self.allow_entry(root)
    }

    /// Allows the user of harnesses to enter a directory of the service.
    fn allow_entry(&self, directory: Directory) -> io::Result<Directory> {
        if !self.owner.is_own() {
            directory.allow_search()?;
        }
        Ok(directory)
    }

    /// Opens the workspace of a conversation. `named`: working directory of the operator instead of an own one. Fails
    /// with `harness.workspace_busy` while another run of this service uses it.
    pub(crate) fn open(
        &self,
        conversation: &str,
        named: Option<&Path>,
    ) -> Result<RunWorkspace, RunFailure> {
        // Conversation ids hold any characters; the hash is a safe name of fixed length.
        let name = short_hash(conversation);
        if !self.in_use().insert(name.clone()) {
            let message = "another run works in this conversation's workspace; set the agent's `concurrency` to `enqueue` or `steer`";
            return Err(RunFailure::new("harness.workspace_busy", message).retryable());
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
            RunFailure::new(WORKSPACE_FAILED, message)
        })
    }

    fn make(&self, in_use: InUse, named: Option<&Path>) -> io::Result<RunWorkspace> {
        let path = self.path.join(&in_use.name);
        let parent = self.root()?.make_folder(OsStr::new(&in_use.name))?;
        parent.change_owner()?;
        let parent = self.allow_entry(parent)?.for_user(self.owner);
        let folder = |name: &str| {
            let folder = parent.make_folder(OsStr::new(name))?;
            // The service or its harnesses may have had another user before.
            folder.change_owner().map(|()| folder)
        };
        let home = folder(HOME)?;
        let (path, home_path) = (path.join(WORK), path.join(HOME));
        let (path, directory) = match named {
            None => (path, folder(WORK)?),
            Some(named) => (named.to_path_buf(), Directory::open(named, self.owner)?),
        };
        in_use.touch()?;
        Ok(RunWorkspace {
            path,
            directory,
            home_path,
            home,
            _use: in_use,
        })
    }

    /// Removes workspaces that were unused for `age`, then the longest unused ones until the total is at most `bytes`.
    /// Workspaces in use, or used within [`RECENT`], remain: processes of the last run may still be ending.
    pub fn sweep(&self, age: Duration, bytes: u64) -> io::Result<()> {
        let mut candidates = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(REMOVED) {
                // An earlier service process ended during this removal.
                delete(&path);
            } else if is_short_hash(&name)
                && let Ok(used_at) = last_used(&path)
            {
                candidates.push((used_at, name.into_owned()));
            }
        }
        candidates.sort();
        let sizes = candidates
            .iter()
            .map(|(_, name)| size_of(&self.path.join(name)));
        let sizes: Vec<u64> = sizes.collect();
        let mut total: u64 = sizes.iter().sum();
        for ((used_at, name), size) in candidates.into_iter().zip(sizes) {
            let unused = used_at.elapsed().unwrap_or_default();
            if unused > RECENT && (unused > age || total > bytes) && self.remove(&name, used_at) {
                total -= size;
            }
        }
        Ok(())
    }

    /// Removes a workspace; returns false if it is in use or was used after `seen`.
    fn remove(&self, name: &str, seen: SystemTime) -> bool {
        let path = self.path.join(name);
        let removed = format!("{REMOVED}{}", uuid::Uuid::new_v4().simple());
        let removed = self.path.join(removed);
        {
            // The lock keeps runs from opening the workspace. Rename only: the slow removal follows without it.
            let in_use = self.in_use();
            let is_used = in_use.contains(name) || !last_used(&path).is_ok_and(|at| at == seen);
            if is_used || std::fs::rename(&path, &removed).is_err() {
                return false;
            }
        }
        delete(&removed);
        tracing::info!(workspace = name, "workspace {name} removed");
        true
    }

    // A panic cannot leave the set inconsistent, so a poisoned lock is usable.
    fn in_use(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InUse {
    /// Sets the time of the last use, for [`Workspaces::sweep`]. Changes in nested folders do not update it.
    fn touch(&self) -> io::Result<()> {
        let all = Directory::open(&self.all.path, ProcessOwner::own())?;
        all.folder(OsStr::new(&self.name))?.touch()
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if let Err(error) = self.touch() {
            tracing::warn!(%error, workspace = self.name, "the use of a workspace cannot be marked, it may be removed early");
        }
        self.all.in_use().remove(&self.name);
    }
}

fn make_root(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(MODE).create(path)
}

/// Removes a renamed workspace. The next sweep retries after an error.
fn delete(path: &Path) {
    if let Err(error) = std::fs::remove_dir_all(path) {
        let path = path.display();
        tracing::warn!(%error, "{path} cannot be removed, trying again in an hour");
    }
}

/// Time of the last use, by the modification times of its directories.
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

/// Disk usage of a tree in bytes, up to [`MAX_ENTRIES`] entries. Links are not followed.
fn size_of(path: &Path) -> u64 {
    let (mut bytes, mut seen, mut waiting) = (0, 0, vec![path.to_path_buf()]);
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            // Allocated blocks: sparse files take less than their length.
            bytes += metadata.blocks() * 512;
            seen += 1;
            if seen >= MAX_ENTRIES {
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
    use clock::Clock;

    fn workspaces() -> (Workspaces, PathBuf) {
        let root = std::env::temp_dir().join(format!("runnel-workspaces-{}", uuid::Uuid::new_v4()));
        (Workspaces::new(&root, ProcessOwner::own()).unwrap(), root)
    }

    #[test]
    fn reuses_private_directory_of_conversation() {
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
    fn rejects_symlinked_workspace() {
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

    /// Sets the last use of a workspace to `time` ago.
    fn leave_unused(path: &Path, time: Duration) {
        let parent = path.parent().unwrap();
        for path in [path, parent, &parent.join(HOME)] {
            let directory = std::fs::File::open(path).unwrap();
            directory
                .set_modified(Clock::system().now() - time)
                .unwrap();
        }
    }

    const HOUR: Duration = Duration::from_hours(1);

    #[test]
    fn sweeps_by_age_and_size() {
        let (workspaces, root) = workspaces();
        let paths =
            ["old", "large", "new"].map(|it| workspaces.open(it, None).unwrap().path.clone());
        let [old, large, new] = &paths;
        leave_unused(old, HOUR * 3);
        leave_unused(large, HOUR);
        std::fs::create_dir(root.join("lost+found")).unwrap();
        std::fs::create_dir(root.join(".removed-0")).unwrap();
        workspaces.sweep(HOUR * 2, u64::MAX).unwrap();
        assert!(!old.exists() && large.exists());
        workspaces.sweep(HOUR * 2, 0).unwrap();
        // A workspace of the last minute remains at any size.
        assert!(!large.exists() && new.exists());
        let names = std::fs::read_dir(&root).unwrap().flatten();
        assert_eq!(
            names.count(),
            2,
            "a foreign directory and the new workspace"
        );
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn keeps_used_workspaces_beyond_retention() {
        let (workspaces, root) = workspaces();
        let live = workspaces.open("live", None).unwrap();
        let path = live.path.clone();
        leave_unused(&path, HOUR * 3);
        workspaces.sweep(HOUR, 0).unwrap();
        assert!(path.exists(), "a workspace in use was removed");
        // The age counts from the end of the last use.
        drop(live);
        workspaces.sweep(HOUR, u64::MAX).unwrap();
        assert!(path.exists(), "a workspace that was just used was removed");
        leave_unused(&path, HOUR * 3);
        drop(workspaces.open("live", None).unwrap());
        workspaces.sweep(HOUR, u64::MAX).unwrap();
        assert!(path.exists());
        std::fs::remove_dir_all(root).unwrap();
    }
}
