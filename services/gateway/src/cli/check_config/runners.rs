//! Results of probing runner endpoints, and whether the agents fit their runners.

use domain::agent::check_agent_for;
use domain::manifest::Discovered;
use protocol::admin::{AgentSpec, EndpointSpec, Fault};
use serde_json::{Value, json};

use super::probe_table::{ProbeRow, ProbeState};
use crate::config::closest;
use runner_client::RunnerClient;
use runs::discovery::list_of;

/// Lists of the endpoints, and faults of the agents.
#[derive(Default)]
pub(super) struct Runners {
    endpoints: Vec<(String, Result<Discovered, String>)>,
    agents: Vec<CheckedAgent>,
}

struct CheckedAgent {
    name: String,
    runner_id: String,
    /// `None`: no reachable endpoint lists the runner.
    faults: Option<Vec<Fault>>,
}

impl Runners {
    /// Queries every endpoint and validates every enabled agent against its manifest.
    pub(super) async fn probe(
        client: &RunnerClient,
        endpoints: &[EndpointSpec],
        agents: &[AgentSpec],
    ) -> Self {
        let asking = endpoints.iter().map(async |spec| {
            let listed = list_of(client, spec).await;
            (spec.name.clone(), listed)
        });
        // All endpoints at once: each one has its own timeout.
        let endpoints = futures_util::future::join_all(asking).await;
        let listed = || {
            let found = endpoints
                .iter()
                .filter_map(|(_, found)| found.as_ref().ok());
            found.flat_map(|found| &found.accepted)
        };
        // A disabled agent gets no events, so it need not fit its runner.
        let enabled = agents.iter().filter(|spec| spec.enabled);
        let agents = enabled.map(|spec| CheckedAgent {
            name: spec.name.clone(),
            runner_id: spec.runner_id.to_string(),
            faults: listed()
                .find(|one| one.manifest.id == spec.runner_id)
                .map(|one| check_agent_for(spec, &one.manifest)),
        });
        Self {
            agents: agents.collect(),
            endpoints,
        }
    }

    /// True if every endpoint responded and every agent fits its runner.
    pub(super) fn is_good(&self) -> bool {
        let fits = |agent: &CheckedAgent| agent.faults.as_ref().is_some_and(Vec::is_empty);
        self.endpoints.iter().all(|(_, listed)| listed.is_ok()) && self.agents.iter().all(fits)
    }

    /// The endpoints as JSON.
    pub(super) fn endpoints_json(&self) -> Value {
        let endpoints = self.endpoints.iter().map(|(name, listed)| match listed {
            Err(error) => json!({"name": name, "state": "away", "last_error": error}),
            Ok(found) => json!({
                "name": name, "state": "ready", "runners": ids(found), "left_out": left_out(found),
            }),
        });
        endpoints.collect()
    }

    /// The agents as JSON.
    pub(super) fn agents_json(&self) -> Value {
        let agents = self.agents.iter().map(|agent| {
            json!({
                "name": agent.name, "runner_id": agent.runner_id,
                "runner_found": agent.faults.is_some(),
                "faults": agent.faults.as_deref().unwrap_or_default(),
            })
        });
        agents.collect()
    }

    /// The rows of the table.
    pub(super) fn rows(&self) -> Vec<ProbeRow> {
        let mut rows = Vec::new();
        for (name, listed) in &self.endpoints {
            let result = match listed {
                Ok(found) => Ok(ids(found).join(", ")),
                Err(error) => Err(error.clone()),
            };
            rows.push(ProbeRow::of("runner endpoint", name, &result));
            for left_out in listed.iter().flat_map(left_out) {
                let detail = format!("leaves out {left_out}");
                let row = ProbeRow::new("runner endpoint", name, ProbeState::Warning, detail);
                rows.push(row);
            }
        }
        rows.extend(self.agents.iter().map(|agent| self.agent_row(agent)));
        rows
    }

    fn agent_row(&self, agent: &CheckedAgent) -> ProbeRow {
        let runner = &agent.runner_id;
        let result = match agent.faults.as_deref() {
            None => Err(self.not_listed(runner)),
            Some([]) => Ok(runner.clone()),
            Some(faults) => {
                let faults = faults
                    .iter()
                    .map(|fault| format!("{} {}", fault.pointer, fault.message));
                let faults: Vec<_> = faults.collect();
                Err(format!(
                    "does not fit {runner} and would be refused: {}",
                    faults.join("; ")
                ))
            }
        };
        ProbeRow::of("agent", &agent.name, &result)
    }

    fn not_listed(&self, runner: &str) -> String {
        let found = self
            .endpoints
            .iter()
            .filter_map(|(_, found)| found.as_ref().ok());
        let listed: Vec<_> = found.flat_map(ids).collect();
        let meant = closest(runner, listed.iter().map(String::as_str));
        let meant = meant.map(|id| format!("; did you mean {id}?"));
        format!(
            "no endpoint that answers lists {runner}{}",
            meant.unwrap_or_default()
        )
    }
}

fn ids(found: &Discovered) -> Vec<String> {
    let accepted = found.accepted.iter();
    accepted.map(|one| one.manifest.id.to_string()).collect()
}

fn left_out(found: &Discovered) -> Vec<String> {
    let incompatible = found.incompatible.iter();
    let incompatible = incompatible.map(|one| format!("{}: {}", one.id, one.reason));
    let rejected = found.rejected.iter();
    let rejected = rejected.map(|fault| format!("{}: {}", fault.pointer, fault.message));
    incompatible.chain(rejected).collect()
}
