//! Skills: directories with a `SKILL.md`, and the gateway's own tools by which runs read them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use protocol::JsonObject;
use protocol::resources::{SkillResource, ToolEffect, ToolOperation, ToolResource};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::outbound::upstream::UpstreamError;

/// The file that makes a directory a skill.
const SKILL_FILE: &str = "SKILL.md";
/// The most bytes of any file of a skill that is given to a run.
const FILE_BYTES: u64 = 256 * 1024;
/// The most further files of one skill.
const FILES: usize = 1000;
/// How deep the directories of a skill may be.
const DEPTH: usize = 8;

/// A skill as it stood at the start.
#[derive(Clone, Debug)]
pub struct SkillPackage {
    directory: PathBuf,
    /// What its front matter says that it is for.
    pub description: String,
    /// `SKILL.md`, whole.
    content: String,
    /// Its further files, with slashes, in order.
    files: Vec<String>,
}

#[derive(Deserialize)]
struct FrontMatter {
    name: String,
    description: String,
}

impl SkillPackage {
    /// Reads the package of a skill of that name, or says what is wrong with it.
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
}

fn front_matter(content: &str) -> Result<FrontMatter, String> {
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

/// Names the files below a directory. Links are left out: they may lead anywhere.
fn list(root: &Path, below: &str, depth: usize, files: &mut Vec<String>) -> Result<(), String> {
    let unreadable = |error: std::io::Error| format!("cannot be listed: {error}");
    for entry in fs::read_dir(root.join(below)).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let kind = entry.file_type().map_err(unreadable)?;
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
        if files.len() > FILES {
            return Err(format!("has more than {FILES} files"));
        }
    }
    Ok(())
}

fn read_text(path: &Path) -> Result<String, String> {
    let file = fs::File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > FILE_BYTES {
        return Err(format!("is larger than {} KiB", FILE_BYTES / 1024));
    }
    String::from_utf8(bytes).map_err(|_| "is no UTF-8 text".to_owned())
}

/// One of the tools that a run with skills has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkillTool {
    List,
    Activate,
    ReadFile,
}

impl SkillTool {
    pub const ALL: [Self; 3] = [Self::List, Self::Activate, Self::ReadFile];

    /// How it is offered.
    pub fn resource(self) -> ToolResource {
        let skill = json!({"type": "string", "description": "A skill_name of list_skills."});
        let (name, description, properties, required) = match self {
            Self::List => (
                "list_skills",
                "Lists the skills that can be activated, with what each is for.",
                json!({}),
                json!([]),
            ),
            Self::Activate => (
                "activate",
                "Activates a skill: gives its instructions and the names of its files.",
                json!({"skill_name": skill}),
                json!(["skill_name"]),
            ),
            Self::ReadFile => (
                "read_skill_file",
                "Reads a file of a skill.",
                json!({"skill_name": skill,
                    "path": {"type": "string", "description": "As activate has named it."}}),
                json!(["skill_name", "path"]),
            ),
        };
        let parameters = json!({
            "type": "object", "properties": properties, "required": required,
            "additionalProperties": false,
        });
        ToolResource {
            tool_name: name.to_owned(),
            tool_type: Some("gateway".to_owned()),
            description: Some(description.to_owned()),
            operations: ToolOperation::ALL.to_vec(),
            parameters: parameters.as_object().cloned(),
            source: Some("gateway".to_owned()),
            effect: Some(match self {
                Self::List | Self::ReadFile => ToolEffect::Read,
                // Again, it says and records the same.
                Self::Activate => ToolEffect::Write,
            }),
        }
    }

    /// Calls it for a run that was granted these skills.
    pub(super) async fn call(
        self,
        packages: &BTreeMap<String, SkillPackage>,
        granted: &[SkillResource],
        parameters: &JsonObject,
    ) -> Result<Value, UpstreamError> {
        let text = |name: &str| parameters.get(name).and_then(Value::as_str).unwrap_or("");
        if self == Self::List {
            return Ok(json!({"skills": granted}));
        }
        let rejected = |message: String| UpstreamError::Unsupported(message);
        let name = text("skill_name");
        let is_granted = granted.iter().any(|skill| skill.skill_name == name);
        let package = packages.get(name).filter(|_| is_granted);
        let package = package.ok_or_else(|| {
            rejected("there is no such skill; list_skills names those that there are".to_owned())
        })?;
        if self == Self::Activate {
            return Ok(json!({
                "skill_name": name, "content": package.content, "files": package.files,
            }));
        }
        let path = text("path");
        // Only what was listed is read: no path leads out.
        if !package.files.iter().any(|file| file == path) {
            let message = "the skill has no such file; activate names those that it has";
            return Err(rejected(message.to_owned()));
        }
        let file = package.directory.join(path);
        let metadata = tokio::fs::symlink_metadata(&file).await;
        if !metadata.is_ok_and(|found| found.is_file() && found.len() <= FILE_BYTES) {
            let message = format!("the file is gone, or larger than {} KiB", FILE_BYTES / 1024);
            return Err(rejected(message));
        }
        let content = tokio::fs::read_to_string(&file).await;
        let content = content.map_err(|_| rejected("the file is no UTF-8 text".to_owned()))?;
        Ok(json!({"skill_name": name, "path": path, "content": content}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture(name: &str) -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        root.join("../../tests/fixtures/skills").join(name)
    }

    #[test]
    fn a_package_is_read_whole_and_by_its_own_name_alone() {
        let package = SkillPackage::read(&fixture("summary"), "summary").unwrap();
        assert_eq!(package.description, "Makes it short.");
        assert_eq!(package.files, ["references/words.md"]);
        let error = SkillPackage::read(&fixture("summary"), "other").unwrap_err();
        assert!(error.contains("names another skill"), "{error}");
        let error = SkillPackage::read(&fixture("nowhere"), "nowhere").unwrap_err();
        assert!(error.contains("cannot be read"), "{error}");
    }

    #[test]
    fn front_matter_names_the_skill_and_says_what_it_is_for() {
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

    #[tokio::test]
    async fn only_granted_skills_and_their_own_files_are_read() {
        let package = SkillPackage::read(&fixture("summary"), "summary").unwrap();
        let packages = BTreeMap::from([("summary".to_owned(), package)]);
        let granted: Vec<SkillResource> =
            serde_json::from_value(json!([{"skill_name": "summary"}])).unwrap();
        let read = async |path: &str, granted: &[SkillResource]| {
            let parameters = json!({"skill_name": "summary", "path": path});
            let parameters = parameters.as_object().unwrap();
            SkillTool::ReadFile
                .call(&packages, granted, parameters)
                .await
        };
        let words = read("references/words.md", &granted).await.unwrap();
        assert_eq!(words["content"], "Few.\n");
        assert!(read("references/words.md", &[]).await.is_err());
        for path in [
            "",
            "SKILL.md/..",
            "../summary/SKILL.md",
            "/etc/passwd",
            "references",
        ] {
            assert!(read(path, &granted).await.is_err(), "{path}");
        }
    }
}
