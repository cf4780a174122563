//! Decision about a steering event that its run has left unpulled.

use std::sync::Arc;

use domain::api_key::AgentReach;
use domain::binding::{Resolution, resolve};
use domain::generation::GenerationStep;
use protocol::event::EventEnvelope;
use protocol::id::{AgentId, RunId, WorkspaceId};
use store::{Candidate, ConversationGenerations, CreateForEvent, SteeredEvent};
use uuid::Uuid;

use super::decider::Decider;
use super::input::DecisionInput;
use crate::own_limits::KeyAllowance;

/// Gives an unpulled event a run of its own if an agent still wants it. On a tie, the agent of the run that left the
/// event wins.
pub(crate) fn promote_next(
    decider: &Arc<Decider>,
    workspace: &WorkspaceId,
    agent: AgentId,
) -> CreateForEvent {
    let (decider, workspace) = (Arc::clone(decider), workspace.clone());
    let decide = move |left: &SteeredEvent,
                       candidates: &[Candidate],
                       generations: &ConversationGenerations| {
        let dropped = |why: &str| {
            tracing::warn!(
                event.id = left.event_id,
                "a waiting event gets no run: {why}"
            );
        };
        let event: EventEnvelope = serde_json::from_str(&left.envelope).ok()?;
        let winner = match resolve(candidates, |one| &one.agent.spec, &event) {
            Resolution::Winner(winner) => Some(winner),
            // The event was already given to this agent, so a tie is no conflict.
            Resolution::Tie(_) => candidates.iter().find(|one| one.agent.id == agent),
            Resolution::NoMatch => None,
        };
        let Some(winner) = winner else {
            dropped("no agent wants it any more");
            return None;
        };
        let input = DecisionInput {
            workspace: workspace.clone(),
            event_id: left.event_id.clone(),
            event: Arc::new(event),
            arrived_at: decider.deps.clock.now_ms(),
            only: None,
            scope: AgentReach::All,
            parent: None,
            retry_of: None,
            retry_point: None,
            // The event is stored without its key.
            posted_by: None,
            key: KeyAllowance::default(),
            // The span of the event is not stored, so the run begins a new trace.
            trace_parent: None,
            run_id: RunId(Uuid::now_v7()),
            // The transcript has the message since the event was absorbed.
            message: None,
            was_accepted: true,
        };
        let current = generations.of(winner.agent.id);
        let step = GenerationStep::staying(&winner.agent.spec, current);
        let draft = decider
            .draft(&input, winner, candidates, step)
            .inspect_err(|error| dropped(&error.to_string()));
        draft.ok().map(|draft| draft.row)
    };
    Arc::new(decide)
}
