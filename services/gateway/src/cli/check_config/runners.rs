//! Results of probing runner endpoints, and whether the agents fit their runners.

use domain::agent::check_agent_for;
use domain::manifest::Discovered;
use protocol::admin::{AgentSpec, EndpointSpec, Fault};
use serde_json::{Value, json};

use crate::cli::output;
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
        let endpoints = futures_util::future::join_all(asking).await;
        let listed = || {
            let found = endpoints
                .iter()
                .filter_map(|(_, found)| found.as_ref().ok());
            found.flat_map(|found| &found.accepted)
        };
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

    /// Whether every endpoint responded and every agent fits its runner.
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

    /// Prints endpoints and agents.
    pub(super) fn show(&self) {
        for (name, listed) in &self.endpoints {
            match listed {
                Err(error) => output::remark(&format!("endpoint {name} is away: {error}")),
                Ok(found) => {
                    output::line(&format!("endpoint {name}: {}", ids(found).join(", ")));
                    for left_out in left_out(found) {
                        output::remark(&format!("endpoint {name} leaves out {left_out}"));
                    }
                }
            }
        }
        for agent in &self.agents {
            let (name, runner) = (&agent.name, &agent.runner_id);
            match &agent.faults {
                None => output::remark(&format!(
                    "agent {name}: no endpoint that answers lists {runner}"
                )),
                Some(faults) => {
                    for fault in faults {
                        output::remark(&format!(
                            "agent {name} does not fit {runner} and would be refused: {} {}",
                            fault.pointer, fault.message
                        ));
                    }
                }
            }
        }
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
