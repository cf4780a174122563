//! What the host can offer to runs. Declarations only: granting is the agents' business.

use super::table::{Reported, Table, name, text};

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
