//! Agents and endpoints as tables.

use std::collections::BTreeSet;

use protocol::JsonObject;
use serde_json::{Value, json};

use super::connectors::{HOSTS, UPSTREAM, hosts_of};
use super::endpoints::endpoints;
use super::migration_table::{MigrationTable, TableKind, write_members};
use super::other_sections::IDLE_SECONDS;
use super::pipeline::PlannedPipeline;
use super::report::{
    FieldAction, FieldNote, Migration, MigrationOutcome, PipelineReport, Variable,
};
use super::server::RunnerServer;
use super::target::MigrationTarget;
use super::toml_text::comment;

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
                value: hosts_of(plan.family.map(|family| family.plugin), &plan.config),
                read_by: format!("{read_by}: the hosts that its secret may go to"),
            });
        }
    }
}
