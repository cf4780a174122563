//! From LangBot's pipelines to agents and runner endpoints of `runnel.toml`.
//!
//! A pipeline that still selects a built-in runner is brought to the plugin that took its place
//! (`families`); one that selects a plugin's runner keeps its configuration. Secrets never leave the
//! document: references to variables take their place.

mod convert;
mod families;
mod legacy;
mod pipeline;
mod policy;
mod report;
mod secrets;
mod source;
mod tables;
pub mod toml_text;
mod warnings;

use std::collections::BTreeSet;

use protocol::admin::Fault;
use serde_json::Value;

pub use report::{Action, FieldNote, Migration, Outcome, PipelineReport, Variable};
pub use tables::{Standing, Table, TableKind, standing};

use pipeline::{Plan, plan_pipeline};
use secrets::{Vault, unique, variable_part};
use source::Found;

/// Which ids the runners of the plugins have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunnerIds {
    /// `plugin:langbot-team/DifyAgent/default`.
    #[default]
    Newer,
    /// `plugin:langbot/dify-agent/default`.
    Older,
}

/// Which runner takes the place of LangBot's local agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalAgent {
    /// LangBot's plugin.
    #[default]
    Langbot,
    /// Runnel's own, `plugin:runnel/local-agent/default`.
    Runnel,
}

/// The runners that agents are bound to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    pub ids: RunnerIds,
    pub local_agent: LocalAgent,
}

impl From<RunnerIds> for Target {
    fn from(ids: RunnerIds) -> Self {
        Self {
            ids,
            local_agent: LocalAgent::default(),
        }
    }
}

/// A file that was read.
#[derive(Clone, Copy, Debug)]
pub struct Document<'a> {
    pub file: &'a str,
    pub value: &'a Value,
}

/// Plans the migration of every pipeline of the documents. A document that holds none is a fault.
pub fn migrate(documents: &[Document<'_>], to: Target) -> Result<Migration, Vec<(String, Fault)>> {
    let (mut found, mut faults) = (Vec::new(), Vec::new());
    for document in documents {
        match source::find(document.value) {
            Ok(pipelines) => found.extend(
                pipelines
                    .into_iter()
                    .map(|pipeline| (document.file, pipeline)),
            ),
            Err(fault) => faults.push((document.file.to_owned(), fault)),
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let (mut names, mut prefixes, mut variables) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut planned = Vec::new();
    for (number, (file, pipeline)) in found.iter().enumerate() {
        let name = unique(&agent_name(pipeline, number), ' ', &mut names);
        let prefix = unique(&variable_prefix(&name, number), '_', &mut prefixes);
        let mut vault = Vault {
            prefix: &prefix,
            named: &mut variables,
            removed: Vec::new(),
        };
        let plan = plan_pipeline(pipeline, to, &mut vault);
        let removed = vault.removed;
        planned.push(Planned {
            file,
            pipeline,
            name,
            plan,
            removed,
        });
    }
    Ok(tables::lay_out(planned, &mut variables))
}

/// A pipeline with what is to become of it.
struct Planned<'a> {
    file: &'a str,
    pipeline: &'a Found,
    /// The name of its agent.
    name: String,
    plan: Plan,
    removed: Vec<secrets::Removed>,
}

fn agent_name(pipeline: &Found, number: usize) -> String {
    let id = pipeline.uuid.as_deref();
    let name = pipeline.name.as_deref().or(id).unwrap_or_default();
    let plain: String = name.chars().filter(|letter| !letter.is_control()).collect();
    let mut short = String::new();
    for letter in plain.trim().chars() {
        if short.len() + letter.len_utf8() > 100 {
            break;
        }
        short.push(letter);
    }
    if short.is_empty() {
        format!("pipeline {}", number + 1)
    } else {
        short
    }
}

fn variable_prefix(name: &str, number: usize) -> String {
    match variable_part(name) {
        part if part.is_empty() => format!("PIPELINE_{}", number + 1),
        part if part.starts_with(|first: char| first.is_ascii_digit()) => format!("AGENT_{part}"),
        // What begins so is read as a setting of the gateway.
        part if part.starts_with("RUNNEL") => format!("AGENT_{part}"),
        part => part,
    }
}

#[cfg(test)]
mod tests;
