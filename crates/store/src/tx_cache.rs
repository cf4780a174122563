//! Read cache of one transaction, shared by its items.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use protocol::id::WorkspaceId;

use crate::model::registry::Candidate;

/// Maximum hashes of kept parts. Beyond it all are dropped, and found again.
const MAX_KEPT_PARTS: usize = 4096;

/// Rows read by one item and reused by later ones. Items that may change these rows clear it.
#[derive(Default)]
pub struct TxCache {
    /// The enabled agents of a workspace, with their runners.
    pub(crate) candidates: HashMap<WorkspaceId, Arc<[Candidate]>>,
    /// Hashes of stored parts that no sweep deletes.
    pub(crate) kept_parts: HashSet<String>,
}

impl TxCache {
    /// The cache for a transaction that may follow changes.
    pub(crate) fn outdated(self) -> Self {
        Self {
            candidates: HashMap::new(),
            kept_parts: self.kept_parts,
        }
    }

    pub(crate) fn note_kept_part(&mut self, sha256: &str) {
        if self.kept_parts.len() >= MAX_KEPT_PARTS {
            self.kept_parts.clear();
        }
        self.kept_parts.insert(sha256.to_owned());
    }
}
