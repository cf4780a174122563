//! Migrates LangBot's pipelines to agents and runner endpoints of `runnel.toml`.
//!
//! A pipeline with a built-in runner is migrated to the successor plugin (`families`). A pipeline with a
//! plugin's runner keeps its configuration. Secrets stay in the document and are replaced by references to
//! variables. Rows of a LangBot database become model providers, models, MCP servers and knowledge bases under
//! their ids (`catalog`).

mod catalog;
mod connectors;
mod convert;
mod endpoints;
mod families;
mod legacy;
mod other_sections;
mod pipeline;
mod policy;
mod report;
mod secret_values;
mod secrets;
mod server;
mod source;
mod tables;
pub mod toml_text;
mod warnings;

use std::collections::BTreeSet;

use protocol::admin::Fault;
use serde_json::Value;

pub use report::{
    FieldAction, FieldNote, Migration, MigrationOutcome, PipelineReport, ResourceReport, Variable,
};
pub use secret_values::{SecretValue, secret_values};
pub use tables::{MigrationTable, TableComparison, TableKind, compare_table};

use pipeline::{PipelinePlan, plan_pipeline};
use secrets::{SecretVariables, unique, variable_part};
use source::FoundPipeline;

/// Format of the runner ids of plugins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunnerIds {
    /// `plugin:langbot-team/DifyAgent/default`.
    #[default]
    Newer,
    /// `plugin:langbot/dify-agent/default`.
    Older,
}

/// Replacement of LangBot's local agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalAgentTarget {
    /// LangBot's plugin.
    #[default]
    Langbot,
    /// Runnel's Local Agent, `plugin:runnel/local-agent/default`.
    Runnel,
}

/// Target runners of a migration, and their servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MigrationTarget<'a> {
    pub ids: RunnerIds,
    pub local_agent: LocalAgentTarget,
    /// URL of `runnel-connectors`, for runners that call other services.
    pub connectors: Option<&'a str>,
    /// URL of `langbot-bridge`, for all other plugins' runners.
    pub bridge: Option<&'a str>,
}

impl From<RunnerIds> for MigrationTarget<'_> {
    fn from(ids: RunnerIds) -> Self {
        Self {
            ids,
            ..Self::default()
        }
    }
}

/// A parsed file.
#[derive(Clone, Copy, Debug)]
pub struct MigrationDocument<'a> {
    pub file: &'a str,
    pub value: &'a Value,
}

/// Plans the migration of every pipeline and catalog row. A document without both is a fault.
pub fn migrate(
    documents: &[MigrationDocument<'_>],
    to: MigrationTarget<'_>,
) -> Result<Migration, Vec<(String, Fault)>> {
    let (mut found, mut rows, mut faults) = (Vec::new(), Vec::new(), Vec::new());
    for document in documents {
        let read = source::find(document.value)
            .and_then(|pipelines| Ok((pipelines, catalog::rows(document)?)));
        match read {
            Ok((pipelines, held)) => {
                let of_file = |pipeline| (document.file, pipeline);
                found.extend(pipelines.into_iter().map(of_file));
                rows.extend(held);
            }
            Err(fault) => faults.push((document.file.to_owned(), fault)),
        }
    }
    if !faults.is_empty() {
        // All or nothing: a partial migration would look complete.
        return Err(faults);
    }
    let mut variables = BTreeSet::new();
    let planned = plan_all(&found, to, &mut variables);
    // Before the catalog: a model's kind may be known only from its use in a pipeline.
    let rankers = planned.iter().flat_map(|one| one.plan.rerank_models());
    let catalog = catalog::plan(&rows, &rankers.collect(), &mut variables);
    Ok(tables::build_tables(planned, catalog, to, &mut variables))
}

fn plan_all<'a>(
    found: &'a [(&'a str, FoundPipeline)],
    to: MigrationTarget<'_>,
    variables: &mut BTreeSet<String>,
) -> Vec<PlannedPipeline<'a>> {
    let (mut names, mut prefixes) = (BTreeSet::new(), BTreeSet::new());
    let mut planned = Vec::new();
    for (number, (file, pipeline)) in found.iter().enumerate() {
        let name = unique(&agent_name(pipeline, number), ' ', &mut names);
        // Names of agents may be equal after shortening; variables must not be.
        let prefix = unique(&variable_prefix(&name, number), '_', &mut prefixes);
        let mut vault = SecretVariables {
            space: "",
            prefix: &prefix,
            named: variables,
            removed: Vec::new(),
        };
        let plan = plan_pipeline(pipeline, to, &mut vault);
        let removed = vault.removed;
        planned.push(PlannedPipeline {
            file,
            pipeline,
            name,
            plan,
            removed,
        });
    }
    planned
}

/// A pipeline with its plan.
struct PlannedPipeline<'a> {
    file: &'a str,
    pipeline: &'a FoundPipeline,
    /// Name of its agent.
    name: String,
    plan: PipelinePlan,
    removed: Vec<secrets::Removed>,
}

fn agent_name(pipeline: &FoundPipeline, number: usize) -> String {
    let id = pipeline.uuid.as_deref();
    let name = pipeline.name.as_deref().or(id).unwrap_or_default();
    short_name(name).unwrap_or_else(|| format!("pipeline {}", number + 1))
}

/// Returns a text as a name: one line of at most 100 bytes. `None`: nothing remains.
fn short_name(text: &str) -> Option<String> {
    let plain: String = text.chars().filter(|letter| !letter.is_control()).collect();
    let mut short = String::new();
    for letter in plain.trim().chars() {
        if short.len() + letter.len_utf8() > 100 {
            break;
        }
        short.push(letter);
    }
    (!short.is_empty()).then_some(short)
}

fn variable_prefix(name: &str, number: usize) -> String {
    match variable_part(name) {
        part if part.is_empty() => format!("PIPELINE_{}", number + 1),
        part if part.starts_with(|first: char| first.is_ascii_digit()) => format!("AGENT_{part}"),
        // The gateway reads variables with this prefix as settings.
        part if part.starts_with("RUNNEL") => format!("AGENT_{part}"),
        part => part,
    }
}

#[cfg(test)]
mod tests;
