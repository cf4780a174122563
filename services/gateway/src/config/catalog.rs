//! Skills that the gateway offers. These are declarations; agents grant them.

use std::path::PathBuf;

use serde_json::Value;

use super::table::{Reported, Table, name, text};

/// `[[skills]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkillEntry {
    pub skill_name: String,
    pub display_name: Option<String>,
    pub description: Option<String>,
    /// Directory of the package, which holds `SKILL.md`.
    pub directory: PathBuf,
}

/// `[[skill_directories]]`: each subdirectory with a `SKILL.md` is a skill named after it.
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

/// Validates a name with the rule of `[[skills]]`.
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
            let message = "is required: name the directory of the skill's SKILL.md";
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
