//! Runner servers as `[[runner_endpoints]]`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::migration_table::{MigrationTable, TableKind};
use super::pipeline::PlannedPipeline;
use super::report::{Migration, MigrationOutcome, Variable};
use super::secrets::{unique, variable_part};
use super::server::RunnerServer;
use super::target::MigrationTarget;

/// Default address of the program `local-agent`.
const LOCAL_AGENT_URL: &str = "http://127.0.0.1:9101";

/// Creates one endpoint for each server: known servers by address, a stub for every other plugin.
pub(super) fn endpoints(
    planned: &[PlannedPipeline<'_>],
    to: MigrationTarget<'_>,
    variables: &mut BTreeSet<String>,
    migration: &mut Migration,
) {
    let (mut served, mut names) = (BTreeSet::new(), BTreeSet::new());
    let migrated = planned
        .iter()
        .filter(|one| one.plan.outcome == MigrationOutcome::Migrated);
    for one in migrated {
        let Some(id) = &one.plan.runner_id else {
            continue;
        };
        let server = one.plan.server;
        // Runners of one server share its endpoint; a stub serves only its own plugin.
        let is_new = match server {
            RunnerServer::Unknown => served.insert(id.clone()),
            _ => served.insert(format!("{server:?}")),
        };
        if !is_new {
            continue;
        }
        let name = match server {
            RunnerServer::Unknown => plugin_of(id),
            RunnerServer::LocalAgent => "local-agent",
            RunnerServer::Connectors => "connectors",
            RunnerServer::Bridge => "langbot-bridge",
        };
        let name = unique(name, '-', &mut names);
        // A secret of its own for each endpoint, so that one leak does not open the others.
        let variable = format!("{}_RUNNER_SECRET", variable_part(&name));
        let variable = unique(&variable, '_', variables);
        let mut members = vec![
            ("name".to_owned(), json!(name)),
            ("base_url".to_owned(), address(server, &name, to)),
            ("secret".to_owned(), json!(format!("env:{variable}"))),
        ];
        if server == RunnerServer::Unknown && one.plan.snapshots {
            members.push(("delta_mode".to_owned(), json!("snapshot")));
        }
        let heading = heading(server, id);
        let table = MigrationTable::of(TableKind::RunnerEndpoint, &name, &heading, members);
        migration.tables.push(table);
        migration.variables.push(Variable {
            name: variable,
            from: None,
            value: None,
            read_by: format!(
                "the gateway and the runner of endpoint {name}: whsec_ and base64, \
                for example echo \"whsec_$(openssl rand -base64 32)\""
            ),
        });
    }
}

fn address(server: RunnerServer, name: &str, to: MigrationTarget<'_>) -> Value {
    let base_url = match server {
        RunnerServer::Unknown => None,
        RunnerServer::LocalAgent => Some(LOCAL_AGENT_URL),
        RunnerServer::Connectors => to.connectors,
        RunnerServer::Bridge => to.bridge,
    };
    // The top-level domain `invalid` never resolves (RFC 2606), so a stub cannot send events to a foreign host.
    base_url.map_or_else(
        || json!(format!("https://{}.invalid", host_label(name))),
        |url| json!(url),
    )
}

/// Returns the comment above an endpoint.
fn heading(server: RunnerServer, id: &str) -> String {
    match server {
        RunnerServer::Unknown => {
            format!("Serves {id}. Fill in its address: .invalid leads nowhere.")
        }
        RunnerServer::LocalAgent => {
            "Runnel's own Local Agent, the program local-agent, at the address that it listens on by default."
                .to_owned()
        }
        RunnerServer::Connectors => {
            "The services that LangBot's runners call: runnel-connectors serve --ids langbot"
                .to_owned()
        }
        RunnerServer::Bridge => "LangBot's runner plugins: langbot-bridge PLUGIN_DIR".to_owned(),
    }
}

/// Returns the middle part of a runner id.
fn plugin_of(id: &str) -> &str {
    id.split('/').nth(1).unwrap_or(id)
}

/// Converts a name to a host label: lower-case letters and digits.
fn host_label(name: &str) -> String {
    // A label has 63 characters at most; three are reserved.
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
