//! Drafts made before the transaction, from the agents of an earlier decision.
//!
//! Authorization and context take longer than the rows of a run. The writer's thread only checks that the facts of
//! such a draft still hold.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use domain::authorization::ResourceCatalog;
use domain::generation::GenerationStep;
use protocol::id::{AgentId, WorkspaceId};
use store::Candidate;

use super::decider::Decider;
use super::draft::RunDraft;
use super::input::DecisionInput;
use crate::intake::IntakeError;

/// Maximum workspaces. A full map is emptied.
const MAX_WORKSPACES: usize = 1024;

/// Agents of the last decision in each workspace.
#[derive(Default)]
pub(crate) struct RecentCandidates(Mutex<HashMap<WorkspaceId, Arc<[Candidate]>>>);

impl RecentCandidates {
    pub(super) fn note(&self, workspace: &WorkspaceId, candidates: &Arc<[Candidate]>) {
        // A map of plain values stays consistent after a panic.
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match recent.get_mut(workspace) {
            Some(noted) if Arc::ptr_eq(noted, candidates) => {}
            Some(noted) => *noted = Arc::clone(candidates),
            None => {
                if recent.len() >= MAX_WORKSPACES {
                    recent.clear();
                }
                recent.insert(workspace.clone(), Arc::clone(candidates));
            }
        }
    }

    fn of(&self, workspace: &WorkspaceId) -> Option<Arc<[Candidate]>> {
        let recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recent.get(workspace).cloned()
    }
}

/// A draft and the facts that it was made from.
pub(crate) struct EarlyDraft {
    candidates: Arc<[Candidate]>,
    catalog: Arc<ResourceCatalog>,
    agent: AgentId,
    step: GenerationStep,
    draft: RunDraft,
}

impl Decider {
    /// Drafts the run before its event is decided. `None`: the decision makes the draft.
    pub(crate) fn draft_early(&self, input: &DecisionInput) -> Option<Box<EarlyDraft>> {
        let candidates = self.recent.of(&input.workspace)?;
        // Read first: a catalog that changes meanwhile makes the draft invalid.
        let catalog = self.deps.catalog.load_full();
        let winner = Self::reached_winner(input, &candidates).ok()??;
        let step = GenerationStep::staying(&winner.agent.spec, None);
        let draft = self.draft(input, winner, &candidates, step).ok()?;
        Some(Box::new(EarlyDraft {
            agent: winner.agent.id,
            candidates,
            catalog,
            step,
            draft,
        }))
    }

    /// The early draft, if its facts hold, or else a new one.
    pub(super) fn draft_now(
        &self,
        input: &DecisionInput,
        winner: &Candidate,
        candidates: &Arc<[Candidate]>,
        step: GenerationStep,
    ) -> Result<RunDraft, IntakeError> {
        let catalog = self.deps.catalog.load();
        let early = input.early_draft.as_ref().filter(|early| {
            early.agent == winner.agent.id
                && early.step == step
                && Arc::ptr_eq(&early.candidates, candidates)
                && Arc::ptr_eq(&early.catalog, &catalog)
        });
        match early {
            Some(early) => Ok(early.draft.clone()),
            None => self.draft(input, winner, candidates, step),
        }
    }
}
