//! What a migration tells: each field, and each variable that is to be set. Never a secret.

use serde::Serialize;

use super::tables::Table;

/// The whole of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Migration {
    pub pipelines: Vec<PipelineReport>,
    /// Model providers, models, MCP servers and knowledge bases.
    pub resources: Vec<ResourceReport>,
    pub variables: Vec<Variable>,
    #[serde(skip)]
    pub tables: Vec<Table>,
    /// The services that the connectors call.
    #[serde(skip)]
    pub upstream: Vec<String>,
}

/// What became of one pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PipelineReport {
    pub file: String,
    /// Its place in the file.
    pub pointer: String,
    pub outcome: Outcome,
    /// Why nothing was made of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The name of its agent.
    pub agent: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner_id: Option<String>,
    pub fields: Vec<FieldNote>,
}

/// The outcome of one row that is no pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ResourceReport {
    pub file: String,
    /// Its place in the file.
    pub pointer: String,
    /// The array of the configuration that it belongs to, such as `models`.
    pub table: &'static str,
    /// Its name or id there.
    pub name: String,
    pub outcome: Outcome,
    /// The reason why nothing was made of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    pub fields: Vec<FieldNote>,
}

/// How a pipeline or another row ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Migrated,
    /// There is nothing to migrate: a pipeline that selects no runner, a server that is switched off.
    Nothing,
    /// Something is missing that cannot be invented.
    Blocked,
}

/// What became of one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldNote {
    pub action: Action,
    /// Where it stood; absent for what is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// Where it stands in the agent now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Kept,
    Renamed,
    /// A variable takes its place.
    Referenced,
    Defaulted,
    Dropped,
    /// It cannot be invented.
    Missing,
    /// It is taken as it is, and will not do.
    Warning,
}

/// A variable that is to be set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Variable {
    pub name: String,
    /// Where its value stands now: file and pointer. Absent when it is to be made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Who reads it.
    pub read_by: String,
}

impl FieldNote {
    pub(super) fn new(action: Action, pointer: Option<String>) -> Self {
        Self {
            action,
            pointer,
            target: None,
            why: None,
        }
    }

    pub(super) fn to(mut self, target: impl Into<String>) -> Self {
        self.target = Some(target.into());
        self
    }

    pub(super) fn because(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }
}
