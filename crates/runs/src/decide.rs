//! The decision about an event. The store calls it under the conversation's lock, so it does no I/O.

mod callable;
mod decider;
mod dispatch_now;
mod draft;
mod effects;
mod input;
mod message;
mod promote_next;

use domain::admission::{Admission, ConversationLoad, admit};
use domain::binding::no_match_hint;
use domain::canonical::canonical_json;
use domain::generation::{GenerationStep, QuietConversation, next_generation};
use protocol::event::EventAccepted;
use protocol::id::RunId;
use protocol::run::RunStatus;
use store::{Candidate, DecisionFacts, EventDecision, IngestPlan, occupancy};

use crate::intake::IntakeError;
use callable::check_capacity;
use dispatch_now::context_scopes;

pub(super) use decider::Decider;
pub(super) use dispatch_now::PendingDecision;
pub(super) use draft::RunDraft;
pub(super) use effects::DecisionEffects;
pub(super) use input::{DecisionInput, ParentContext, RetryPoint};
pub(super) use message::{transcript_text, user_message};
pub(super) use promote_next::promote_next;

impl Decider {
    /// Decides about an event, without effects on limiters.
    pub(super) fn try_decide(
        &self,
        input: &DecisionInput,
        facts: &DecisionFacts,
    ) -> Result<EventDecision<DecisionEffects>, IntakeError> {
        if let Some(why) = facts.unanswerable {
            return Err(IntakeError::Unanswerable(why));
        }
        if let Some(why) = facts.child_refused {
            return Err(IntakeError::ChildRefused(why));
        }
        // Before admission, so that a restricted sender cannot observe the load of other agents.
        let Some(winner) = Self::reached_winner(input, &facts.candidates)? else {
            return Ok(store_without_run(no_agent(input, &facts.candidates)));
        };
        let occupancy = occupancy(&facts.live, winner.agent.id);
        let step = generation_of(input, facts, winner, &occupancy);
        let draft = self.draft(input, winner, &facts.candidates, step)?;
        let admission = admit(draft.policy, &occupancy);
        if admission.makes_run() {
            let endpoint = draft.row.endpoint_id;
            check_capacity(input, &facts.capacities, winner, endpoint)?;
        }
        match admission {
            Admission::Start => Ok(start(input, facts, winner, draft)),
            Admission::Queue => Ok(queue(input, draft, Vec::new())),
            Admission::Interrupt(cancelled) => Ok(queue(input, draft, cancelled)),
            Admission::Absorb(active) => {
                let mut live = facts.live.iter();
                let absorbing = live.find(|run| run.run_id == active);
                let live_sequence = absorbing.map_or(0, |run| run.last_sequence);
                Ok(absorb(input, active, live_sequence))
            }
            Admission::Busy(active) => Err(IntakeError::RunActive(active)),
            Admission::QueueFull => Err(IntakeError::QueueFull),
        }
    }
}

/// Stores the event with its run, which starts now, or at the end of a pause.
fn start(
    input: &DecisionInput,
    facts: &DecisionFacts,
    winner: &Candidate,
    draft: RunDraft,
) -> EventDecision<DecisionEffects> {
    let answer = accepted(input, draft.row.id, RunStatus::Created, None);
    let (run, inputs) = draft.into_inputs(input, facts);
    EventDecision {
        plan: IngestPlan::Start {
            run,
            attempt: None,
            message: input.message.clone(),
            answer: canonical_json(&answer),
        },
        // Without scopes the commit dispatches no run.
        context_scopes: context_scopes(&inputs).filter(|_| !winner.is_paused),
        effects: DecisionEffects {
            answer: Some(answer),
            run: Some(inputs),
            is_held: winner.is_paused,
            ..DecisionEffects::default()
        },
    }
}

/// Generation of the conversation for the winner's run.
fn generation_of(
    input: &DecisionInput,
    facts: &DecisionFacts,
    winner: &Candidate,
    occupancy: &ConversationLoad,
) -> GenerationStep {
    let spec = &winner.agent.spec;
    let current = facts.generations.of(winner.agent.id);
    let posted = input.event.input.as_ref();
    // An answer belongs to the generation of its question.
    let is_answer = posted.is_some_and(|posted| posted.interaction.is_some());
    // A live run keeps its conversation from being idle.
    let is_busy = !occupancy.active.is_empty() || occupancy.queued > 0;
    let quiet = facts.position.as_ref().filter(|_| !is_busy && !is_answer);
    let Some(position) = quiet else {
        return GenerationStep::staying(spec, current);
    };
    let quiet = QuietConversation {
        event_seq: position.event_seq,
        transcript_before: position.transcript_before,
        last_message_at: facts.generations.last_message_at,
    };
    next_generation(spec, current, quiet, input.arrived_at)
}

/// Stores the event with its run, which waits for the live ones.
fn queue(
    input: &DecisionInput,
    draft: RunDraft,
    cancelled: Vec<RunId>,
) -> EventDecision<DecisionEffects> {
    let answer = accepted(input, draft.row.id, RunStatus::Queued, None);
    EventDecision {
        plan: IngestPlan::Queue {
            run: Box::new(draft.row),
            message: input.message.clone(),
            cancel: cancelled.clone(),
            answer: canonical_json(&answer),
        },
        effects: DecisionEffects {
            answer: Some(answer),
            cancelled,
            ..DecisionEffects::default()
        },
        context_scopes: None,
    }
}

/// Stores the event for a live run to pull. `live_sequence`: the newest event of that run.
fn absorb(
    input: &DecisionInput,
    active: RunId,
    live_sequence: u64,
) -> EventDecision<DecisionEffects> {
    let answer = accepted(input, active, RunStatus::Running, Some(live_sequence));
    EventDecision {
        plan: IngestPlan::Absorb {
            run: active,
            message: input.message.clone(),
            answer: canonical_json(&answer),
        },
        effects: DecisionEffects {
            answer: Some(answer),
            ..DecisionEffects::default()
        },
        context_scopes: None,
    }
}

/// Stores the event without a run.
fn store_without_run(answer: EventAccepted) -> EventDecision<DecisionEffects> {
    EventDecision {
        plan: IngestPlan::Keep {
            answer: canonical_json(&answer),
        },
        effects: DecisionEffects {
            answer: Some(answer),
            ..DecisionEffects::default()
        },
        context_scopes: None,
    }
}

/// `live_sequence`: the newest event of the live run that absorbs this one.
fn accepted(
    input: &DecisionInput,
    run: RunId,
    status: RunStatus,
    live_sequence: Option<u64>,
) -> EventAccepted {
    EventAccepted {
        event_id: input.event_id.clone(),
        run_id: Some(run),
        run_url: Some(format!("/v1/runs/{run}")),
        status: Some(status),
        steered: live_sequence.is_some(),
        last_sequence: live_sequence,
        reason: None,
        hint: None,
    }
}

fn no_agent(input: &DecisionInput, candidates: &[Candidate]) -> EventAccepted {
    let agents = candidates.iter().map(|candidate| &candidate.agent.spec);
    EventAccepted {
        event_id: input.event_id.clone(),
        run_id: None,
        run_url: None,
        status: None,
        steered: false,
        last_sequence: None,
        reason: Some("no_agent".to_owned()),
        hint: Some(no_match_hint(agents, &input.event)),
    }
}
