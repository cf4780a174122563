//! Decision of a posted event, and the dispatch of its run by the same commit.

use std::sync::Arc;

use domain::normalize::ExpectedOutput;
use protocol::run::RunStatus;
use store::{DecideEvent, DecisionFacts, EventDecision, FirstAttempt, ScopeState, StateAccess};
use tokio::time::Instant;

use super::decider::Decider;
use super::effects::DecisionEffects;
use super::input::DecisionInput;
use crate::context::scopes_of;
use crate::inputs::{PreparedDispatch, RunInputs};
use crate::live::LiveEntry;

/// The decision on a posted event or on a retry, as the store calls it.
pub(crate) struct PendingDecision {
    pub(crate) decider: Arc<Decider>,
    pub(crate) input: DecisionInput,
}

impl DecideEvent for PendingDecision {
    type Effects = DecisionEffects;

    fn decide(&self, facts: &DecisionFacts) -> EventDecision<DecisionEffects> {
        self.decider.decide(&self.input, facts)
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
