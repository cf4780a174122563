//! What the run of an event will most likely be, made before the store asks: while it asks, everything that is
//! written waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::authorization::Catalog;
use protocol::id::WorkspaceId;
use store::{Candidate, NewRun};

use crate::runs::decide::{Deciding, Made};

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
pub(in crate::runs) struct Foreseen {
    met: Arc<[Candidate]>,
    /// Of the winner among them.
    place: usize,
    catalog: Arc<Catalog>,
    run: NewRun,
    made: Made,
}

impl Foreseen {
    /// The run that the event gets if its agents are still those that the last one met.
    pub(super) fn of(deciding: &Deciding<'_>) -> Option<Self> {
        let met = deciding.inner.last_met.get(deciding.workspace)?;
        let catalog = deciding.inner.catalog.load_full();
        let winner = deciding.winner(&met).ok()??;
        let (run, made) = deciding.new_run(winner).ok()?;
        let place = met.iter().position(|one| std::ptr::eq(one, winner))?;
        Some(Self {
            met,
            place,
            catalog,
            run,
            made,
        })
    }

    /// The run, if it would be made just so of this winner among these agents now.
    pub(super) fn for_winner(
        self,
        deciding: &Deciding<'_>,
        agents: &Arc<[Candidate]>,
        winner: &Candidate,
    ) -> Option<(NewRun, Made)> {
        let same_catalog = Arc::ptr_eq(&self.catalog, &deciding.inner.catalog.load());
        let same_winner = Arc::ptr_eq(&self.met, agents) || self.met[self.place] == *winner;
        (same_catalog && same_winner).then_some((self.run, self.made))
    }
}
