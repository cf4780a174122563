//! A table of `runnel.toml`, and its comparison with an existing file.

use std::fmt::Write as _;

use protocol::JsonObject;
use serde_json::{Value, json};

use super::toml_text::{comment, key, value};

/// One table of `runnel.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct MigrationTable {
    pub kind: TableKind,
    pub name: String,
    /// Content of the table.
    pub members: JsonObject,
    /// Text in the file, with a comment above it.
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// `[egress]`, which is not an array.
    Egress,
    ModelProvider,
    Model,
    McpServer,
    KnowledgeBase,
    RunnerEndpoint,
    Agent,
}

impl TableKind {
    /// Returns the name of the table or of its array.
    pub fn array(self) -> &'static str {
        match self {
            Self::Egress => "egress",
            Self::ModelProvider => "model_providers",
            Self::Model => "models",
            Self::McpServer => "mcp_servers",
            Self::KnowledgeBase => "knowledge_bases",
            Self::RunnerEndpoint => "runner_endpoints",
            Self::Agent => "agents",
        }
    }

    /// Returns the member that identifies a table in its array.
    fn key(self) -> &'static str {
        match self {
            Self::Model => "model_id",
            Self::KnowledgeBase => "kb_id",
            _ => "name",
        }
    }
}

impl MigrationTable {
    /// Creates `[egress]` with these lines of `allow`.
    pub fn egress(allow: &[String]) -> Self {
        let mut text = comment("Addresses in this file other than public HTTPS.");
        text.push_str("[egress]\n");
        let members = vec![("allow".to_owned(), json!(allow))];
        write_members(&mut text, &members);
        Self {
            kind: TableKind::Egress,
            name: String::new(),
            members: members.into_iter().collect(),
            text,
        }
    }

    /// Creates a table of an array, with a comment above it.
    pub(super) fn of(
        kind: TableKind,
        name: &str,
        heading: &str,
        members: Vec<(String, Value)>,
    ) -> Self {
        let mut text = comment(heading);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "[[{}]]", kind.array());
        write_members(&mut text, &members);
        Self {
            kind,
            name: name.to_owned(),
            members: members.into_iter().collect(),
            text,
        }
    }
}

/// Result of comparing a table with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableComparison {
    Missing,
    /// The file has an equal table.
    Same,
    /// The file has a different table of that name, for example after manual edits.
    Differs,
}

/// Compares a table with the settings of a file.
pub fn compare_table(settings: &Value, table: &MigrationTable) -> TableComparison {
    if table.kind == TableKind::Egress {
        return egress_standing(&settings["egress"], table);
    }
    let there = settings[table.kind.array()].as_array();
    let key = table.kind.key();
    let named = there
        .into_iter()
        .flatten()
        .find(|one| one[key] == json!(table.name));
    match named {
        None => TableComparison::Missing,
        Some(one) if one.as_object() == Some(&table.members) => TableComparison::Same,
        Some(_) => TableComparison::Differs,
    }
}

/// An `[egress]` of the file is equal if it allows each line.
fn egress_standing(there: &Value, table: &MigrationTable) -> TableComparison {
    let Some(there) = there.as_object() else {
        return TableComparison::Missing;
    };
    let lines = |members: &JsonObject| {
        let lines = members.get("allow").and_then(Value::as_array);
        lines.cloned().unwrap_or_default()
    };
    let allowed = lines(there);
    if lines(&table.members)
        .iter()
        .all(|line| allowed.contains(line))
    {
        TableComparison::Same
    } else {
        TableComparison::Differs
    }
}

pub(super) fn write_members(text: &mut String, members: &[(String, Value)]) {
    for (name, member) in members {
        text.push_str(&key(name));
        text.push_str(" = ");
        text.push_str(&value(member));
        text.push('\n');
    }
}
