//! What the host can offer to runs. Declarations only: granting is the agents' business.

use serde_json::{Map, Value};

use super::table::{Reported, Table, name, object, some_of, text, whole};

/// `[[models]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelEntry {
    pub model_id: String,
    pub model_type: String,
    pub provider: Option<String>,
    pub operations: Vec<String>,
    pub context_window_tokens: Option<u64>,
}

impl ModelEntry {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let model_id = table.required("model_id", name);
        let model_type = table.optional("model_type", name);
        let provider = table.optional("provider", name);
        let operations = table.optional(
            "operations",
            some_of(&["invoke", "stream", "count_tokens", "rerank"]),
        );
        let context_window_tokens =
            table.optional("context_window_tokens", whole(1..=1_000_000_000));
        table.close()?;
        Ok(Self {
            model_id: model_id?,
            model_type: model_type?.unwrap_or_else(|| "llm".to_owned()),
            provider: provider?,
            operations: operations?.unwrap_or_else(|| owned(&["invoke", "stream", "count_tokens"])),
            context_window_tokens: context_window_tokens?,
        })
    }
}

/// `[[tools]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolEntry {
    pub tool_name: String,
    pub tool_type: Option<String>,
    pub description: Option<String>,
    /// The JSON schema of the arguments.
    pub parameters: Option<Map<String, Value>>,
    pub operations: Vec<String>,
}

impl ToolEntry {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let tool_name = table.required("tool_name", name);
        let tool_type = table.optional("tool_type", name);
        let description = table.optional("description", text);
        let parameters = table.optional("parameters", object);
        let operations = table.optional("operations", some_of(&["detail", "call"]));
        table.close()?;
        Ok(Self {
            tool_name: tool_name?,
            tool_type: tool_type?,
            description: description?,
            parameters: parameters?,
            operations: operations?.unwrap_or_else(|| owned(&["detail", "call"])),
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
