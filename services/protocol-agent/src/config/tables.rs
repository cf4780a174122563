//! Tables of the operator: facts about tools, and remotes.

use std::collections::BTreeSet;

use action_graph::action::{Effect, ExecutorKind, Idempotency};
use action_graph::policy::Visibility;
use protocol::JsonObject;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::read::TableReader;

/// Facts about a tool from the operator. Absent members leave the host's values unchanged.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolFacts {
    /// Effects of a call; the host's by default.
    pub effects: Option<BTreeSet<Effect>>,
    /// Safety of repeated calls.
    pub idempotency: Option<Idempotency>,
    /// Allowed readers of results.
    pub visibility: Visibility,
    /// Labels by which a declaration can select the tool.
    pub capabilities: Vec<String>,
    /// Maximum concurrent calls; unlimited by default, within the run's limit.
    pub max_parallel: Option<u8>,
}

/// Service or pipeline, called through a tool of the host.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remote {
    /// Name in the catalogue.
    pub name: String,
    /// Executor class: service or pipeline.
    #[serde(rename = "type")]
    pub kind: RemoteKind,
    /// Tool of the host that calls it.
    pub tool: String,
    /// Description for the model, one line.
    #[serde(default)]
    pub description: String,
    /// JSON Schema of its arguments; any object when absent.
    #[serde(default = "any_object")]
    pub schema: Value,
    /// Effects of a call; unknown by default.
    #[serde(default)]
    pub effects: BTreeSet<Effect>,
    /// Safety of repeated calls.
    #[serde(default)]
    pub idempotency: Idempotency,
    /// Labels by which a declaration can select the remote.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// Read-only tool of the host that reports the outcome of a call by its `key`.
    #[serde(default)]
    pub status_tool: Option<String>,
    /// Fixed arguments of every call. They override the model's.
    #[serde(default)]
    pub arguments: JsonObject,
}

/// Executor class of a remote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemoteKind {
    /// Outside service with a single operation.
    Service,
    /// Named sequence of fixed steps.
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

/// Reads the remotes. Names are unique within a class.
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
