//! Workspaces and agents of runs.

use std::collections::HashMap;

use protocol::id::{AgentId, RunId, WorkspaceId};

use crate::error::{StoreError, parsed};
use crate::repositories::RunRepository;
use crate::sql::returned;

/// Workspace and agent of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOwner {
    pub workspace: WorkspaceId,
    pub agent_id: AgentId,
}

impl RunRepository<'_> {
    /// Owners of runs of any workspace; the caller checks access. Absent runs are missing.
    pub async fn find_owners(
        self,
        runs: Vec<RunId>,
    ) -> Result<HashMap<RunId, RunOwner>, StoreError> {
        let rows = runs.iter().map(|run| [run.to_string().into()]);
        let sql = "SELECT r.id, r.workspace_id, r.agent_id FROM rows, runs r WHERE r.id = ?1";
        let found = returned(&self.db.readers, rows.collect(), sql).await?;
        let mut owners = HashMap::with_capacity(found.len());
        for row in found {
            let id = row.text("id")?;
            let owner = RunOwner {
                workspace: WorkspaceId(row.text("workspace_id")?),
                agent_id: parsed("runs.agent_id", &id, &row.text("agent_id")?)?,
            };
            owners.insert(parsed("runs.id", &id, &id)?, owner);
        }
        Ok(owners)
    }
}
