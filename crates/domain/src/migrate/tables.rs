//! The agents and endpoints as tables, and how they stand to a file that is there already.

use std::collections::BTreeSet;

use protocol::JsonObject;
use serde_json::{Value, json};

use super::Planned;
use super::families::OWN_LOCAL_AGENT;
use super::report::{Action, FieldNote, Migration, Outcome, PipelineReport, Variable};
use super::secrets::{unique, variable_part};
use super::toml_text::{comment, key, value};

/// One `[[agents]]` or `[[runner_endpoints]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    pub kind: TableKind,
    pub name: String,
    /// What the text says.
    pub members: JsonObject,
    /// As it stands in the file, with a comment above it.
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    RunnerEndpoint,
    Agent,
}

impl TableKind {
    /// The name of the array in the file.
    pub fn array(self) -> &'static str {
        match self {
            Self::RunnerEndpoint => "runner_endpoints",
            Self::Agent => "agents",
        }
    }
}

/// How a table stands to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Missing,
    /// It is there as it would be written.
    Same,
    /// One of that name is there and says something else: somebody went on with it.
    Differs,
}

/// How a table stands to the settings of a file.
pub fn standing(settings: &Value, table: &Table) -> Standing {
    let there = settings[table.kind.array()].as_array();
    let named = there
        .into_iter()
        .flatten()
        .find(|one| one["name"] == json!(table.name));
    match named {
        None => Standing::Missing,
        Some(one) if one.as_object() == Some(&table.members) => Standing::Same,
        Some(_) => Standing::Differs,
    }
}

/// Makes tables and reports of all plans.
pub(super) fn lay_out(
    mut planned: Vec<Planned<'_>>,
    variables: &mut BTreeSet<String>,
) -> Migration {
    let migrates = |one: &Planned<'_>| one.plan.outcome == Outcome::Migrated;
    let mut migration = Migration {
        pipelines: Vec::new(),
        variables: Vec::new(),
        tables: Vec::new(),
    };
    let count = planned.iter().filter(|one| migrates(one)).count();
    // Who gets the events that no other pipeline's agent wants.
    let open = planned
        .iter()
        .position(|one| migrates(one) && (count == 1 || one.pipeline.is_default));
    for (at, one) in planned.iter_mut().enumerate() {
        if migrates(one) && open != Some(at) && one.pipeline.uuid.is_none() {
            one.plan.outcome = Outcome::Blocked;
            let message =
                "it has no uuid: among several pipelines nothing tells which queries are its own";
            one.plan.message = Some(message.to_owned());
        }
    }
    endpoints(&planned, variables, &mut migration);
    for (at, mut one) in planned.into_iter().enumerate() {
        if migrates(&one) {
            agent(&mut one, open == Some(at), &mut migration);
        }
        let Planned {
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

/// A stub for each runner: who serves it is not in any pipeline.
fn endpoints(planned: &[Planned<'_>], variables: &mut BTreeSet<String>, migration: &mut Migration) {
    let (mut served, mut names) = (BTreeSet::new(), BTreeSet::new());
    for one in planned {
        let Some(id) = one
            .plan
            .runner_id
            .as_ref()
            .filter(|_| one.plan.outcome == Outcome::Migrated)
        else {
            continue;
        };
        if !served.insert(id.clone()) {
            continue;
        }
        let name = unique(plugin_of(id), '-', &mut names);
        let variable = format!("{}_RUNNER_SECRET", variable_part(&name));
        let variable = unique(&variable, '_', variables);
        let mut members = vec![
            ("name".to_owned(), json!(name)),
            (
                "base_url".to_owned(),
                json!(format!("https://{}.invalid", host_label(&name))),
            ),
            ("secret".to_owned(), json!(format!("env:{variable}"))),
        ];
        if one.plan.snapshots {
            members.push(("delta_mode".to_owned(), json!("snapshot")));
        }
        let who = if id == OWN_LOCAL_AGENT {
            "Runnel's own Local Agent, the program local-agent"
        } else {
            id
        };
        let mut text = comment(&format!(
            "Serves {who}. Fill in its address: .invalid leads nowhere."
        ));
        text.push_str("[[runner_endpoints]]\n");
        write_members(&mut text, &members);
        migration.tables.push(Table {
            kind: TableKind::RunnerEndpoint,
            name: name.clone(),
            members: members.into_iter().collect(),
            text,
        });
        migration.variables.push(Variable {
            name: variable,
            from: None,
            read_by: format!(
                "the gateway and the runner of endpoint {name}: whsec_ and base64, \
                for example echo \"whsec_$(openssl rand -base64 32)\""
            ),
        });
    }
}

fn agent(one: &mut Planned<'_>, is_open: bool, migration: &mut Migration) {
    let plan = &mut one.plan;
    let runner_id = plan.runner_id.clone().unwrap_or_default();
    let uses_host = plan.family.is_some_and(|family| family.uses_host);
    let concurrency = if uses_host { "steer" } else { "enqueue" };
    let mut members = vec![
        ("name".to_owned(), json!(one.name)),
        ("event_types".to_owned(), json!(["message.received"])),
        ("scope".to_owned(), json!({"kind": "global"})),
    ];
    let mut note = |target: &str, why: &str| {
        let note = FieldNote::new(Action::Defaulted, None).to(target);
        plan.notes.push(note.because(why));
    };
    if let Some(uuid) = one.pipeline.uuid.as_ref().filter(|_| !is_open) {
        members.push(("filters".to_owned(), json!({"pipeline_id": [uuid]})));
        members.push(("priority".to_owned(), json!(1)));
        note(
            "filters",
            "only queries of this pipeline; they come by POST /v1/adapters/pipeline/queries",
        );
    } else {
        note(
            "scope",
            "every message that no other pipeline's agent wants",
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
    migration.tables.push(Table {
        kind: TableKind::Agent,
        name: one.name.clone(),
        members,
        text,
    });
    let removed = std::mem::take(&mut one.removed);
    migration
        .variables
        .extend(removed.into_iter().map(|removed| Variable {
            name: removed.variable,
            from: Some(format!("{}#{}", one.file, removed.pointer)),
            read_by: format!("the runner {runner_id}, for agent {}", one.name),
        }));
}

fn write_members(text: &mut String, members: &[(String, Value)]) {
    for (name, member) in members {
        text.push_str(&key(name));
        text.push_str(" = ");
        text.push_str(&value(member));
        text.push('\n');
    }
}

/// The middle part of a runner's id.
fn plugin_of(id: &str) -> &str {
    id.split('/').nth(1).unwrap_or(id)
}

/// A name as a label of a host: lower-case letters and digits.
fn host_label(name: &str) -> String {
    let label: String = name
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|letter| letter.to_ascii_lowercase())
        .take(60)
        .collect();
    if label.is_empty() {
        "runner".to_owned()
    } else {
        label
    }
}
