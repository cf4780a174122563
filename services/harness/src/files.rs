//! File exchange between the user and a workspace. Links are never followed: a harness can place them anywhere.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::directory::Directory;

/// Folder for files from the user, relative to the workspace.
pub(crate) const INBOX: &str = "inbox";
/// Folder for files from the harness to the user, relative to the workspace.
pub(crate) const OUTBOX: &str = "outbox";
/// Maximum files of one prompt, and of one answer.
pub(crate) const MAX_FILES: usize = 20;
/// Maximum bytes of one file, in both directions.
pub(crate) const FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Settings that harnesses read from a workspace. They can start programs and grant permissions.
const SETTINGS: [&str; 9] = [
    ".opencode",
    "opencode.json",
    "opencode.jsonc",
    ".codex",
    ".claude",
    ".mcp.json",
    ".gemini",
    ".qwen",
    ".kimi-code",
];

/// Maximum entries of the outbox that are examined for one answer.
const MAX_ENTRIES: usize = 10_000;

/// Open file of the outbox.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) name: String,
    file: File,
}

/// The files of one answer.
#[derive(Debug, Default)]
pub(crate) struct AnswerFiles {
    /// At most [`MAX_FILES`].
    pub(crate) files: Vec<Outgoing>,
    /// Undelivered files, each as its name and the reason.
    undelivered: Vec<String>,
}

/// Creates [`INBOX`] and [`OUTBOX`].
pub(crate) fn make_folders(workspace: &Directory) -> io::Result<()> {
    for folder in [INBOX, OUTBOX] {
        workspace.make_folder(OsStr::new(folder))?;
    }
    Ok(())
}

/// Renames settings of harnesses in a workspace, so that no harness reads them. Returns the original names.
pub(crate) fn rename_settings(workspace: &Directory) -> io::Result<Vec<&'static str>> {
    let mut found = Vec::new();
    for name in SETTINGS {
        if workspace.contains(OsStr::new(name)) {
            // Rename, not remove: the files may be a part of the user's project.
            let renamed = format!(
                "{}.set-aside-{}",
                name.trim_start_matches('.'),
                uuid::Uuid::new_v4().simple()
            );
            workspace.rename(OsStr::new(name), OsStr::new(&renamed))?;
            found.push(name);
        }
    }
    Ok(found)
}

/// Stores a file of the user in the inbox and returns its path. A number precedes a name that is taken.
pub(crate) fn put(workspace: &Directory, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
    let inbox = workspace.make_folder(OsStr::new(INBOX))?;
    let name = safe_name(name);
    for number in 0..1_000 {
        let name = if number == 0 {
            name.clone()
        } else {
            format!("{number}-{name}")
        };
        match inbox.create(OsStr::new(&name)) {
            Ok(mut file) => {
                file.write_all(bytes)?;
                return Ok(Path::new(INBOX).join(name));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(
        "the inbox holds too many files of that name",
    ))
}

/// Outbox files that were written or moved at or after `since`, sorted by name.
pub(crate) fn outgoing(workspace: &Directory, since: SystemTime) -> io::Result<AnswerFiles> {
    let mut found = AnswerFiles::default();
    let outbox = match workspace.folder(OsStr::new(OUTBOX)) {
        // The harness may have removed the folder. Another error, such as a planted link, is reported.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        outbox => outbox?,
    };
    let mut names = outbox.names(MAX_ENTRIES)?;
    if names.len() == MAX_ENTRIES {
        let entries = format!("entries beyond the first {MAX_ENTRIES}");
        found.undelivered.push(entries);
    }
    names.sort();
    for name in names {
        if outbox.changed_at(&name).is_none_or(|at| at < since) {
            continue;
        }
        let shown = shown(&name);
        // Open every file now: later changes of the folder cannot redirect the upload.
        match outbox.read(&name) {
            Ok(_) if found.files.len() == MAX_FILES => {
                found.record_undelivered(&shown, &format!("there are more than {MAX_FILES} files"));
            }
            Ok(file) => found.files.push(Outgoing { name: shown, file }),
            Err(_) => found.record_undelivered(&shown, "it is no plain file of the agent's"),
        }
    }
    Ok(found)
}

impl AnswerFiles {
    /// Records a file that is not delivered.
    pub(crate) fn record_undelivered(&mut self, name: &str, reason: &str) {
        self.undelivered.push(format!("{name}: {reason}"));
    }

    /// Sentence with the undelivered files, at most [`MAX_FILES`] and the number of others. `None` if there are none.
    pub(crate) fn note(&self) -> Option<String> {
        let more = self.undelivered.len().saturating_sub(MAX_FILES);
        let mut named = self.undelivered[..self.undelivered.len() - more].join("; ");
        if more > 0 {
            named = format!("{named}; {more} more");
        }
        (!named.is_empty()).then(|| format!("(Not delivered: {named}.)"))
    }
}

impl Outgoing {
    /// Reads the file. Fails with `FileTooLarge` beyond [`FILE_BYTES`].
    pub(crate) fn bytes(self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        // The file may grow while it is read, so its metadata proves nothing.
        self.file.take(FILE_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > FILE_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(bytes)
    }
}

/// Reason for a file above [`FILE_BYTES`].
pub(crate) fn too_large() -> String {
    format!("it is larger than {} MiB", FILE_BYTES / (1024 * 1024))
}

/// Entry name for messages: one line of at most 100 characters.
fn shown(name: &OsStr) -> String {
    let name = name.to_string_lossy();
    let chars = name.chars().filter(|char| !char.is_control());
    chars.take(100).collect()
}

/// File name without a path: letters, digits and a few signs, at most 100 characters.
fn safe_name(name: &str) -> String {
    let name = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let name: String = name
        .chars()
        .map(|char| {
            if char.is_alphanumeric() || "-_. ()".contains(char) {
                char
            } else {
                '_'
            }
        })
        .take(100)
        .collect();
    // No hidden file, and neither `.` nor `..`.
    let name = name.trim_matches(['.', ' ']);
    if name.is_empty() {
        "file".to_owned()
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use clock::Clock;

    /// Path and handle of a new workspace.
    fn workspace() -> (PathBuf, Directory) {
        let path = std::env::temp_dir().join(format!("runnel-files-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&path).unwrap();
        let workspace = Directory::open(&path, crate::owner::ProcessOwner::own()).unwrap();
        make_folders(&workspace).unwrap();
        (path, workspace)
    }

    #[test]
    fn names_of_the_user_stay_in_the_inbox() {
        let (path, workspace) = workspace();
        for (name, expected) in [
            ("../../etc/passwd", "inbox/passwd"),
            ("..", "inbox/file"),
            ("a\nb.txt", "inbox/a_b.txt"),
            ("passwd", "inbox/1-passwd"),
        ] {
            assert_eq!(
                put(&workspace, name, b"x").unwrap(),
                PathBuf::from(expected)
            );
        }
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn renames_settings_of_harnesses() {
        let (path, workspace) = workspace();
        std::fs::create_dir_all(path.join(".opencode/plugin")).unwrap();
        std::fs::write(path.join("opencode.json"), "{}").unwrap();
        assert_eq!(
            rename_settings(&workspace).unwrap(),
            [".opencode", "opencode.json"]
        );
        assert!(!path.join(".opencode").exists() && !path.join("opencode.json").exists());
        assert!(rename_settings(&workspace).unwrap().is_empty());
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn takes_new_plain_files_and_names_the_others() {
        let (path, workspace) = workspace();
        let outbox = path.join(OUTBOX);
        std::fs::write(outbox.join("a.txt"), "a").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", outbox.join("link")).unwrap();
        std::fs::create_dir(outbox.join("folder")).unwrap();
        let mut found = outgoing(&workspace, SystemTime::UNIX_EPOCH).unwrap();
        let note = found.note().unwrap();
        let file = found.files.pop().unwrap();
        assert_eq!(file.name, "a.txt");
        assert_eq!(file.bytes().unwrap(), b"a");
        assert!(found.files.is_empty());
        assert!(
            note.contains("folder: ") && note.contains("link: "),
            "{note}"
        );
        let later = Clock::system().now() + Duration::from_hours(1);
        let found = outgoing(&workspace, later).unwrap();
        assert!(found.files.is_empty() && found.note().is_none());
        std::fs::remove_dir_all(&outbox).unwrap();
        assert!(
            outgoing(&workspace, SystemTime::UNIX_EPOCH)
                .unwrap()
                .files
                .is_empty()
        );
        std::os::unix::fs::symlink("/etc", &outbox).unwrap();
        assert!(outgoing(&workspace, SystemTime::UNIX_EPOCH).is_err());
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn names_files_above_the_limits() {
        let (path, workspace) = workspace();
        let outbox = path.join(OUTBOX);
        for number in 0..=MAX_FILES {
            std::fs::write(outbox.join(format!("{number:02}")), "x").unwrap();
        }
        let large = File::create(outbox.join("00")).unwrap();
        large.set_len(FILE_BYTES + 1).unwrap();
        let mut found = outgoing(&workspace, SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(found.files.len(), MAX_FILES);
        assert!(
            found
                .note()
                .unwrap()
                .contains("20: there are more than 20 files")
        );
        let error = found.files.remove(0).bytes().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        for number in 0..30 {
            found.record_undelivered(&number.to_string(), "it is too large");
        }
        assert!(
            found.note().unwrap().ends_with("; 11 more.)"),
            "{:?}",
            found.note()
        );
        std::fs::remove_dir_all(path).unwrap();
    }
}
