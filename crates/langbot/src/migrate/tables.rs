//! Agents and endpoints as tables, and their comparison with an existing file.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use protocol::JsonObject;
use serde_json::{Value, json};

use super::connectors::{HOSTS, UPSTREAM, hosts_of};
use super::endpoints::endpoints;
use super::other_sections::IDLE_SECONDS;
use super::report::{
    FieldAction, FieldNote, Migration, MigrationOutcome, PipelineReport, Variable,
};
use super::server::RunnerServer;
use super::toml_text::{comment, key, value};
use super::{MigrationTarget, PlannedPipeline};

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

/// Creates tables and reports of all plans, after those of the catalog.
pub(super) fn build_tables(
    mut planned: Vec<PlannedPipeline<'_>>,
    catalog: Migration,
    to: MigrationTarget<'_>,
    variables: &mut BTreeSet<String>,
) -> Migration {
    let migrates = |one: &PlannedPipeline<'_>| one.plan.outcome == MigrationOutcome::Migrated;
    let mut migration = catalog;
    // Decided before any agent is written: one pipeline may stay without a filter.
    let count = planned.iter().filter(|one| migrates(one)).count();
    // Receives the events that match no other pipeline's agent.
    let open = planned
        .iter()
        .position(|one| migrates(one) && (count == 1 || one.pipeline.is_default));
    for (at, one) in planned.iter_mut().enumerate() {
        // Without a uuid, its queries would match the agents of other pipelines.
        if migrates(one) && open != Some(at) && one.pipeline.uuid.is_none() {
            one.plan.outcome = MigrationOutcome::Blocked;
            let message =
                "it has no uuid: with several pipelines, its queries cannot be identified";
            one.plan.message = Some(message.to_owned());
        }
    }
    endpoints(&planned, to, variables, &mut migration);
    for (at, mut one) in planned.into_iter().enumerate() {
        if migrates(&one) {
            agent(&mut one, open == Some(at), &mut migration);
        }
        let PlannedPipeline {
            file,
            pipeline,
            name,
            plan,
            ..
        } = one;
        migration.pipelines.push(PipelineReport {
            file: file.to_owned(),
            pointer: pipeline.pointer.clone(),
            outcome: plan.outcome,
            message: plan.message,
            agent: name,
            runner_id: plan.runner_id,
            fields: plan.notes,
        });
    }
    migration
}

fn agent(one: &mut PlannedPipeline<'_>, is_open: bool, migration: &mut Migration) {
    let plan = &mut one.plan;
    let runner_id = plan.runner_id.clone().unwrap_or_default();
    let uses_host = plan.family.is_some_and(|family| family.uses_host);
    // LangBot's local runner accepts messages during a run; services answer one at a time.
    let concurrency = if uses_host { "steer" } else { "enqueue" };
    let mut members = vec![
        ("name".to_owned(), json!(one.name)),
        ("event_types".to_owned(), json!(["message.received"])),
        ("scope".to_owned(), json!({"kind": "global"})),
    ];
    let mut note = |target: &str, why: &str| {
        let note = FieldNote::new(FieldAction::Defaulted, None).to(target);
        plan.notes.push(note.because(why));
    };
    if let Some(uuid) = one.pipeline.uuid.as_ref().filter(|_| !is_open) {
        members.push(("filters".to_owned(), json!({"pipeline_id": [uuid]})));
        // A higher priority than the open agent, which matches every event.
        members.push(("priority".to_owned(), json!(1)));
        note(
            "filters",
            "only events of this pipeline: its queries, and those of the plugin RunnelAgent",
        );
    } else {
        note(
            "scope",
            "every message that matches no other pipeline's agent",
        );
    }
    members.push(("runner_id".to_owned(), json!(runner_id)));
    members.push(("concurrency".to_owned(), json!(concurrency)));
    note(
        "concurrency",
        if uses_host {
            "a message that comes during a run goes into it, where the runner can be steered"
        } else {
            "a session had one run at a time"
        },
    );
    if let Some(seconds) = plan.idle_seconds {
        members.push((IDLE_SECONDS.to_owned(), json!(seconds)));
    }
    let scopes = json!(["conversation", "actor", "subject", "runner"]);
    members.push((
        "state_policy".to_owned(),
        json!({"enabled": true, "scopes": scopes}),
    ));
    note("state_policy", "a pipeline's runs had all four scopes");
    if !plan.policy.is_empty() {
        members.push((
            "resource_policy".to_owned(),
            Value::Object(plan.policy.clone()),
        ));
    }
    let mut text = comment(&format!(
        "{}: {}{}",
        one.name, one.file, one.pipeline.pointer
    ));
    text.push_str("[[agents]]\n");
    write_members(&mut text, &members);
    let mut members: JsonObject = members.into_iter().collect();
    if !plan.config.is_empty() {
        text.push_str("[agents.config]\n");
        write_members(&mut text, &plan.config);
        members.insert(
            "config".to_owned(),
            Value::Object(plan.config.iter().cloned().collect()),
        );
    }
    migration.tables.push(MigrationTable {
        kind: TableKind::Agent,
        name: one.name.clone(),
        members,
        text,
    });
    outside(one, &runner_id, migration);
}

/// Collects the addresses and variables of an agent's runner.
fn outside(one: &mut PlannedPipeline<'_>, runner_id: &str, migration: &mut Migration) {
    let plan = &one.plan;
    if plan.server == RunnerServer::Connectors {
        let urls = plan
            .config
            .iter()
            .filter(|(name, _)| UPSTREAM.contains(&name.as_str()));
        let urls = urls.filter_map(|(_, url)| url.as_str().map(str::to_owned));
        migration.upstream.extend(urls);
    }
    let read_by = match plan.server {
        RunnerServer::Connectors => format!("runnel-connectors, for agent {}", one.name),
        RunnerServer::Bridge => format!("the bridge, for agent {}", one.name),
        RunnerServer::Unknown | RunnerServer::LocalAgent => {
            format!("the runner {runner_id}, for agent {}", one.name)
        }
    };
    for removed in std::mem::take(&mut one.removed) {
        // Connectors send a secret only to the listed hosts.
        let hosts = format!("{}{HOSTS}", removed.variable);
        migration.variables.push(Variable {
            name: removed.variable,
            from: Some(format!("{}#{}", one.file, removed.pointer)),
            value: None,
            read_by: read_by.clone(),
        });
        if plan.server == RunnerServer::Connectors {
            migration.variables.push(Variable {
                name: hosts,
                from: None,
                value: hosts_of(plan),
                read_by: format!("{read_by}: the hosts that its secret may go to"),
            });
        }
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
