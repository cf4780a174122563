//! Skills, and the built-in tools that read and register them.

mod package;
mod register;

use std::collections::BTreeMap;

use domain::skill::{NAME_BYTES, PATH_BYTES, skill_md};
use protocol::JsonObject;
use protocol::resources::{EffectSource, SkillResource, ToolEffect, ToolOperation, ToolResource};
use serde_json::{Value, json};

use egress::upstream::UpstreamError;

pub use package::{SkillPackage, packages_in};
pub(crate) use register::register;
pub use register::{Registrar, Registration};

/// The current version of a skill that a run registered.
#[derive(Clone, Debug)]
pub struct RegisteredPackage {
    content: String,
    /// Contents by path.
    files: BTreeMap<String, String>,
}

impl RegisteredPackage {
    /// Builds `SKILL.md` from name, description and content. `files` maps paths to contents.
    pub fn new(
        skill_name: &str,
        description: &str,
        content: &str,
        files: BTreeMap<String, String>,
    ) -> Self {
        Self {
            content: skill_md(skill_name, description, content),
            files,
        }
    }
}

/// Skills that a call may use.
pub struct SkillsOfRun<'a> {
    /// Skills granted to the run.
    pub granted: &'a [SkillResource],
    /// The skill of the call, if a run registered it and it has not changed since the grant.
    pub registered: Option<&'a RegisteredPackage>,
    /// Registers skills for the run.
    pub registrar: &'a dyn Registrar,
}

/// A configured or registered skill.
enum SkillSource<'a> {
    Package(&'a SkillPackage),
    Registered(&'a RegisteredPackage),
}

impl SkillSource<'_> {
    fn content(&self) -> &str {
        match self {
            Self::Package(package) => &package.content,
            Self::Registered(package) => &package.content,
        }
    }

    fn files(&self) -> Vec<&str> {
        match self {
            Self::Package(package) => package.files.iter().map(String::as_str).collect(),
            Self::Registered(package) => package.files.keys().map(String::as_str).collect(),
        }
    }

    /// Reads a listed file of the skill. Other paths are refused, which prevents path traversal.
    async fn read_file(&self, path: &str) -> Result<String, UpstreamError> {
        if !self.files().contains(&path) {
            let message = "the skill has no such file; activate names those that it has";
            return Err(UpstreamError::Unsupported(message.to_owned()));
        }
        match self {
            Self::Package(package) => package.read_file(path).await,
            Self::Registered(package) => Ok(package.files.get(path).cloned().unwrap_or_default()),
        }
    }
}

/// A built-in tool for runs with skills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkillTool {
    List,
    Activate,
    ReadFile,
}

impl SkillTool {
    pub const ALL: [Self; 3] = [Self::List, Self::Activate, Self::ReadFile];

    /// The tool as listed in the catalog.
    pub fn resource(self) -> ToolResource {
        let skill = json!({"type": "string", "maxLength": NAME_BYTES, "description": "A skill_name of list_skills."});
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
                    "path": {"type": "string", "maxLength": PATH_BYTES, "description": "As activate has named it."}}),
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
                // Idempotent: a repeated call has the same result and record.
                Self::Activate => ToolEffect::Write,
            }),
            idempotent: Some(true),
            effect_source: Some(EffectSource::Operator),
            approval: None,
        }
    }

    /// Calls the tool for a run.
    pub(super) async fn call(
        self,
        packages: &BTreeMap<String, SkillPackage>,
        granted: &[SkillResource],
        registered: Option<&RegisteredPackage>,
        parameters: &JsonObject,
    ) -> Result<Value, UpstreamError> {
        if self == Self::List {
            return Ok(json!({"skills": granted}));
        }
        let text = |name: &str| parameters.get(name).and_then(Value::as_str).unwrap_or("");
        let name = text("skill_name");
        let skill = granted.iter().find(|skill| skill.skill_name == name);
        // Registered skills come with the call: they are stored in the database, not in the configuration.
        let found = skill.and_then(|skill| match skill.registered {
            Some(_) => registered.map(SkillSource::Registered),
            None => packages.get(name).map(SkillSource::Package),
        });
        let (Some(skill), Some(found)) = (skill, found) else {
            let message = "there is no such skill; list_skills names those that there are";
            return Err(UpstreamError::Unsupported(message.to_owned()));
        };
        let mut result = if self == Self::Activate {
            json!({"skill_name": name, "content": found.content(), "files": found.files()})
        } else {
            let path = text("path");
            json!({"skill_name": name, "path": path, "content": found.read_file(path).await?})
        };
        if let (Some(registered), Some(result)) = (&skill.registered, result.as_object_mut()) {
            result.insert("registered".to_owned(), json!(registered));
        }
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    pub(super) fn fixture(name: &str) -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        root.join("../../tests/fixtures/skills").join(name)
    }

    #[tokio::test]
    async fn reads_granted_skills_and_their_files_only() {
        let package = SkillPackage::read(&fixture("summary"), "summary").unwrap();
        let packages = BTreeMap::from([("summary".to_owned(), package)]);
        let granted: Vec<SkillResource> =
            serde_json::from_value(json!([{"skill_name": "summary"}])).unwrap();
        let read = async |path: &str, granted: &[SkillResource]| {
            let parameters = json!({"skill_name": "summary", "path": path});
            let parameters = parameters.as_object().unwrap();
            SkillTool::ReadFile
                .call(&packages, granted, None, parameters)
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
