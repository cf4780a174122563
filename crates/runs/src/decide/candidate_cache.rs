//! Cache of the agents that the last event of each workspace met.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::id::WorkspaceId;
use store::Candidate;

/// Maximum number of workspaces. A full cache is emptied.
const MAX_WORKSPACES: usize = 1024;

/// Candidates by workspace, at most [`MAX_WORKSPACES`].
#[derive(Default)]
pub(crate) struct CandidateCache(Mutex<HashMap<WorkspaceId, Arc<[Candidate]>>>);

impl CandidateCache {
    // A map of plain values stays consistent after a panic.
    fn entries(&self) -> MutexGuard<'_, HashMap<WorkspaceId, Arc<[Candidate]>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, workspace: &WorkspaceId) -> Option<Arc<[Candidate]>> {
        self.entries().get(workspace).cloned()
    }

    /// Stores the candidates of an event.
    pub(super) fn put(&self, workspace: &WorkspaceId, candidates: &Arc<[Candidate]>) {
        let mut entries = self.entries();
        if let Some(cached) = entries.get(workspace)
            && Arc::ptr_eq(cached, candidates)
        {
            return;
        }
        if entries.len() >= MAX_WORKSPACES {
            entries.clear();
        }
        entries.insert(workspace.clone(), Arc::clone(candidates));
    }
}
