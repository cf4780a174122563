//! What the host can offer to runs. Declarations only: granting is the agents' business.

use std::path::PathBuf;

use serde_json::Value;

use super::table::{Reported, Table, name, text};

/// `[[skills]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkillEntry {
    pub skill_name: String,
    pub display_name: Option<String>,
    pub description: Option<String>,
    /// The package: where its `SKILL.md` stands.
    pub directory: PathBuf,
}

/// `[[skill_directories]]`: each directory in it that has a `SKILL.md` is a skill of the directory's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkillDirectoryEntry {
    pub directory: PathBuf,
}

impl SkillDirectoryEntry {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let directory = table.required("directory", |value| text(value).map(PathBuf::from));
        table.close()?;
        Ok(Self {
            directory: directory?,
        })
    }
}

/// Whether `[[skills]]` would take the name.
pub fn check_skill_name(text: &str) -> Result<(), &'static str> {
    name(Value::from(text)).map(|_| ())
}

impl SkillEntry {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let skill_name = table.required("skill_name", name);
        let display_name = table.optional("display_name", name);
        let description = table.optional("description", text);
        let directory = table.optional("directory", |value| text(value).map(PathBuf::from));
        let directory = directory.and_then(|directory| {
            let message = "is required: name the directory in which the skill's SKILL.md stands";
            directory.ok_or_else(|| table.fault("directory", message))
        });
        table.close()?;
        Ok(Self {
            skill_name: skill_name?,
            display_name: display_name?,
            description: description?,
            directory: directory?,
        })
    }
}
