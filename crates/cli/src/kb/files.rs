//! Files to add to a knowledge base.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use domain::knowledge::{MAX_DOCUMENT_BYTES, MAX_DOCUMENTS};

use knowledge::extract::media_type_of;

/// Maximum depth of subdirectories.
const MAX_DEPTH: usize = 32;

/// A file of a supported format.
pub(super) struct FoundFile {
    /// Its name, or its path within the given directory, with `/`.
    pub(super) id: String,
    pub(super) path: PathBuf,
    pub(super) media_type: String,
}

impl FoundFile {
    /// Sets the encoding of a text file.
    pub(super) fn name_charset(&mut self, name: &str) {
        // A PDF declares its own encodings.
        if self.media_type.starts_with("text/") {
            self.media_type = format!("{}; charset={name}", self.media_type);
        }
    }

    pub(super) fn read(&self) -> anyhow::Result<Vec<u8>> {
        let unreadable = || format!("cannot read {}", self.path.display());
        let size = fs::metadata(&self.path).with_context(unreadable)?.len();
        // Checked before the file is read into memory.
        if size > MAX_DOCUMENT_BYTES as u64 {
            bail!("{} is larger than 20 MiB", self.path.display());
        }
        fs::read(&self.path).with_context(unreadable)
    }
}

/// Files of these paths; those of a directory are sorted by name. A named file of an unknown format is read as plain
/// text; in directories such files are skipped.
pub(super) fn find_files(paths: &[PathBuf]) -> anyhow::Result<Vec<FoundFile>> {
    let mut found = Vec::new();
    for path in paths {
        let facts =
            fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
        if facts.is_dir() {
            search(path, path, 0, &mut found)?;
            continue;
        }
        let name = path.file_name().unwrap_or_default();
        // The user named this file, so an unknown format is no reason to skip it.
        found.push(FoundFile {
            id: name.to_string_lossy().into_owned(),
            path: path.clone(),
            media_type: media_type(path).unwrap_or("text/plain").to_owned(),
        });
    }
    Ok(found)
}

fn search(
    root: &Path,
    directory: &Path,
    depth: usize,
    found: &mut Vec<FoundFile>,
) -> anyhow::Result<()> {
    let unreadable = || format!("cannot read {}", directory.display());
    let mut entries: Vec<_> = fs::read_dir(directory)
        .with_context(unreadable)?
        .collect::<Result<_, _>>()
        .with_context(unreadable)?;
    // File systems return entries in any order; the upload has a stable one.
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        // Hidden files, such as those of `.git`, are no documents.
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        // Symbolic links are not followed.
        let kind = entry.file_type().with_context(unreadable)?;
        if kind.is_dir() && depth < MAX_DEPTH {
            search(root, &path, depth + 1, found)?;
        } else if kind.is_file()
            && let Some(media_type) = media_type(&path)
        {
            if found.len() as u64 == MAX_DOCUMENTS {
                bail!("there are more than {MAX_DOCUMENTS} files; name fewer directories");
            }
            // Slashes on every system: the id is part of a URL.
            let within = path.strip_prefix(root).unwrap_or(&path);
            let parts = within
                .components()
                .map(|part| part.as_os_str().to_string_lossy());
            found.push(FoundFile {
                id: parts.collect::<Vec<_>>().join("/"),
                media_type: media_type.to_owned(),
                path,
            });
        }
    }
    Ok(())
}

fn media_type(path: &Path) -> Option<&'static str> {
    media_type_of(&path.file_name()?.to_string_lossy())
}
