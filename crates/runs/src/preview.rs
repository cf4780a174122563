//! Preview of an event: its decision, without storing anything.

use std::cmp::Ordering;
use std::sync::Arc;

use domain::admission::{Admission, Capacity, ConversationLoad, admit, without_steering};
use domain::agent::{check_agent, check_agent_for};
use domain::api_key::AgentReach;
use domain::authorization::AuthorizationSnapshot;
use domain::binding::{AgentMatch, agent_matches};
use domain::event::{completed, conversation_of};
use domain::generation::GenerationStep;
use protocol::admin::Fault;
use protocol::event::EventEnvelope;
use protocol::id::{AgentId, RunId, WorkspaceId};
use store::{Candidate, DecisionFacts, EndpointRecord, IngestPlan, StoreError, occupancy};
use uuid::Uuid;

use crate::decide::{Decider, DecisionInput};
use crate::deps::RunDeps;
use crate::intake::IntakeError;
use crate::own_limits::KeyAllowance;

/// Preview of an event.
pub struct Preview {
    pub event: EventEnvelope,
    /// An event of this id is stored, so posting it again starts nothing.
    pub event_is_stored: bool,
    pub outcome: Result<PreviewOutcome, IntakeError>,
    /// Every agent of the workspace: the winner or the tied ones first, then by name.
    pub candidates: Vec<PreviewCandidate>,
    /// The requested agent, else the winner.
    pub agent: Option<AgentPreview>,
}

/// Effect of posting the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreviewOutcome {
    NoAgent,
    Created,
    Queued,
    Steered(RunId),
}

/// An agent with its result in the binding.
pub struct PreviewCandidate {
    pub candidate: Candidate,
    pub standing: AgentMatch,
}

/// Preview of the event at one agent, whether it wins or not.
pub struct AgentPreview {
    pub considered: PreviewCandidate,
    /// Faults of its specification, also against the current manifest.
    pub faults: Vec<Fault>,
    pub endpoint: Option<EndpointRecord>,
    pub occupancy: ConversationLoad,
    pub admission: Admission,
    /// Live runs of the workspace, and their limit.
    pub workspace: Capacity,
    /// Live runs of the runner's endpoint, and their limit.
    pub at_endpoint: Capacity,
    /// Live runs of the agent, and their limit.
    pub of_agent: Capacity,
    /// `None`: its runner cannot be called.
    pub snapshot: Option<AuthorizationSnapshot>,
}

/// Previews decisions: asks for them and stores nothing.
pub struct EventPreviews {
    pub(super) deps: Arc<RunDeps>,
    pub(super) decider: Arc<Decider>,
}

impl EventPreviews {
    /// Previews an event, also at `agent`, else at the winner. `None`: the agent does not exist.
    pub async fn preview_event(
        &self,
        workspace: &WorkspaceId,
        event: EventEnvelope,
        agent: Option<AgentId>,
    ) -> Result<Option<Preview>, StoreError> {
        let store = &self.deps.store;
        let event_is_stored = match &event.event_id {
            Some(id) => store.events().find_event(workspace, id).await?.is_some(),
            None => false,
        };
        let event = completed(event);
        let conversation = conversation_of(&event);
        let max_live_runs = self.deps.limits.workspace_runs;
        let facts = store
            .conversations()
            .current_facts(workspace, conversation.as_ref(), max_live_runs)
            .await?;
        let input = DecisionInput {
            workspace: workspace.clone(),
            event_id: event.event_id.clone().unwrap_or_default(),
            event: Arc::new(event),
            arrived_at: self.deps.clock.now_ms(),
            only: None,
            scope: AgentReach::All,
            parent: None,
            retry_of: None,
            retry_point: None,
            posted_by: None,
            key: KeyAllowance::default(),
            trace_parent: None,
            run_id: RunId(Uuid::now_v7()),
            message: None,
            was_accepted: false,
        };
        let outcome = self.decider.try_decide(&input, &facts);
        let outcome = outcome.map(|decision| outcome_of(&decision.plan));
        let candidates = considered(&facts, &input.event);
        let chosen = candidates.iter().find(|one| match agent {
            Some(id) => one.candidate.agent.id == id,
            None => one.standing == AgentMatch::Wins,
        });
        let preview = match chosen {
            Some(chosen) => Some(self.preview_agent(&input, &facts, chosen).await?),
            None if agent.is_some() => return Ok(None),
            None => None,
        };
        Ok(Some(Preview {
            event_is_stored,
            outcome,
            candidates,
            agent: preview,
            event: Arc::unwrap_or_clone(input.event),
        }))
    }

    async fn preview_agent(
        &self,
        input: &DecisionInput,
        facts: &DecisionFacts,
        chosen: &PreviewCandidate,
    ) -> Result<AgentPreview, StoreError> {
        let candidate = &chosen.candidate;
        let spec = &candidate.agent.spec;
        let first = GenerationStep::First;
        let draft = self
            .decider
            .draft(input, candidate, &facts.candidates, first)
            .ok();
        let mut faults = check_agent(spec);
        if let Some(draft) = &draft {
            faults.extend(check_agent_for(spec, &draft.agent.manifest));
        }
        let endpoint = match &candidate.runner {
            Some(runner) => {
                let store = &self.deps.store;
                store
                    .endpoints()
                    .find_endpoint(&input.workspace, runner.endpoint_id)
                    .await?
            }
            None => None,
        };
        let occupancy = occupancy(&facts.live, candidate.agent.id);
        let policy = draft
            .as_ref()
            .map_or_else(|| without_steering(spec.concurrency), |draft| draft.policy);
        Ok(AgentPreview {
            considered: PreviewCandidate {
                candidate: candidate.clone(),
                standing: chosen.standing,
            },
            faults,
            endpoint,
            admission: admit(policy, &occupancy),
            occupancy,
            workspace: facts.capacities.workspace,
            at_endpoint: match &candidate.runner {
                Some(runner) => facts.capacities.of(runner.endpoint_id),
                None => Capacity::default(),
            },
            of_agent: facts.capacities.of_agent(candidate.agent.id),
            snapshot: draft.map(|draft| Arc::unwrap_or_clone(draft.snapshot)),
        })
    }
}

fn outcome_of(plan: &IngestPlan) -> PreviewOutcome {
    match plan {
        IngestPlan::Refuse | IngestPlan::Keep { .. } => PreviewOutcome::NoAgent,
        IngestPlan::Start { .. } => PreviewOutcome::Created,
        IngestPlan::Queue { .. } => PreviewOutcome::Queued,
        IngestPlan::Absorb { run, .. } => PreviewOutcome::Steered(*run),
    }
}

fn considered(facts: &DecisionFacts, event: &EventEnvelope) -> Vec<PreviewCandidate> {
    let agent_matches = agent_matches(&facts.candidates, |one| &one.agent.spec, event);
    let all = facts.candidates.iter().zip(agent_matches);
    let mut all: Vec<_> = all
        .map(|(candidate, standing)| PreviewCandidate {
            candidate: candidate.clone(),
            standing,
        })
        .collect();
    // A stable sort keeps the losers in the order of their names.
    all.sort_by(|one, other| match (one.standing, other.standing) {
        (AgentMatch::Loses(_), AgentMatch::Loses(_)) => Ordering::Equal,
        (AgentMatch::Loses(_), _) => Ordering::Greater,
        (_, AgentMatch::Loses(_)) => Ordering::Less,
        _ => Ordering::Equal,
    });
    all
}
