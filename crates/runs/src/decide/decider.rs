//! Parts of the decision: which agent wins, and the run that it gets.

use std::sync::Arc;

use domain::admission::without_steering;
use domain::artifact::has_artifacts;
use domain::authorization::{AuthorizationSnapshot, LimitedId, Subject};
use domain::binding::{Resolution, resolve};
use domain::event::conversation_of;
use domain::generation::GenerationStep;
use domain::run::deadline;
use domain::state::StateOwner;
use domain::trace::RunTrace;
use protocol::JsonObject;
use protocol::event::MESSAGE_RECEIVED;
use store::{Candidate, NewRun, RunnerRecord, sha256_hex};

use super::callable::{callable, check_point, peers_among, unavailable};
use super::draft::RunDraft;
use super::input::{DecisionInput, ParentContext};
use crate::agent_cache::{AgentCache, AgentGrants, CachedAgent};
use crate::context::{ContextInputs, ContextWriter, readable_prompt, static_refs};
use crate::deps::RunDeps;
use crate::intake::IntakeError;
use crate::own_limits::token_limit;

/// Decides about events: which agent gets one, and with which run.
pub(crate) struct Decider {
    pub(crate) deps: Arc<RunDeps>,
    pub(crate) context: ContextWriter,
    pub(crate) agents: AgentCache,
}

impl Decider {
    /// The one agent that gets the event, if there is one.
    pub(super) fn winner<'f>(
        input: &DecisionInput,
        candidates: &'f [Candidate],
    ) -> Result<Option<&'f Candidate>, IntakeError> {
        if let Some(agent) = input.only {
            let found = candidates.iter().find(|one| one.agent.id == agent);
            let gone = || match input.parent {
                Some(_) => IntakeError::CalledAgentGone,
                None => IntakeError::AgentGone,
            };
            return found.map(Some).ok_or_else(gone);
        }
        match resolve(candidates, |one| &one.agent.spec, &input.event) {
            Resolution::NoMatch => Ok(None),
            Resolution::Tie(names) => Err(IntakeError::BindingConflict(names)),
            Resolution::Winner(winner) => Ok(Some(winner)),
        }
    }

    /// Like `winner`, for the agents that the sender reaches.
    pub(super) fn reached_winner<'f>(
        input: &DecisionInput,
        candidates: &'f [Candidate],
    ) -> Result<Option<&'f Candidate>, IntakeError> {
        let found = Self::winner(input, candidates);
        let Some(agents) = input.scope.only() else {
            return found;
        };
        match found {
            Ok(Some(winner)) if agents.contains(&winner.agent.id) => Ok(Some(winner)),
            // One refusal for all other ends: a restricted sender must learn nothing of other agents.
            Ok(_) | Err(IntakeError::BindingConflict(_)) => Err(IntakeError::outside(agents)),
            Err(error) => Err(error),
        }
    }

    /// Drafts the run of this agent, if its runner can be called.
    pub(crate) fn draft(
        &self,
        input: &DecisionInput,
        winner: &Candidate,
        candidates: &[Candidate],
        step: GenerationStep,
    ) -> Result<RunDraft, IntakeError> {
        // An acknowledged event keeps its runner, even if no endpoint lists it now.
        let acknowledged = winner.runner.as_ref().filter(|_| input.was_accepted);
        let runner = acknowledged.map_or_else(|| callable(winner), Ok)?;
        let agent = self.agents.get(winner, runner).ok_or_else(|| {
            unavailable(winner, "its manifest cannot be read; refresh its endpoint")
        })?;
        if let Some(point) = &input.retry_point {
            check_point(point, &agent.manifest)?;
        }
        let (snapshot, snapshot_text, grants) =
            self.authorize(input, winner, runner, &agent, candidates, step);
        let max_ms = i64::try_from(self.deps.limits.max_deadline.as_millis()).unwrap_or(i64::MAX);
        let timeout = agent.frozen.config.get(domain::form::TIMEOUT);
        let deadline_at = deadline(timeout, self.deps.clock.now_ms(), max_ms);
        let parent = input.parent.as_ref();
        let shared = &grants.shared;
        let row = NewRun {
            id: input.run_id,
            trace_parent: input.trace_parent,
            parent_run_id: parent.map(|parent| parent.snapshot.run_id),
            retry_of: input.retry_of,
            retry_from: input.retry_point.as_ref().map(|point| point.sequence),
            begun: step.begun(),
            posted_by: input.posted_by,
            agent_id: winner.agent.id,
            agent_version: winner.agent.version,
            runner_id: winner.agent.spec.runner_id.clone(),
            endpoint_id: runner.endpoint_id,
            // A child run never outlives its parent.
            deadline_at: parent.map_or(deadline_at, |parent| deadline_at.min(parent.deadline_at)),
            agent_spec: shared.apart(&agent.frozen_json),
            snapshot_sha256: sha256_hex(snapshot_text.as_bytes()),
            snapshot: shared.apart(&snapshot_text),
            shared: shared.clone(),
        };
        let wants_static_refs = agent.manifest.context.wants_static_context_refs;
        let static_refs = match readable_prompt(&snapshot, &input.event) {
            _ if !wants_static_refs => JsonObject::new(),
            None => grants.static_refs.clone(),
            prompt => static_refs(&agent.frozen, &snapshot.resources, prompt),
        };
        let context_inputs = ContextInputs {
            snapshot: &snapshot,
            snapshot_sha256: &row.snapshot_sha256,
            spec: &agent.frozen,
            event: &input.event,
            arrived_at: input.arrived_at,
            deadline_at: row.deadline_at,
            trace: RunTrace::of(row.id, row.trace_parent),
            static_refs,
            // The dispatch of a retry reads it.
            from: None,
        };
        let context = self.context.prepare(&context_inputs, shared);
        // A retry gets a run of its own.
        let is_steerable = agent.manifest.capabilities.steering
            && input.retry_of.is_none()
            && input.event.event_type == MESSAGE_RECEIVED;
        let policy = winner.agent.spec.concurrency;
        Ok(RunDraft {
            context: context.map(Arc::new),
            row,
            snapshot: Arc::new(snapshot),
            agent,
            policy: if is_steerable {
                policy
            } else {
                without_steering(policy)
            },
            endpoint: winner.endpoint.clone(),
        })
    }

    /// The frozen rights of the run, as a value and as text, and the grants that it shares with other runs.
    fn authorize(
        &self,
        input: &DecisionInput,
        winner: &Candidate,
        runner: &RunnerRecord,
        agent: &CachedAgent,
        candidates: &[Candidate],
        step: GenerationStep,
    ) -> (AuthorizationSnapshot, String, Arc<AgentGrants>) {
        let event = &input.event;
        let conversation = conversation_of(event);
        let peers = peers_among(winner, candidates);
        let parent = input.parent.as_ref().map(ParentContext::grant);
        let adapter = event.adapter.as_ref();
        let agent_limits = winner.agent.spec.limits.unwrap_or_default();
        let of_agent = token_limit(LimitedId::Agent(winner.agent.id), &agent_limits);
        let token_limits: Vec<_> = of_agent.into_iter().chain(input.key.tokens).collect();
        let subject = Subject {
            run_id: input.run_id,
            agent_version: winner.agent.version,
            endpoint_id: runner.endpoint_id,
            event_id: &input.event_id,
            has_prompt: adapter.is_some_and(|adapter| !adapter.prompt.is_empty()),
            shows_interactions: event.delivery.interactions.is_some(),
            has_artifacts: event.input.as_ref().is_some_and(has_artifacts),
            registered_skills: &winner.skills,
            peers: &peers,
            parent: parent.as_ref(),
            token_limits: &token_limits,
            owner: StateOwner {
                workspace: &input.workspace,
                runner: &agent.manifest.id,
                agent: winner.agent.id,
                bot_id: event.bot_id.as_deref(),
                conversation: conversation.as_ref(),
                generation: step.generation(),
                actor: event.actor.as_ref(),
                subject: event.subject.as_ref(),
            },
        };
        let grants = agent.grant(&self.deps.catalog.load_full(), &subject);
        let snapshot = grants.granted.snapshot(&subject);
        let text = grants.granted.text_of(&snapshot);
        (snapshot, text, grants)
    }
}
