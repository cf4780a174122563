//! Read cache of one transaction, shared by its items.

use std::collections::HashMap;
use std::sync::Arc;

use protocol::id::WorkspaceId;

use crate::model::registry::Candidate;

/// Rows read by one item and reused by later ones. Items that may change these rows clear it.
#[derive(Default)]
pub struct TxCache {
    /// The enabled agents of a workspace, with their runners.
    pub(crate) candidates: HashMap<WorkspaceId, Arc<[Candidate]>>,
}
