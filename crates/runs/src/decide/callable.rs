//! Preconditions of a run: a callable runner, capacity, and the agent's peers.

use domain::authorization::peers;
use domain::manifest::resume_window;
use protocol::id::EndpointId;
use protocol::manifest::AgentRunnerManifest;
use protocol::resources::AgentResource;
use store::{Candidate, Capacities, RunnerRecord};

use super::input::{DecisionInput, RetryPoint};
use crate::intake::IntakeError;
use crate::own_limits::StartLimit;

/// Agents of which the runs of this agent may start child runs, by its policy.
pub(super) fn peers_among(own: &Candidate, candidates: &[Candidate]) -> Vec<AgentResource> {
    let enabled = candidates.iter().filter(|one| one.agent.spec.enabled);
    let agents = enabled.map(|one| (one.agent.id, &one.agent.spec));
    peers(own.agent.id, &own.agent.spec, agents)
}

/// Checks the capacity for one more run.
pub(super) fn check_capacity(
    input: &DecisionInput,
    capacities: &Capacities,
    winner: &Candidate,
    endpoint: EndpointId,
) -> Result<(), IntakeError> {
    if let Some(limit) = input.key.capacity.reached() {
        return Err(StartLimit::KeyRuns { limit }.into());
    }
    let agent = &winner.agent;
    if let Some(limit) = capacities.of_agent(agent.id).reached() {
        let full = StartLimit::AgentRuns {
            agent: agent.id,
            name: agent.spec.name.clone(),
            limit,
        };
        return Err(full.into());
    }
    if let Some(limit) = capacities.workspace.reached() {
        return Err(IntakeError::WorkspaceFull { limit });
    }
    match capacities.of(endpoint).reached() {
        Some(limit) => Err(IntakeError::EndpointFull { limit }),
        None => Ok(()),
    }
}

/// The runner of an agent, if it can be called.
pub(super) fn callable(winner: &Candidate) -> Result<&RunnerRecord, IntakeError> {
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

/// Checks that the runner with this manifest can begin after a result of an earlier run.
pub(super) fn check_point(
    point: &RetryPoint,
    manifest: &AgentRunnerManifest,
) -> Result<(), IntakeError> {
    // The results and the recorded calls are those of one runner; another one may lack the right to them.
    if manifest.id != point.runner {
        return Err(IntakeError::RunnerChanged(manifest.id.clone()));
    }
    match resume_window(manifest) {
        Some(_) => Ok(()),
        None => Err(IntakeError::NotResumable(manifest.id.clone())),
    }
}

pub(super) fn unavailable(winner: &Candidate, why: &str) -> IntakeError {
    let status = winner.runner.as_ref().map(|runner| runner.status.as_str());
    IntakeError::RunnerUnavailable {
        runner: winner.agent.spec.runner_id.clone(),
        status: status.unwrap_or("unknown"),
        why: why.to_owned(),
    }
}
