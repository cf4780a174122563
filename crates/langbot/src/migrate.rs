//! Migrates LangBot's pipelines to agents and runner endpoints of `runnel.toml`.
//!
//! A pipeline with a built-in runner is migrated to the successor plugin (`families`). A pipeline with a
//! plugin's runner keeps its configuration. Secrets stay in the document and are replaced by references to
//! variables. Rows of a LangBot database become model providers, models, MCP servers and knowledge bases under
//! their ids (`catalog`).

mod catalog;
mod connectors;
mod convert;
mod draft;
mod endpoints;
mod families;
mod legacy;
mod migration_table;
mod other_sections;
mod pipeline;
mod policy;
mod report;
mod secret_values;
mod secrets;
mod server;
mod source;
mod tables;
mod target;
pub mod toml_text;
mod warnings;

use std::collections::BTreeSet;

use protocol::admin::Fault;

pub use migration_table::{MigrationTable, TableComparison, TableKind, compare_table};
pub use report::{
    FieldAction, FieldNote, Migration, MigrationOutcome, PipelineReport, ResourceReport, Variable,
};
pub use secret_values::{SecretValue, secret_values};
pub use source::MigrationDocument;
pub use target::{LocalAgentTarget, MigrationTarget, RunnerIds};

use convert::short_name;
use pipeline::{PlannedPipeline, plan_pipeline};
use secrets::{SecretVariables, unique, variable_part};
use source::FoundPipeline;

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

fn agent_name(pipeline: &FoundPipeline, number: usize) -> String {
    let id = pipeline.uuid.as_deref();
    let name = pipeline.name.as_deref().or(id).unwrap_or_default();
    short_name(name).unwrap_or_else(|| format!("pipeline {}", number + 1))
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
