//! Migration report: each field, and each variable to set, without secrets.

use serde::Serialize;

use super::migration_table::MigrationTable;
use domain::form::escape_pointer;

/// Result of a migration.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Migration {
    pub pipelines: Vec<PipelineReport>,
    /// Model providers, models, MCP servers and knowledge bases.
    pub resources: Vec<ResourceReport>,
    pub variables: Vec<Variable>,
    #[serde(skip)]
    pub tables: Vec<MigrationTable>,
    /// Services that the connectors call.
    #[serde(skip)]
    pub upstream: Vec<String>,
}

/// Result of one pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PipelineReport {
    pub file: String,
    /// Pointer in the file.
    pub pointer: String,
    pub outcome: MigrationOutcome,
    /// Reason for which it was not migrated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Name of its agent.
    pub agent: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner_id: Option<String>,
    pub fields: Vec<FieldNote>,
}

/// Result of one catalog row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ResourceReport {
    pub file: String,
    /// Pointer in the file.
    pub pointer: String,
    /// Array of the configuration, such as `models`.
    pub table: &'static str,
    /// Name or id in the array.
    pub name: String,
    pub outcome: MigrationOutcome,
    /// Reason for which it was not migrated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    pub fields: Vec<FieldNote>,
}

/// Outcome of a pipeline or row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MigrationOutcome {
    Migrated,
    /// Nothing to migrate: a pipeline without a runner, or a disabled server.
    Nothing,
    /// A required value is missing.
    Blocked,
}

/// Result of one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldNote {
    pub action: FieldAction,
    /// Old pointer. Absent for a new field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// New position in the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldAction {
    Kept,
    Renamed,
    /// A variable replaces it.
    Referenced,
    Defaulted,
    Dropped,
    /// Required, without a default.
    Missing,
    /// Kept unchanged, but will not work.
    Warning,
}

/// A variable to set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Variable {
    pub name: String,
    /// File and pointer of its current value. Absent for a new value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Its value, if it is known and no secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The program that reads it.
    pub read_by: String,
}

impl FieldNote {
    pub(super) fn new(action: FieldAction, pointer: Option<String>) -> Self {
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

/// Returns the pointer of a member.
pub(super) fn member(pointer: &str, name: &str) -> String {
    format!("{pointer}/{}", escape_pointer(name))
}
