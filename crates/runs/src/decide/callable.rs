//! Whether an agent can be called: its runner, the room for one more run, and the agents that it may call itself.

use domain::authorization::peers;
use protocol::id::EndpointId;
use protocol::resources::AgentResource;
use store::{Candidate, Capacities, RunnerRecord};

use crate::start::StartError;

/// The agents that runs of an agent may start child runs of, as far as its policy goes.
pub(super) fn peers_among(own: &Candidate, candidates: &[Candidate]) -> Vec<AgentResource> {
    let enabled = candidates.iter().filter(|one| one.agent.spec.enabled);
    let agents = enabled.map(|one| (one.agent.id, &one.agent.spec));
    peers((own.agent.id, &own.agent.spec), agents)
}

/// Whether one more run may live. What was accepted before is not asked.
pub(super) fn check_capacity(
    capacities: &Capacities,
    endpoint: EndpointId,
) -> Result<(), StartError> {
    if let Some(most) = capacities.workspace.reached() {
        return Err(StartError::WorkspaceFull { most });
    }
    match capacities.of(endpoint).reached() {
        Some(most) => Err(StartError::EndpointFull { most }),
        None => Ok(()),
    }
}

/// The runner of an agent, when it can be called.
pub(super) fn callable(winner: &Candidate) -> Result<&RunnerRecord, StartError> {
    match &winner.runner {
        Some(runner) if runner.is_bindable() => Ok(runner),
        Some(runner) => Err(unavailable(
            winner,
            runner.reason.as_deref().unwrap_or_default(),
        )),
        None => Err(unavailable(
            winner,
            "no endpoint serves it at the moment; register or refresh its endpoint",
        )),
    }
}

pub(super) fn unavailable(winner: &Candidate, why: &str) -> StartError {
    let status = winner.runner.as_ref().map(|runner| runner.status.as_str());
    StartError::RunnerUnavailable {
        runner: winner.agent.spec.runner_id.clone(),
        status: status.unwrap_or("unknown"),
        why: why.to_owned(),
    }
}
