//! A disk that loses power: a library that logs the writes of a process (`disk.c`, which describes the model), and the
//! cut that drops those without a sync.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Once, OnceLock};

use super::TempDirectory;
use super::repository::repository_file;
use super::skipped;

/// A directory below which processes with [`Disk::environment`] write.
pub struct Disk {
    directory: TempDirectory,
    control: File,
}

/// Fields of `struct control` in `disk.c`, by their offset.
#[derive(Clone, Copy)]
enum ControlField {
    IsOff = 0,
    IgnoresSyncs = 4,
    FailingSyncs = 8,
    WriteError = 12,
    OperationsLeft = 16,
    SyncKeepsName = 20,
    Syncs = 24,
    Writes = 28,
}

/// Size of the control file; a new one is zero.
const CONTROL: [u8; 4096] = [0; 4096];

/// A failure of the disk, until [`Disk::heal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// The next sync fails.
    OneSync,
    /// All syncs fail.
    Syncs,
    /// Writes fail for lack of space.
    Full,
    /// Writes fail as after a read-only remount.
    ReadOnly,
}

/// Unsynced writes that a cut drops. Of synced writes it drops none.
#[derive(Clone, Copy, Debug)]
pub enum PowerLoss {
    All,
    /// Each with probability one half, so that later writes survive earlier ones.
    Reordered,
    /// As `Reordered`; of half of the others only the begin or the end survives.
    Torn,
}

/// Numbers of unsynced writes that cuts drop, tear or let survive, and of names that they undo.
#[derive(Clone, Copy, Debug, Default)]
pub struct LostWrites {
    pub dropped: usize,
    pub torn: usize,
    pub surviving: usize,
    pub names: usize,
}

impl LostWrites {
    pub fn add(&mut self, more: Self) {
        self.dropped += more.dropped;
        self.torn += more.torn;
        self.surviving += more.surviving;
        self.names += more.names;
    }
}

impl Disk {
    /// Returns `None` and prints a notice without a C compiler.
    pub fn new() -> Option<Self> {
        let library = library()?;
        let directory = TempDirectory::reachable();
        fs::create_dir(directory.file("root")).unwrap();
        fs::create_dir(directory.file("logs")).unwrap();
        fs::write(directory.file("disk.so"), library).unwrap();
        fs::write(directory.file("logs/control"), CONTROL).unwrap();
        let mut control = OpenOptions::new();
        let control = control.read(true).write(true);
        Some(Self {
            control: control.open(directory.file("logs/control")).unwrap(),
            directory,
        })
    }

    /// The directory with the files of the disk.
    pub fn root(&self) -> PathBuf {
        self.directory.file("root").canonicalize().unwrap()
    }

    fn logs(&self) -> PathBuf {
        self.directory.file("logs").canonicalize().unwrap()
    }

    /// Lets processes of this user write.
    pub fn own(&self, user: u32, group: u32) {
        for path in [self.root(), self.logs(), self.logs().join("control")] {
            std::os::unix::fs::chown(path, Some(user), Some(group)).unwrap();
        }
    }

    /// Variables of a process on this disk.
    pub fn environment(&self) -> [(&'static str, String); 3] {
        let text = |path: &Path| path.display().to_string();
        [
            ("LD_PRELOAD", text(&self.directory.file("disk.so"))),
            ("RUNNEL_DISK_ROOT", text(&self.root())),
            ("RUNNEL_DISK_LOGS", text(&self.logs())),
        ]
    }

    fn set(&self, field: ControlField, value: u32) {
        let bytes = value.to_ne_bytes();
        self.control.write_all_at(&bytes, field as u64).unwrap();
    }

    fn get(&self, field: ControlField) -> u32 {
        let mut bytes = [0; 4];
        self.control
            .read_exact_at(&mut bytes, field as u64)
            .unwrap();
        u32::from_ne_bytes(bytes)
    }

    /// Logs no sync, so that a cut drops all writes: checks tests with this disk.
    pub fn ignore_syncs(&self) {
        self.set(ControlField::IgnoresSyncs, 1);
    }

    /// The first sync of a new file also makes its name durable.
    pub fn sync_keeps_names(&self) {
        self.set(ControlField::SyncKeepsName, 1);
    }

    pub fn fail(&self, fault: DiskFault) {
        match fault {
            DiskFault::OneSync => self.set(ControlField::FailingSyncs, 1),
            DiskFault::Syncs => self.set(ControlField::FailingSyncs, u32::MAX),
            DiskFault::Full => self.set(ControlField::WriteError, error::ENOSPC),
            DiskFault::ReadOnly => self.set(ControlField::WriteError, error::EROFS),
        }
    }

    /// Ends all faults. Writes before failed syncs are still lost in the next cut.
    pub fn heal(&self) {
        self.set(ControlField::FailingSyncs, 0);
        self.set(ControlField::WriteError, 0);
    }

    /// True when the fault met no sync yet.
    pub fn has_failing_sync(&self) -> bool {
        self.get(ControlField::FailingSyncs) > 0
    }

    /// Successful syncs and logged writes since the last cut.
    pub fn operations(&self) -> [u32; 2] {
        [ControlField::Syncs, ControlField::Writes].map(|field| self.get(field))
    }

    /// Stops every operation from now on. The processes must be killed next.
    pub fn cut(&self) {
        self.set(ControlField::IsOff, 1);
    }

    /// Cuts the power at a later operation.
    pub fn cut_after(&self, operations: u32) {
        self.set(ControlField::OperationsLeft, operations);
    }

    /// Drops unsynced writes and names, and turns the power on. All processes must have ended.
    pub fn lose(&self, loss: PowerLoss, random: &mut impl FnMut() -> u64) -> LostWrites {
        let mut lost = LostWrites::default();
        let mut paths = BTreeMap::new();
        collect_inodes(&self.root(), &mut paths);
        collect_inodes(&self.logs(), &mut paths);
        for (inode, log) in self.file_logs() {
            // A removed file whose directory was synced has no name any more.
            if let Some(path) = paths.get(&inode) {
                let writes = parse_log(&fs::read(log).unwrap());
                lost.add(restore(path, &writes, loss, random));
            }
        }
        lost.names = self.lose_names(loss, random);
        for entry in fs::read_dir(self.logs()).unwrap() {
            let path = entry.unwrap().path();
            if !path.ends_with("control") {
                fs::remove_file(path).unwrap();
            }
        }
        let keeps_names = self.get(ControlField::SyncKeepsName);
        self.control.write_all_at(&CONTROL, 0).unwrap();
        self.set(ControlField::SyncKeepsName, keeps_names);
        lost
    }

    /// Inode and log of each file with unsynced writes.
    fn file_logs(&self) -> Vec<(u64, PathBuf)> {
        let entries = fs::read_dir(self.logs()).unwrap();
        let logs = entries.filter_map(|entry| {
            let path = entry.unwrap().path();
            let inode = path.file_name()?.to_str()?.strip_suffix(".log")?;
            Some((inode.parse().ok()?, path))
        });
        logs.collect()
    }

    /// Undoes changes of names in reverse order. File systems journal them in order, so the first ones may survive.
    fn lose_names(&self, loss: PowerLoss, random: &mut impl FnMut() -> u64) -> usize {
        let text = fs::read_to_string(self.logs().join("names")).unwrap_or_default();
        let changes: Vec<_> = text.lines().collect();
        let surviving = match loss {
            PowerLoss::All => 0,
            PowerLoss::Reordered | PowerLoss::Torn => below(random, changes.len() + 1),
        };
        for change in changes[surviving..].iter().rev() {
            undo_name(change);
        }
        changes.len() - surviving
    }
}

/// Numbers of Linux.
mod error {
    pub const ENOSPC: u32 = 28;
    pub const EROFS: u32 = 30;
}

static NO_COMPILER: Once = Once::new();

/// The compiled library. Each test process compiles it once.
fn library() -> Option<&'static [u8]> {
    static LIBRARY: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    let compiled = LIBRARY.get_or_init(|| {
        let directory = TempDirectory::new();
        let output = directory.file("disk.so");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O2", "-pthread", "-o"]);
        let source = repository_file("tests/support/disk.c");
        let status = compiler.arg(&output).arg(source).status().ok()?;
        assert!(status.success(), "disk.c does not compile");
        Some(fs::read(output).unwrap())
    });
    if compiled.is_none() {
        skipped(&NO_COMPILER, "compiler", "there is no C compiler");
    }
    compiled.as_deref()
}

fn below(random: &mut impl FnMut() -> u64, limit: usize) -> usize {
    usize::try_from(random() % u64::try_from(limit).unwrap()).unwrap()
}

fn collect_inodes(directory: &Path, paths: &mut BTreeMap<u64, PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let status = fs::symlink_metadata(&path).unwrap();
        if status.is_dir() {
            collect_inodes(&path, paths);
        } else if status.is_file() {
            paths.insert(status.ino(), path);
        }
    }
}

// --- writes of one file ---

/// A record of a file's log: `struct record` in `disk.c`.
struct LoggedWrite {
    kind: u32,
    offset: u64,
    old_length: u64,
    new_length: u64,
    old: Vec<u8>,
    new: Vec<u8>,
}

const RESIZE: u32 = 2;
const DURABLE_WRITE: u32 = 3;
const SYNCED: u32 = 4;
const LOST: u32 = 5;
const HEADER: usize = 40;
/// Disks write sectors of this size as one.
const SECTOR: u64 = 512;

/// State of a write after a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Unsynced,
    Durable,
    Dropped,
    /// The bytes before this index survive.
    Begin(usize),
    /// The bytes from this index survive.
    End(usize),
}

/// The process may have died while it wrote the last record; then its write has not begun.
fn parse_log(mut bytes: &[u8]) -> Vec<LoggedWrite> {
    let mut writes = Vec::new();
    while bytes.len() >= HEADER {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        let [old, new] = [word(4), word(8)].map(|count| usize::try_from(count).unwrap());
        let end = HEADER + old + new;
        if bytes.len() < end {
            break;
        }
        writes.push(LoggedWrite {
            kind: word(0),
            offset: long(16),
            old_length: long(24),
            new_length: long(32),
            old: bytes[HEADER..HEADER + old].to_vec(),
            new: bytes[HEADER + old..end].to_vec(),
        });
        bytes = &bytes[end..];
    }
    writes
}

/// Undoes all writes, then repeats those that survive, in their order.
fn restore(
    path: &Path,
    writes: &[LoggedWrite],
    loss: PowerLoss,
    random: &mut impl FnMut() -> u64,
) -> LostWrites {
    let fates = fates(writes, loss, random);
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let changes = || writes.iter().filter(|write| write.kind < SYNCED);
    for write in changes().rev() {
        file.set_len(write.old_length).unwrap();
        file.write_all_at(&write.old, write.offset).unwrap();
    }
    let mut lost = LostWrites::default();
    for (write, fate) in changes().zip(fates) {
        let part = match fate {
            Fate::Unsynced | Fate::Durable => 0..write.new.len(),
            Fate::Dropped => {
                lost.dropped += 1;
                continue;
            }
            Fate::Begin(index) => 0..index,
            Fate::End(index) => index..write.new.len(),
        };
        match fate {
            Fate::Begin(_) | Fate::End(_) => lost.torn += 1,
            Fate::Unsynced => lost.surviving += 1,
            Fate::Durable | Fate::Dropped => {}
        }
        if write.kind == RESIZE {
            file.set_len(write.new_length).unwrap();
        } else {
            let offset = write.offset + u64::try_from(part.start).unwrap();
            file.write_all_at(&write.new[part], offset).unwrap();
        }
    }
    lost
}

/// Fates of all writes, without those of the marks between them.
fn fates(writes: &[LoggedWrite], loss: PowerLoss, random: &mut impl FnMut() -> u64) -> Vec<Fate> {
    let mut fates = Vec::new();
    let settle = |fates: &mut Vec<Fate>, settled| {
        let unsynced = fates.iter_mut().filter(|fate| **fate == Fate::Unsynced);
        unsynced.for_each(|fate| *fate = settled);
    };
    for write in writes {
        match write.kind {
            SYNCED => settle(&mut fates, Fate::Durable),
            LOST => settle(&mut fates, Fate::Dropped),
            DURABLE_WRITE => fates.push(Fate::Durable),
            _ => fates.push(Fate::Unsynced),
        }
    }
    let changes = writes.iter().filter(|write| write.kind < SYNCED);
    for (write, fate) in changes.zip(&mut fates) {
        if *fate == Fate::Unsynced {
            *fate = draw(write, loss, random);
        }
    }
    fates
}

/// The fate of an unsynced write.
fn draw(write: &LoggedWrite, loss: PowerLoss, random: &mut impl FnMut() -> u64) -> Fate {
    match (loss, below(random, 4)) {
        (PowerLoss::All, _) | (_, 0 | 1) => Fate::Dropped,
        (PowerLoss::Torn, 2) if write.kind != RESIZE => torn(write, random),
        _ => Fate::Unsynced,
    }
}

/// Cuts a write at a sector within it, if there is one.
fn torn(write: &LoggedWrite, random: &mut impl FnMut() -> u64) -> Fate {
    let end = write.offset + u64::try_from(write.new.len()).unwrap();
    let first = write.offset / SECTOR + 1;
    let sectors = end.div_ceil(SECTOR).saturating_sub(first);
    let Some(sector) = random().checked_rem(sectors) else {
        return Fate::Dropped;
    };
    let index = usize::try_from((first + sector) * SECTOR - write.offset).unwrap();
    match below(random, 2) {
        0 => Fate::Begin(index),
        _ => Fate::End(index),
    }
}

// --- names ---

/// Undoes one line of the log of names.
fn undo_name(line: &str) {
    let fields: Vec<_> = line.split('\t').collect();
    let [kind, path, from, link] = fields[..] else {
        return;
    };
    match kind {
        "create" if Path::new(path).is_dir() => fs::remove_dir_all(path).unwrap(),
        // Absent if it was moved to a directory that was synced.
        "create" if Path::new(path).exists() => fs::remove_file(path).unwrap(),
        "rmdir" => fs::create_dir(path).unwrap(),
        "rename" => fs::rename(path, from).unwrap(),
        _ => {}
    }
    if !link.is_empty() {
        fs::rename(link, path).unwrap();
    }
}
