//! The decision about an event that was absorbed and not pulled.

use std::sync::Arc;

use domain::binding::{Resolution, resolve};
use protocol::event::EventEnvelope;
use protocol::id::{AgentId, RunId, WorkspaceId};
use store::{Candidate, CreateForEvent, SteeredEvent};
use uuid::Uuid;

use super::Deciding;
use crate::Inner;

/// Decides about an event that a run left unpulled: a run of its own, when an agent still wants it.
/// Of several with equal right, the agent of the run that left it goes on.
pub(crate) fn promote_next(
    inner: &Arc<Inner>,
    workspace: &WorkspaceId,
    agent: AgentId,
) -> CreateForEvent {
    let (inner, workspace) = (Arc::clone(inner), workspace.clone());
    Arc::new(move |left: &SteeredEvent, candidates: &[Candidate]| {
        let dropped = |why: &str| {
            tracing::warn!(
                event.id = left.event_id,
                "an absorbed event gets no run of its own: {why}"
            );
        };
        let event: EventEnvelope = serde_json::from_str(&left.envelope).ok()?;
        let winner = match resolve(candidates, |one| &one.agent.spec, &event) {
            Resolution::Winner(winner) => Some(winner),
            Resolution::Tie(_) => candidates.iter().find(|one| one.agent.id == agent),
            Resolution::Nobody => None,
        };
        let Some(winner) = winner else {
            dropped("no agent wants it any more");
            return None;
        };
        let deciding = Deciding {
            inner: &inner,
            workspace: &workspace,
            event_id: &left.event_id,
            event: &event,
            only: None,
            child: None,
            // What it came with is gone: the run begins a trace of its own.
            trace_parent: None,
            run_id: RunId(Uuid::now_v7()),
            message: None,
            was_accepted: true,
        };
        let run = deciding
            .new_run(winner, candidates)
            .inspect_err(|error| dropped(&error.to_string()));
        run.ok().map(|(run, _)| run)
    })
}
