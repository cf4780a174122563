//! What would become of an event now: the decision of `decide.rs`, asked for and not stored.

use std::cmp::Ordering;

use domain::admission::{Admission, Capacity, Occupancy, admit};
use domain::agent::{check_agent, check_agent_for};
use domain::authorization::AuthorizationSnapshot;
use domain::binding::{Standing, standings};
use domain::event::{completed, conversation_of};
use protocol::admin::Fault;
use protocol::event::EventEnvelope;
use protocol::id::{AgentId, RunId, WorkspaceId};
use store::{Candidate, DecisionFacts, EndpointRecord, IngestPlan, StoreError, occupancy};
use uuid::Uuid;

use crate::Runs;
use crate::decide::Deciding;
use crate::start::StartError;

/// What would become of an event now.
pub struct Preview {
    pub event: EventEnvelope,
    /// An event of this id was posted before: posting it again starts nothing.
    pub known_event: bool,
    pub outcome: Result<Outcome, StartError>,
    /// Every agent of the workspace: the winner or those that tie first, then by name.
    pub candidates: Vec<Considered>,
    /// The agent that was asked for, else the winner.
    pub agent: Option<AgentPreview>,
}

/// What posting the event would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    NoAgent,
    Created,
    Queued,
    Steered(RunId),
}

/// An agent and how it fares.
pub struct Considered {
    pub candidate: Candidate,
    pub standing: Standing,
}

/// What the event would meet at one agent, whether it wins or not.
pub struct AgentPreview {
    pub considered: Considered,
    /// What is wrong with its specification, also in the light of today's manifest.
    pub faults: Vec<Fault>,
    pub endpoint: Option<EndpointRecord>,
    pub occupancy: Occupancy,
    pub admission: Admission,
    /// Of the workspace.
    pub workspace: Capacity,
    /// Of the runner's endpoint.
    pub at_endpoint: Capacity,
    /// `None`: its runner cannot be called.
    pub snapshot: Option<AuthorizationSnapshot>,
}

impl Runs {
    /// What would become of this event now, and at this agent, else at the winner. `None`: there is
    /// no such agent.
    pub async fn preview_event(
        &self,
        workspace: &WorkspaceId,
        event: EventEnvelope,
        agent: Option<AgentId>,
    ) -> Result<Option<Preview>, StoreError> {
        let store = &self.0.store;
        let known_event = match &event.event_id {
            Some(id) => store.events().find_event(workspace, id).await?.is_some(),
            None => false,
        };
        let event = completed(event);
        let conversation = conversation_of(&event);
        let max_live_runs = self.0.limits.workspace_runs;
        let facts = store
            .conversations()
            .current_facts(workspace, conversation.as_ref(), max_live_runs)
            .await?;
        let event_id = event.event_id.clone().unwrap_or_default();
        let deciding = Deciding {
            inner: &self.0,
            workspace,
            event_id: &event_id,
            event: &event,
            only: None,
            child: None,
            trace_parent: None,
            run_id: RunId(Uuid::now_v7()),
            message: None,
            was_accepted: false,
        };
        let outcome = deciding
            .decide(&facts, None)
            .map(|(plan, _)| outcome_of(&plan));
        let candidates = considered(&facts, &event);
        let chosen = candidates.iter().find(|one| match agent {
            Some(id) => one.candidate.agent.id == id,
            None => one.standing == Standing::Wins,
        });
        let preview = match chosen {
            Some(chosen) => Some(self.preview_agent(&deciding, &facts, chosen).await?),
            None if agent.is_some() => return Ok(None),
            None => None,
        };
        Ok(Some(Preview {
            known_event,
            outcome,
            candidates,
            agent: preview,
            event,
        }))
    }

    async fn preview_agent(
        &self,
        deciding: &Deciding<'_>,
        facts: &DecisionFacts,
        chosen: &Considered,
    ) -> Result<AgentPreview, StoreError> {
        let candidate = &chosen.candidate;
        let spec = &candidate.agent.spec;
        let judged = deciding.judge(candidate, &facts.candidates).ok();
        let mut faults = check_agent(spec);
        if let Some(judged) = &judged {
            faults.extend(check_agent_for(spec, &judged.known.manifest));
        }
        let endpoint = match &candidate.runner {
            Some(runner) => {
                let store = &self.0.store;
                store
                    .endpoints()
                    .find_endpoint(deciding.workspace, runner.endpoint_id)
                    .await?
            }
            None => None,
        };
        let occupancy = occupancy(&facts.live, candidate.agent.id);
        let steerable = judged.as_ref().is_some_and(|judged| judged.steerable);
        Ok(AgentPreview {
            considered: Considered {
                candidate: candidate.clone(),
                standing: chosen.standing,
            },
            faults,
            endpoint,
            admission: admit(spec.concurrency, steerable, &occupancy),
            occupancy,
            workspace: facts.capacities.workspace,
            at_endpoint: match &candidate.runner {
                Some(runner) => facts.capacities.of(runner.endpoint_id),
                None => Capacity::default(),
            },
            snapshot: judged.map(|judged| judged.snapshot),
        })
    }
}

fn outcome_of(plan: &IngestPlan) -> Outcome {
    match plan {
        IngestPlan::Refuse | IngestPlan::Keep { .. } => Outcome::NoAgent,
        IngestPlan::Start { .. } => Outcome::Created,
        IngestPlan::Queue { .. } => Outcome::Queued,
        IngestPlan::Absorb { run, .. } => Outcome::Steered(*run),
    }
}

fn considered(facts: &DecisionFacts, event: &EventEnvelope) -> Vec<Considered> {
    let standings = standings(&facts.candidates, |one| &one.agent.spec, event);
    let all = facts.candidates.iter().zip(standings);
    let mut all: Vec<_> = all
        .map(|(candidate, standing)| Considered {
            candidate: candidate.clone(),
            standing,
        })
        .collect();
    // Stable: those that lose stay in the order of their names.
    all.sort_by(|one, other| match (one.standing, other.standing) {
        (Standing::Loses(_), Standing::Loses(_)) => Ordering::Equal,
        (Standing::Loses(_), _) => Ordering::Greater,
        (_, Standing::Loses(_)) => Ordering::Less,
        _ => Ordering::Equal,
    });
    all
}
