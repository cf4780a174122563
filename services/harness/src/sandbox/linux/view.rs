//! File system view of a harness: system directories, its own directories and its own terminals. Nothing else exists in
//! it. Read-only mounts also protect modes, owners and times of files.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::Mode;
use rustix::process::{pivot_root, umask};

use super::mount_table::{MountPoint, mount_points};
use super::rules::{DEVICES, SYSTEM};
use crate::sandbox::{Confinement, SandboxError};

/// Mount point for the root of the view, in this mount namespace only. Every system has the directory.
const BASE: &str = "/usr";
const OLD_ROOT: &str = "/old";
const NEW_ROOT: &str = "/new";
/// Maximum links of one path, as in the kernel.
const MAX_LINKS: usize = 40;
/// Links in `/dev` that shells and programs use for their own descriptors.
const DESCRIPTORS: [(&str, &str); 4] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// Replaces the root of this process, the first one of its namespaces. Keeps the working directory if the view has it.
pub(in crate::sandbox) fn enter(confinement: &Confinement) -> Result<(), SandboxError> {
    let directory = std::env::current_dir().unwrap_or_default();
    let view = View::of(confinement)?;
    view.build()
        .map_err(|error| SandboxError::setup("the view of the file system", error))?;
    // The old directory is still open through the old root; enter it by path in the new one.
    if std::env::set_current_dir(&directory).is_err() {
        std::env::set_current_dir("/")
            .map_err(|error| SandboxError::setup("the working directory", error))?;
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Entry {
    /// Symbolic link to this target.
    Link(PathBuf),
    /// File or directory with its subtree.
    Bind { is_writable: bool },
}

/// Entries by absolute path. The order puts parents before their children.
#[derive(Debug, Default)]
struct View(BTreeMap<PathBuf, Entry>);

impl View {
    fn of(confinement: &Confinement) -> Result<Self, SandboxError> {
        let mut view = Self::default();
        let proc = Path::new("/proc");
        let system = SYSTEM.iter().map(Path::new).filter(|path| *path != proc);
        for path in system.filter(|path| path.exists()) {
            view.show_as(path, false)?;
        }
        for path in DEVICES.iter().map(Path::new).filter(|path| path.exists()) {
            view.show_as(path, true)?;
        }
        for path in &confinement.read_only {
            view.show_as(path, false)?;
        }
        for path in &confinement.read_write {
            view.show_as(path, true)?;
        }
        Ok(view)
    }

    fn show_as(&mut self, path: &Path, is_writable: bool) -> Result<(), SandboxError> {
        let shown = std::path::absolute(path).and_then(|path| self.show(&path, is_writable));
        shown.map_err(|source| SandboxError::Path {
            path: path.to_owned(),
            source,
        })
    }

    /// Adds the target of an absolute path, and each link on the way.
    fn show(&mut self, path: &Path, is_writable: bool) -> io::Result<()> {
        let mut real = PathBuf::from("/");
        let mut rest: VecDeque<OsString> = VecDeque::new();
        prepend(&mut rest, path);
        let mut links = 0;
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                real.pop();
                continue;
            }
            let next = real.join(name);
            if !next.symlink_metadata()?.is_symlink() {
                real = next;
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(rustix::io::Errno::LOOP.into());
            }
            let target = next.read_link()?;
            if target.is_absolute() {
                real = PathBuf::from("/");
            }
            prepend(&mut rest, &target);
            self.0.insert(next, Entry::Link(target));
        }
        let bind = Entry::Bind { is_writable };
        let entry = self.0.entry(real).or_insert(bind);
        // A path that is listed twice keeps the wider access.
        if is_writable {
            *entry = Entry::Bind { is_writable };
        }
        Ok(())
    }

    /// Writability of the nearest of these directories; `None` for a path outside all of them.
    fn writable_around<'a>(&self, mut paths: impl Iterator<Item = &'a Path>) -> Option<bool> {
        paths.find_map(|path| match self.0.get(path)? {
            Entry::Bind { is_writable } => Some(*is_writable),
            Entry::Link(_) => None,
        })
    }

    /// Entries to mount: those that no other entry contains, and writable ones inside read-only ones.
    fn outermost(&self) -> impl Iterator<Item = (&Path, &Entry)> {
        let entries = self.0.iter().map(|(path, entry)| (path.as_path(), entry));
        entries.filter(|(path, entry)| {
            let around = self.writable_around(path.ancestors().skip(1));
            match (around, entry) {
                (None, _) => true,
                (Some(_), Entry::Link(_)) => false,
                (Some(around), Entry::Bind { is_writable }) => *is_writable && !around,
            }
        })
    }

    fn build(&self) -> io::Result<()> {
        umask(Mode::WGRP | Mode::WOTH);
        open_roots()?;
        for (path, entry) in self.outermost() {
            let target = beneath(NEW_ROOT, path);
            let parent = target.parent().unwrap_or(&target);
            fs::create_dir_all(parent)?;
            match entry {
                Entry::Link(link) => symlink(link, &target)?,
                Entry::Bind { .. } => bind(&beneath(OLD_ROOT, path), &target)?,
            }
        }
        own_processes()?;
        own_terminals()?;
        // After all mounts: the function reads their table from the new `/proc`.
        self.protect()?;
        close_old_root()
    }

    /// Remounts everything outside writable directories read-only, including nested mounts.
    fn protect(&self) -> io::Result<()> {
        let table = fs::read_to_string(beneath(NEW_ROOT, Path::new("/proc/self/mountinfo")))?;
        for MountPoint { path, flags } in mount_points(&table) {
            let Ok(shown) = path.strip_prefix(NEW_ROOT) else {
                continue;
            };
            let shown = Path::new("/").join(shown);
            let is_own = shown.starts_with("/proc") || shown.starts_with("/dev/pts");
            if is_own || self.writable_around(shown.ancestors()) == Some(true) {
                continue;
            }
            // A user namespace may not clear flags such as `nosuid`, so the remount repeats them.
            let flags = flags | MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
            mount_at(None, &path, None, flags, None)?;
        }
        Ok(())
    }
}

/// Inserts the components of a path before the remaining ones.
fn prepend(rest: &mut VecDeque<OsString>, path: &Path) {
    for component in path.components().rev() {
        match component {
            Component::Normal(name) => rest.push_front(name.to_owned()),
            Component::ParentDir => rest.push_front("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
}

/// Absolute path moved below one of the roots.
fn beneath(root: &str, path: &Path) -> PathBuf {
    Path::new(root).join(path.strip_prefix("/").unwrap_or(path))
}

/// Creates a root in memory in a new mount namespace, with the old root at [`OLD_ROOT`] and an empty one at
/// [`NEW_ROOT`].
fn open_roots() -> io::Result<()> {
    // A new mount namespace: the supervisor still needs its own root.
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Shared mounts would propagate the changes below to the host.
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount_at(None, Path::new("/"), None, private, None)?;
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let options = Some("mode=0755,size=1m");
    let source = Some(Path::new("tmpfs"));
    mount_at(source, Path::new(BASE), Some("tmpfs"), plain, options)?;
    std::env::set_current_dir(BASE)?;
    let (old, new) = (
        OLD_ROOT.trim_start_matches('/'),
        NEW_ROOT.trim_start_matches('/'),
    );
    fs::create_dir(old)?;
    fs::create_dir(new)?;
    pivot_root(".", old)?;
    std::env::set_current_dir("/")?;
    // `pivot_root` accepts only a mount point.
    bind(Path::new(NEW_ROOT), Path::new(NEW_ROOT))
}

fn close_old_root() -> io::Result<()> {
    // Lazy unmount: processes still use files of the old root.
    umount2(OLD_ROOT, MntFlags::MNT_DETACH)?;
    std::env::set_current_dir(NEW_ROOT)?;
    // `pivot_root` stacks the old root on the new one at the same path; unmount it.
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    std::env::set_current_dir("/")
}

/// Bind-mounts a file or directory with all nested mounts. Creates the target.
fn bind(source: &Path, target: &Path) -> io::Result<()> {
    if source.is_dir() {
        fs::create_dir_all(target)?;
    } else if !target.exists() {
        fs::File::create(target)?;
    }
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount_at(Some(source), target, None, flags, None)
}

fn own_processes() -> io::Result<()> {
    let target = beneath(NEW_ROOT, Path::new("/proc"));
    fs::create_dir(&target)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount_at(Some(Path::new("proc")), &target, Some("proc"), flags, None)
}

fn own_terminals() -> io::Result<()> {
    let devices = beneath(NEW_ROOT, Path::new("/dev"));
    let target = devices.join("pts");
    fs::create_dir_all(&target)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    // An own instance: terminals of other processes do not exist in it.
    let options = Some("newinstance,ptmxmode=0666,mode=0620");
    let source = Some(Path::new("devpts"));
    mount_at(source, &target, Some("devpts"), flags, options)?;
    symlink("pts/ptmx", devices.join("ptmx"))?;
    for (name, link) in DESCRIPTORS {
        symlink(link, devices.join(name))?;
    }
    Ok(())
}

fn mount_at(
    source: Option<&Path>,
    target: &Path,
    kind: Option<&str>,
    flags: MsFlags,
    options: Option<&str>,
) -> io::Result<()> {
    mount(source, target, kind, flags, options).map_err(|error| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("mount {}: {error}", target.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_links_and_what_they_lead_to() {
        let name = format!("runnel-view-{}", uuid::Uuid::new_v4());
        let root = std::env::temp_dir().canonicalize().unwrap().join(name);
        fs::create_dir_all(root.join("versions/22/bin")).unwrap();
        symlink("versions/22", root.join("current")).unwrap();
        symlink(root.join("current/bin"), root.join("bin")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let mut view = View::default();
        view.show(&root.join("bin"), false).unwrap();
        let expected = [
            (root.join("bin"), Entry::Link(root.join("current/bin"))),
            (root.join("current"), Entry::Link("versions/22".into())),
            (
                root.join("versions/22/bin"),
                Entry::Bind { is_writable: false },
            ),
        ];
        assert_eq!(view.0, expected.into());
        assert!(view.show(&root.join("loop"), false).is_err());
        assert!(view.show(&root.join("absent"), false).is_err());
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn mounts_outermost_directories_and_writable_ones_within() {
        let bind = |is_writable| Entry::Bind { is_writable };
        let entries = [
            ("/opt", bind(false)),
            ("/opt/link", Entry::Link("x".into())),
            ("/opt/tool", bind(false)),
            ("/opt/work", bind(true)),
            ("/opt/work/library", bind(false)),
            ("/srv/link", Entry::Link("y".into())),
        ];
        let view = View(entries.map(|(path, entry)| (path.into(), entry)).into());
        let mounted: Vec<_> = view.outermost().map(|(path, _)| path).collect();
        assert_eq!(mounted, ["/opt", "/opt/work", "/srv/link"].map(Path::new));
        let around = |path| view.writable_around(Path::new(path).ancestors());
        assert_eq!(around("/opt/tool/x"), Some(false));
        assert_eq!(around("/opt/work/x"), Some(true));
        assert_eq!(around("/srv/x"), None);
    }
}
