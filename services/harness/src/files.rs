//! Files that pass between the user and a workspace. No link is followed: the harness may put one anywhere.

use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::directory::Directory;

/// Where files of the user stand, below the workspace.
pub(crate) const INBOX: &str = "inbox";
/// Where the harness puts files for the user.
pub(crate) const OUTBOX: &str = "outbox";
/// Files of one prompt, and of one answer.
pub(crate) const MOST_FILES: usize = 20;
/// Bytes of one file.
pub(crate) const FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Settings that harnesses read from a workspace: they can start programs and allow tools by themselves.
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

/// Entries of the outbox that are looked at.
const MOST_ENTRIES: usize = 10_000;

/// A file for the user.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// Makes the folders of both directions.
pub(crate) fn make_folders(workspace: &Directory) -> io::Result<()> {
    for folder in [INBOX, OUTBOX] {
        workspace.make_folder(OsStr::new(folder))?;
    }
    Ok(())
}

/// Renames settings of harnesses in a workspace, so that none reads them. The names that were there.
pub(crate) fn set_settings_aside(workspace: &Directory) -> io::Result<Vec<&'static str>> {
    let mut found = Vec::new();
    for name in SETTINGS {
        if workspace.contains(OsStr::new(name)) {
            let aside = format!(
                "{}.set-aside-{}",
                name.trim_start_matches('.'),
                uuid::Uuid::new_v4().simple()
            );
            workspace.rename(OsStr::new(name), OsStr::new(&aside))?;
            found.push(name);
        }
    }
    Ok(found)
}

/// Puts a file of the user into the workspace under its name, or under a number and its name. Its path there.
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

/// Files in the outbox that were written at or after `since`, at most [`MOST_FILES`], by name. What is no plain file, and
/// what is larger than [`FILE_BYTES`], is named in the second list.
pub(crate) fn take(
    workspace: &Directory,
    since: SystemTime,
) -> io::Result<(Vec<Outgoing>, Vec<String>)> {
    let (mut taken, mut left) = (Vec::new(), Vec::new());
    let Ok(outbox) = workspace.folder(OsStr::new(OUTBOX)) else {
        return Ok((taken, left));
    };
    let names = outbox.names(MOST_ENTRIES)?.into_iter();
    let mut names: Vec<_> = names.filter_map(|name| name.into_string().ok()).collect();
    names.sort();
    for name in names {
        let Some(changed_at) = outbox.changed_at(OsStr::new(&name)) else {
            continue;
        };
        if changed_at < since {
            continue;
        }
        let file = outbox.read(OsStr::new(&name));
        let Some(file) = file.ok().filter(|_| taken.len() < MOST_FILES) else {
            left.push(name);
            continue;
        };
        let mut bytes = Vec::new();
        file.take(FILE_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > FILE_BYTES {
            left.push(name);
        } else {
            taken.push(Outgoing { name, bytes });
        }
    }
    Ok((taken, left))
}

/// A file name without a path: letters, digits and a few signs, at most 100 characters.
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

    /// The path of a workspace, and the workspace.
    fn workspace() -> (PathBuf, Directory) {
        let path = std::env::temp_dir().join(format!("runnel-files-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&path).unwrap();
        let workspace = Directory::open(&path, crate::owner::Owner::own()).unwrap();
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
    fn settings_of_harnesses_are_set_aside() {
        let (path, workspace) = workspace();
        std::fs::create_dir_all(path.join(".opencode/plugin")).unwrap();
        std::fs::write(path.join("opencode.json"), "{}").unwrap();
        assert_eq!(
            set_settings_aside(&workspace).unwrap(),
            [".opencode", "opencode.json"]
        );
        assert!(!path.join(".opencode").exists() && !path.join("opencode.json").exists());
        assert!(set_settings_aside(&workspace).unwrap().is_empty());
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn takes_new_plain_files_and_follows_no_link() {
        let (path, workspace) = workspace();
        let outbox = path.join(OUTBOX);
        std::fs::write(outbox.join("a.txt"), "a").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", outbox.join("link")).unwrap();
        std::fs::create_dir(outbox.join("folder")).unwrap();
        let (taken, left) = take(&workspace, SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(taken.len(), 1);
        assert_eq!(
            (taken[0].name.as_str(), taken[0].bytes.as_slice()),
            ("a.txt", &b"a"[..])
        );
        assert_eq!(left, ["folder", "link"]);
        let later = crate::clock::now() + Duration::from_hours(1);
        assert!(take(&workspace, later).unwrap().0.is_empty());
        std::fs::remove_dir_all(&outbox).unwrap();
        std::os::unix::fs::symlink("/etc", &outbox).unwrap();
        assert!(
            take(&workspace, SystemTime::UNIX_EPOCH)
                .unwrap()
                .0
                .is_empty()
        );
        std::fs::remove_dir_all(path).unwrap();
    }
}
