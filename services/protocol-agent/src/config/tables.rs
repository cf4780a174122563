//! The operator's tables: facts about tools, and remotes.

use std::collections::BTreeSet;

use action_graph::action::{Effect, ExecutorKind, Idempotency};
use action_graph::policy::Visibility;
use protocol::JsonObject;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::read::TableReader;

/// The operator's word about a tool. Absent members keep the host's word.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolFacts {
    /// Its effects; absent: those that the host tells.
    pub effects: Option<BTreeSet<Effect>>,
    /// Calls that are made twice.
    pub idempotency: Option<Idempotency>,
    /// Readers of its results.
    pub visibility: Visibility,
    /// Labels for matching.
    pub capabilities: Vec<String>,
    /// Calls at the same time; absent: no bound of its own.
    pub max_parallel: Option<u8>,
}

/// A service or pipeline, called through a tool of the host.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remote {
    /// Its name in the catalogue.
    pub name: String,
    /// Its class.
    #[serde(rename = "type")]
    pub kind: RemoteKind,
    /// The host's tool that calls it.
    pub tool: String,
    /// A line for the model.
    #[serde(default)]
    pub description: String,
    /// JSON Schema of its arguments; any object when absent.
    #[serde(default = "any_object")]
    pub schema: Value,
    /// Its effects; absent: unknown.
    #[serde(default)]
    pub effects: BTreeSet<Effect>,
    /// Calls that are made twice.
    #[serde(default)]
    pub idempotency: Idempotency,
    /// Labels for matching.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// The host's read-only tool that tells what became of a call, by its `key`.
    #[serde(default)]
    pub status_tool: Option<String>,
    /// Arguments that every call gets besides the model's.
    #[serde(default)]
    pub arguments: JsonObject,
}

/// Classes of remotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemoteKind {
    /// A named outside service.
    Service,
    /// A named sequence of fixed steps.
    Pipeline,
}

impl From<RemoteKind> for ExecutorKind {
    fn from(kind: RemoteKind) -> Self {
        match kind {
            RemoteKind::Service => Self::Service,
            RemoteKind::Pipeline => Self::Pipeline,
        }
    }
}

fn any_object() -> Value {
    json!({"type": "object"})
}

/// The remotes, each name once.
pub(super) fn remotes(reader: &mut TableReader<'_>) -> Vec<Remote> {
    let remotes: Vec<Remote> = reader.table("remotes");
    for (index, remote) in remotes.iter().enumerate() {
        if remote.name.trim().is_empty() {
            reader.fault(format!("/remotes/{index}/name"), "must not be empty");
        }
        if remote.tool.trim().is_empty() {
            reader.fault(
                format!("/remotes/{index}/tool"),
                "must name a tool of the host",
            );
        }
        let is_same = |other: &Remote| other.name == remote.name && other.kind == remote.kind;
        if remotes[..index].iter().any(is_same) {
            reader.fault(format!("/remotes/{index}/name"), "is listed twice");
        }
        if !remote.schema.is_object() {
            reader.fault(format!("/remotes/{index}/schema"), "must be a JSON Schema");
        }
    }
    remotes
}
