//! Decision of a posted event, and the dispatch of its run by the same commit.

use std::sync::{Arc, OnceLock};

use domain::authorization::LimitedId;
use domain::normalize::ExpectedOutput;
use protocol::id::AgentId;
use protocol::run::RunStatus;
use store::{
    DecideEvent, DecisionFacts, EventDecision, FirstAttempt, IngestPlan, ScopeState, StateAccess,
};
use tokio::time::Instant;

use super::decider::Decider;
use super::effects::DecisionEffects;
use super::input::DecisionInput;
use crate::context::scopes_of;
use crate::inputs::{PreparedDispatch, RunInputs};
use crate::intake::IntakeError;
use crate::live::LiveEntry;
use crate::own_limits::StartLimit;

/// The decision on a posted event or on a retry, as the store calls it.
pub(crate) struct PendingDecision {
    decider: Arc<Decider>,
    input: DecisionInput,
    /// Set when the run counts for the rate of its agent.
    counted: OnceLock<()>,
}

impl PendingDecision {
    pub(crate) fn new(decider: &Arc<Decider>, input: DecisionInput) -> Self {
        Self {
            decider: Arc::clone(decider),
            input,
            counted: OnceLock::new(),
        }
    }

    fn try_decide(
        &self,
        facts: &DecisionFacts,
    ) -> Result<EventDecision<DecisionEffects>, IntakeError> {
        let decision = self.decider.try_decide(&self.input, facts)?;
        if let IngestPlan::Start { run, .. } | IngestPlan::Queue { run, .. } = &decision.plan
            // Once: the store repeats the decision after a failed transaction.
            && self.counted.get().is_none()
        {
            self.admit_run(facts, run.agent_id)?;
            let _ = self.counted.set(());
        }
        Ok(decision)
    }

    /// Counts the run against the rate of its agent.
    fn admit_run(&self, facts: &DecisionFacts, agent: AgentId) -> Result<(), StartLimit> {
        let mut candidates = facts.candidates.iter();
        let spec = candidates.find(|one| one.agent.id == agent);
        let spec = spec.map(|candidate| &candidate.agent.spec);
        let Some((spec, limits)) = spec.and_then(|spec| Some((spec, spec.limits?))) else {
            return Ok(());
        };
        let limiters = &self.decider.deps.own_limits;
        let id = LimitedId::Agent(agent);
        let admitted = limiters.admit(&self.input.workspace, id, &limits);
        admitted.map_err(|wait| StartLimit::AgentRate {
            agent,
            name: spec.name.clone(),
            wait,
        })
    }

    /// Nothing is stored. The cause is among the effects.
    fn refusal(&self, reason: IntakeError) -> EventDecision<DecisionEffects> {
        if let IntakeError::Limit(StartLimit::AgentRuns { agent, .. }) = &reason {
            let limiters = &self.decider.deps.own_limits;
            limiters.note_full(&self.input.workspace, LimitedId::Agent(*agent));
        }
        EventDecision {
            plan: IngestPlan::Refuse,
            effects: DecisionEffects::refusal(reason),
            context_scopes: None,
        }
    }
}

impl DecideEvent for PendingDecision {
    type Effects = DecisionEffects;

    fn decide(&self, facts: &DecisionFacts) -> EventDecision<DecisionEffects> {
        let decided = self.try_decide(facts);
        decided.unwrap_or_else(|reason| self.refusal(reason))
    }

    fn dispatch(
        &self,
        effects: &mut DecisionEffects,
        state: &[ScopeState],
    ) -> Option<FirstAttempt> {
        self.decider.dispatch_now(effects.run.as_mut()?, state)
    }
}

/// Scopes for the context of a run that its event dispatches. `None`: a task of its own prepares the dispatch,
/// because a large context takes long, or because the address of the runner must be read.
pub(super) fn context_scopes(inputs: &RunInputs) -> Option<Vec<StateAccess>> {
    let is_ready = inputs.endpoint.is_some() && inputs.context.is_some();
    is_ready.then(|| scopes_of(&inputs.snapshot).collect())
}

impl Decider {
    /// `None`: a task of its own dispatches the run, and reports an address that cannot be opened.
    fn dispatch_now(&self, inputs: &mut RunInputs, state: &[ScopeState]) -> Option<FirstAttempt> {
        let address = inputs.endpoint.as_ref()?;
        let endpoint = self.deps.endpoint_cache.open(address).ok()?;
        let prepared = inputs.context.take()?;
        let context = self
            .context
            .fill(&prepared, &inputs.snapshot, inputs.position, state)?;
        let run = &mut inputs.run;
        run.status = RunStatus::Running;
        run.attempt = FirstAttempt::NUMBER;
        run.fencing_token = i64::from(FirstAttempt::NUMBER);
        run.started_at = Some(inputs.arrived_at);
        inputs.live_entry = Some(LiveEntry::enter(&self.deps.live, run.id));
        inputs.dispatch = Some(PreparedDispatch {
            context: context.sent,
            shared: inputs.shared.clone(),
            snapshot: Arc::clone(&inputs.snapshot),
            agent_name: inputs.spec.name.clone(),
            retry: inputs.spec.retry.clone(),
            expected_output: ExpectedOutput::of(&inputs.event),
            endpoint: Some(endpoint),
            delta_mode: address.delta_mode,
            interruptible: inputs.interruptible,
            resume_window: inputs.resume_window,
            // Taken before the database reads its clock, so that the lease ends here first.
            lease_requested_at: Some(Instant::now()),
        });
        Some(FirstAttempt {
            owner: self.deps.owner.clone(),
            lease: self.deps.limits.lease,
            context: context.stored,
        })
    }
}
