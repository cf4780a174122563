//! What the host can offer to runs. Declarations only: granting is the agents' business.

use super::table::{Reported, Table, name, some_of, text};

/// `[[knowledge_bases]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnowledgeBaseEntry {
    pub kb_id: String,
    pub kb_name: Option<String>,
    pub kb_type: Option<String>,
    pub operations: Vec<String>,
}

impl KnowledgeBaseEntry {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let kb_id = table.required("kb_id", name);
        let kb_name = table.optional("kb_name", name);
        let kb_type = table.optional("kb_type", name);
        let operations = table.optional("operations", some_of(&["list", "retrieve"]));
        table.close()?;
        Ok(Self {
            kb_id: kb_id?,
            kb_name: kb_name?,
            kb_type: kb_type?,
            operations: operations?.unwrap_or_else(|| owned(&["list", "retrieve"])),
        })
    }
}

/// `[[skills]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkillEntry {
    pub skill_name: String,
    pub display_name: Option<String>,
    pub description: Option<String>,
}

impl SkillEntry {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let skill_name = table.required("skill_name", name);
        let display_name = table.optional("display_name", name);
        let description = table.optional("description", text);
        table.close()?;
        Ok(Self {
            skill_name: skill_name?,
            display_name: display_name?,
            description: description?,
        })
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}
