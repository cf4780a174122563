//! Speculation: drafts the likely run of an event before the store calls the decision, because that call blocks all
//! writes of the process.

use std::sync::Arc;

use domain::authorization::ResourceCatalog;
use domain::event::conversation_of;
use domain::generation::GenerationStep;
use domain::normalize::ExpectedOutput;
use domain::trace::RunTrace;
use store::{Candidate, DecisionFacts};

use super::callable::peers_among;
use super::decider::Decider;
use super::draft::RunDraft;
use super::input::DecisionInput;
use crate::context::ContextInputs;
use crate::inputs::{ExpectedPosition, PreparedDispatch};

/// A drafted run, and the facts that it was drafted from.
pub(crate) struct SpeculativeRun {
    candidates: Arc<[Candidate]>,
    /// Index of the winner among the candidates.
    winner: usize,
    catalog: Arc<ResourceCatalog>,
    draft: RunDraft,
    position: ExpectedPosition,
}

impl SpeculativeRun {
    /// Drafts the run from the candidates of the workspace's last event. The draft is ready for dispatch if no run
    /// lives in the conversation.
    pub(crate) async fn make(decider: &Decider, input: &DecisionInput) -> Option<Self> {
        let mut speculation = Self::draft(decider, input)?;
        if let Some(position) = quiet_position(decider, input).await {
            let dispatch = prepare_dispatch(decider, input, &speculation.draft, position);
            speculation.draft.dispatch = dispatch.await;
            speculation.position = position;
        }
        Some(speculation)
    }

    /// Bytes of its large texts.
    pub(crate) fn bytes(&self) -> usize {
        let context = |dispatch: &PreparedDispatch| dispatch.context.get().len();
        self.draft.row.snapshot.len() + self.draft.dispatch.as_ref().map_or(0, context)
    }

    fn draft(decider: &Decider, input: &DecisionInput) -> Option<Self> {
        let candidates = decider.candidates.get(&input.workspace)?;
        let catalog = decider.deps.catalog.load_full();
        let winner = Decider::winner(input, &candidates).ok()??;
        // Only the conversation's lock fixes its generation.
        if winner.agent.spec.conversation_idle_seconds.is_some() {
            return None;
        }
        let first = GenerationStep::First;
        let draft = decider.draft(input, winner, &candidates, first).ok()?;
        let winner = candidates
            .iter()
            .position(|one| std::ptr::eq(one, winner))?;
        Some(Self {
            candidates,
            winner,
            catalog,
            draft,
            position: ExpectedPosition::default(),
        })
    }

    /// The draft, if this winner would get the same one now.
    pub(super) fn draft_for(
        mut self,
        decider: &Decider,
        facts: &DecisionFacts,
        winner: &Candidate,
    ) -> Option<RunDraft> {
        let same_catalog = Arc::ptr_eq(&self.catalog, &decider.deps.catalog.load());
        let expected = &self.candidates[self.winner];
        // Pointers first: the comparison of all agents is the expensive case.
        let same_winner = Arc::ptr_eq(&self.candidates, &facts.candidates)
            || *expected == *winner
                && peers_among(expected, &self.candidates)
                    == peers_among(winner, &facts.candidates);
        // Another event came in between, so the context lacks its message; the row is still right.
        if ExpectedPosition::of(facts.position.as_ref()) != self.position {
            self.draft.dispatch = None;
        }
        (same_catalog && same_winner).then_some(self.draft)
    }
}

/// Prepares the dispatch of a draft at this position. `None`: it cannot be prepared now, and may be later.
async fn prepare_dispatch(
    decider: &Decider,
    input: &DecisionInput,
    draft: &RunDraft,
    position: ExpectedPosition,
) -> Option<PreparedDispatch> {
    let address = draft.endpoint.as_ref()?;
    let endpoint = decider.deps.endpoint_cache.open(address).ok()?;
    let (row, spec) = (&draft.row, &draft.agent.frozen);
    let context = decider.context.write(ContextInputs {
        workspace: &input.workspace,
        snapshot: &draft.snapshot,
        snapshot_sha256: &row.snapshot_sha256,
        spec,
        event: &input.event,
        position,
        arrived_at: decider.deps.clock.now_ms(),
        deadline_at: row.deadline_at,
        trace: RunTrace::of(row.id, row.trace_parent),
        wants_static_refs: draft.wants_static_refs(),
    });
    Some(PreparedDispatch {
        context: context.await.ok()?,
        shared: row.shared.clone(),
        snapshot: Arc::clone(&draft.snapshot),
        agent_name: spec.name.clone(),
        retries: spec.retry.max,
        expected_output: ExpectedOutput::of(&input.event),
        endpoint: Some(endpoint),
        delta_mode: address.delta_mode,
        interruptible: draft.is_interruptible(),
        lease_requested_at: None,
    })
}

/// Expected position of the event if no run lives in its conversation. If the store assigns this position, no run of
/// the conversation has changed anything in between, so the context is complete.
async fn quiet_position(decider: &Decider, input: &DecisionInput) -> Option<ExpectedPosition> {
    let Some(identity) = conversation_of(&input.event) else {
        return Some(ExpectedPosition::default());
    };
    let now = decider
        .deps
        .store
        .conversations()
        .conversation_state(&input.workspace, &identity);
    let (events, items) = match now.await.ok()? {
        // A live run may write to the transcript until the commit.
        Some(now) if now.is_busy => return None,
        Some(now) => (now.last_event_seq, now.last_transcript_seq),
        None => (0, 0),
    };
    Some(ExpectedPosition {
        event_seq: Some(events + 1),
        transcript_before: items,
    })
}
