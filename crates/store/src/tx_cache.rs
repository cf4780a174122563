//! Read cache of one transaction, shared by its items.

use std::collections::HashMap;
use std::sync::Arc;

use protocol::id::WorkspaceId;

use crate::error::StoreError;
use crate::new_run::{Candidate, candidates};
use crate::sql::Sql;

/// Rows read by one item and reused by later ones. Items that may change these rows clear it.
#[derive(Default)]
pub struct TxCache {
    candidates: HashMap<WorkspaceId, Arc<[Candidate]>>,
}

impl TxCache {
    /// The enabled agents of a workspace, with their runners.
    pub(crate) async fn candidates(
        &mut self,
        tx: &impl Sql,
        workspace: &WorkspaceId,
    ) -> Result<Arc<[Candidate]>, StoreError> {
        if let Some(known) = self.candidates.get(workspace) {
            return Ok(Arc::clone(known));
        }
        let read: Arc<[Candidate]> = candidates(tx, workspace).await?.into();
        self.candidates.insert(workspace.clone(), Arc::clone(&read));
        Ok(read)
    }
}
