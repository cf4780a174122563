//! Effects of the decisions about one event. The store decides again with each try of its transaction.

use std::sync::{Arc, Mutex, PoisonError};

use protocol::event::EventAccepted;
use protocol::id::RunId;
use protocol::run::RunStatus;
use store::{Ingested, StoreError};

use crate::decide::DecisionEffects;
use crate::inputs::RunInputs;

/// Effects of the newest decision.
#[derive(Clone, Default)]
pub(super) struct LastEffects(Arc<Mutex<Tries>>);

#[derive(Default)]
struct Tries {
    last: DecisionEffects,
    /// Run that an earlier try has dispatched. Its commit may be in the database although the writer reported an
    /// error.
    dispatched: Option<Box<RunInputs>>,
}

impl LastEffects {
    /// Replaces the effects of the try before, except a run that it has dispatched.
    pub(super) fn replace(&self, effects: DecisionEffects) {
        let mut tries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut tries.last, effects);
        // The commit of that try may be in the database, so its run must not be dropped.
        if let Some(run) = before.run.filter(|run| run.dispatch.is_some()) {
            tries.dispatched = Some(run);
        }
    }

    /// Takes the newest effects, and the run that an earlier try has dispatched.
    pub(super) fn take(&self) -> (DecisionEffects, Option<Box<RunInputs>>) {
        let mut tries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Tries { last, dispatched } = std::mem::take(&mut *tries);
        (last, dispatched)
    }
}

/// The run of a dispatch with an unknown outcome, if this result leaves its outcome open. `earlier`: the run of
/// an earlier try. Dropped here, it frees its entry in the registry of live runs.
pub(super) fn unconfirmed_dispatch(
    outcome: &Result<Ingested, StoreError>,
    effects: &mut DecisionEffects,
    earlier: Option<Box<RunInputs>>,
) -> Option<Box<RunInputs>> {
    let answered = match outcome {
        Err(error) if error.is_transient() => None,
        Ok(Ingested::Replayed { answer }) => {
            let answer: EventAccepted = serde_json::from_str(answer).ok()?;
            Some(created_run(&answer)?)
        }
        Ok(_) | Err(_) => return None,
    };
    let last = effects.run.take().filter(|run| run.dispatch.is_some());
    let dispatched = last.or(earlier)?;
    let is_answered = answered.is_none_or(|run| run == dispatched.run.id);
    is_answered.then_some(dispatched)
}

/// The run of an answer, if the run was created to start at once.
pub(super) fn created_run(answer: &EventAccepted) -> Option<RunId> {
    let is_created = answer.status == Some(RunStatus::Created);
    answer.run_id.filter(|_| is_created)
}
