//! Configured skill packages: directories with a `SKILL.md`, read at start.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use egress::upstream::UpstreamError;

/// Main file of a skill.
const SKILL_FILE: &str = "SKILL.md";
/// Maximum size of a file of a skill.
const FILE_BYTES: u64 = 256 * 1024;
/// Maximum number of further files in one skill.
const FILES: usize = 1000;
/// Maximum depth of directories in a skill.
const DEPTH: usize = 8;

/// A skill as read at start.
#[derive(Clone, Debug)]
pub struct SkillPackage {
    directory: PathBuf,
    /// Description from the front matter.
    pub description: String,
    /// Content of `SKILL.md`.
    pub(super) content: String,
    /// Sorted paths of further files, with slashes.
    pub(super) files: Vec<String>,
}

#[derive(Deserialize)]
struct FrontMatter {
    name: String,
    description: String,
}

impl SkillPackage {
    /// Reads the package of the skill `name`. The error states the fault.
    pub fn read(directory: &Path, name: &str) -> Result<Self, String> {
        let content = read_text(&directory.join(SKILL_FILE))
            .map_err(|why| format!("{SKILL_FILE} in {} {why}", directory.display()))?;
        let front = front_matter(&content)?;
        if front.name != name {
            let message =
                "names another skill in its front matter; `name` and skill_name must be equal";
            return Err(format!("{SKILL_FILE} {message}"));
        }
        let mut files = Vec::new();
        list(directory, "", 0, &mut files)?;
        files.sort();
        Ok(Self {
            directory: directory.to_owned(),
            description: front.description,
            content,
            files,
        })
    }

    /// Reads the current content of a file.
    pub(super) async fn read_file(&self, path: &str) -> Result<String, UpstreamError> {
        let file = self.directory.join(path);
        // No symbolic links: a link could leave the directory. The file may have changed since the start.
        let metadata = tokio::fs::symlink_metadata(&file).await;
        if !metadata.is_ok_and(|found| found.is_file() && found.len() <= FILE_BYTES) {
            let message = format!("the file is gone, or larger than {} KiB", FILE_BYTES / 1024);
            return Err(UpstreamError::Unsupported(message));
        }
        let content = tokio::fs::read_to_string(&file).await;
        content.map_err(|_| UpstreamError::Unsupported("the file is no UTF-8 text".to_owned()))
    }
}

/// Subdirectories that have a `SKILL.md`, at most `max`. Symbolic links are followed.
pub fn packages_in(directory: &Path, max: usize) -> Result<Vec<PathBuf>, String> {
    let unreadable = |error: std::io::Error| format!("cannot be listed: {error}");
    let mut packages = Vec::new();
    for entry in fs::read_dir(directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        // A dangling link is listed, too, so that reading it reports the fault.
        if fs::symlink_metadata(path.join(SKILL_FILE)).is_ok() {
            packages.push(path);
        }
        if packages.len() > max {
            return Err(format!("has more than {max} skills"));
        }
    }
    packages.sort();
    Ok(packages)
}

fn front_matter(content: &str) -> Result<FrontMatter, String> {
    // Files from Windows have CRLF line ends.
    let content = content.replace("\r\n", "\n");
    let yaml = content
        .strip_prefix("---\n")
        .and_then(|rest| rest.split_once("\n---\n"))
        .map(|(yaml, _)| yaml);
    let yaml = yaml.ok_or_else(|| {
        format!(
            "{SKILL_FILE} must begin with front matter: `---`, `name: …`, `description: …`, `---`"
        )
    })?;
    serde_norway::from_str(yaml)
        .map_err(|error| format!("the front matter of {SKILL_FILE} cannot be read: {error}"))
}

/// Lists files below a directory. Symbolic links are skipped, since they may point outside.
fn list(root: &Path, below: &str, depth: usize, files: &mut Vec<String>) -> Result<(), String> {
    let unreadable = |error: std::io::Error| format!("cannot be listed: {error}");
    for entry in fs::read_dir(root.join(below)).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let kind = entry.file_type().map_err(unreadable)?;
        // A path that is not UTF-8 cannot be named in a tool call.
        let Some(name) = entry.file_name().to_str().map(ToOwned::to_owned) else {
            continue;
        };
        let path = if below.is_empty() {
            name
        } else {
            format!("{below}/{name}")
        };
        if kind.is_dir() && depth < DEPTH {
            list(root, &path, depth + 1, files)?;
        } else if kind.is_file() && path != SKILL_FILE {
            files.push(path);
        }
        // Within the loop, so that a huge directory is not listed completely.
        if files.len() > FILES {
            return Err(format!("has more than {FILES} files"));
        }
    }
    Ok(())
}

fn read_text(path: &Path) -> Result<String, String> {
    let file = fs::File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let mut bytes = Vec::new();
    // One byte more than allowed, to notice an oversized file.
    file.take(FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > FILE_BYTES {
        return Err(format!("is larger than {} KiB", FILE_BYTES / 1024));
    }
    String::from_utf8(bytes).map_err(|_| "is no UTF-8 text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::tests::fixture;
    use super::*;

    #[test]
    fn reads_packages_under_their_own_name_only() {
        let package = SkillPackage::read(&fixture("summary"), "summary").unwrap();
        assert_eq!(package.description, "Makes it short.");
        assert_eq!(package.files, ["references/words.md"]);
        let error = SkillPackage::read(&fixture("summary"), "other").unwrap_err();
        assert!(error.contains("names another skill"), "{error}");
        let error = SkillPackage::read(&fixture("nowhere"), "nowhere").unwrap_err();
        assert!(error.contains("cannot be read"), "{error}");
    }

    #[test]
    fn front_matter_needs_name_and_description() {
        let good = "---\nname: a\ndescription: >\n  Two\n  lines.\nextra: [1]\n---\nBody";
        assert_eq!(front_matter(good).unwrap().description, "Two lines.\n");
        for bad in [
            "",
            "name: a",
            "---\nname: a\n",
            "---\nname: a\n---\n",
            "---\n[\n---\n",
        ] {
            assert!(front_matter(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lists_subdirectories_with_a_skill_file() {
        let found = packages_in(&fixture("."), 2).unwrap();
        let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(names, ["greeting", "summary"]);
        let error = packages_in(&fixture("."), 1).unwrap_err();
        assert!(error.contains("more than 1"), "{error}");
        assert!(packages_in(&fixture("nowhere"), 2).is_err());
        assert_eq!(packages_in(&fixture("summary"), 2), Ok(Vec::new()));
    }
}
