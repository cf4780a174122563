//! What the run of an event will most likely be, made before the store asks: while it asks, everything that is
//! written waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::authorization::Catalog;
use domain::event::conversation_of;
use protocol::id::WorkspaceId;
use store::{Candidate, DecisionFacts, NewRun};

use crate::decide::{Deciding, Made, peers_among};
use crate::prepare::{Beginning, PlaceAhead};

/// Workspaces whose agents are remembered. More are forgotten, all at once.
const MOST: usize = 1024;

/// The agents that the last event of each workspace met.
#[derive(Default)]
pub(crate) struct LastMet(Mutex<HashMap<WorkspaceId, Arc<[Candidate]>>>);

impl LastMet {
    // A map of plain values is whole after any panic.
    fn met(&self) -> MutexGuard<'_, HashMap<WorkspaceId, Arc<[Candidate]>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, workspace: &WorkspaceId) -> Option<Arc<[Candidate]>> {
        self.met().get(workspace).cloned()
    }

    /// Remembers the agents that an event has met.
    pub(super) fn remember(&self, workspace: &WorkspaceId, agents: &Arc<[Candidate]>) {
        let mut met = self.met();
        if let Some(known) = met.get(workspace)
            && Arc::ptr_eq(known, agents)
        {
            return;
        }
        if met.len() >= MOST {
            met.clear();
        }
        met.insert(workspace.clone(), Arc::clone(agents));
    }
}

/// A run, and what it was made from.
pub(crate) struct Foreseen {
    met: Arc<[Candidate]>,
    /// Of the winner among them.
    place: usize,
    catalog: Arc<Catalog>,
    run: NewRun,
    made: Made,
    /// Where its event will stand in its conversation.
    at: PlaceAhead,
}

impl Foreseen {
    /// The run that the event gets if its agents are still those that the last one met, ready to be dispatched with
    /// its event if its conversation is quiet.
    pub(super) async fn of(deciding: &Deciding<'_>) -> Option<Self> {
        let mut foreseen = Self::run_of(deciding)?;
        if let Some(at) = quiet_place(deciding).await {
            let (run, made) = (&foreseen.run, &foreseen.made);
            foreseen.made.beginning = Beginning::of(deciding, (run, made), at).await;
            foreseen.at = at;
        }
        Some(foreseen)
    }

    /// Of what is large in it.
    pub(super) fn bytes(&self) -> usize {
        let context = |beginning: &Beginning| beginning.context.get().len();
        self.run.snapshot.len() + self.made.beginning.as_ref().map_or(0, context)
    }

    fn run_of(deciding: &Deciding<'_>) -> Option<Self> {
        let met = deciding.inner.last_met.get(deciding.workspace)?;
        let catalog = deciding.inner.catalog.load_full();
        let winner = deciding.winner(&met).ok()??;
        let (run, made) = deciding.new_run(winner, &met).ok()?;
        let place = met.iter().position(|one| std::ptr::eq(one, winner))?;
        Some(Self {
            met,
            place,
            catalog,
            run,
            made,
            at: PlaceAhead::default(),
        })
    }

    /// The run, if it would be made just so of this winner now.
    pub(super) fn for_winner(
        mut self,
        deciding: &Deciding<'_>,
        facts: &DecisionFacts,
        winner: &Candidate,
    ) -> Option<(NewRun, Made)> {
        let same_catalog = Arc::ptr_eq(&self.catalog, &deciding.inner.catalog.load());
        let met = &self.met[self.place];
        let same_winner = Arc::ptr_eq(&self.met, &facts.candidates)
            || *met == *winner
                && peers_among(met, &self.met) == peers_among(winner, &facts.candidates);
        if PlaceAhead::of(facts.place.as_ref()) != self.at {
            self.made.beginning = None;
        }
        (same_catalog && same_winner).then_some((self.run, self.made))
    }
}

/// Where the event will stand, if no run lives in its conversation. Who stands there then has missed nothing: what
/// is read from now on, no run of the conversation has changed in between.
async fn quiet_place(deciding: &Deciding<'_>) -> Option<PlaceAhead> {
    let Some(identity) = conversation_of(deciding.event) else {
        return Some(PlaceAhead::default());
    };
    let store = &deciding.inner.store;
    let now = store
        .conversations()
        .conversation_state(deciding.workspace, &identity)
        .await;
    let (events, items) = match now.ok()? {
        Some(now) if now.is_busy => return None,
        Some(now) => (now.last_event_seq, now.last_transcript_seq),
        None => (0, 0),
    };
    Some(PlaceAhead {
        event_seq: Some(events + 1),
        transcript_before: items,
    })
}
