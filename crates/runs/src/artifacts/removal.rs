//! Removal of artifacts: released, expired, or deleted by an operator.

use protocol::id::{ApiKeyId, RunId, WorkspaceId};
use store::{AuditEntry, DropArtifact, StoreError};
use uuid::Uuid;

use super::Artifacts;

impl Artifacts {
    /// Releases a finished artifact. It can no longer be read.
    pub async fn drop_artifact(&self, id: Uuid) -> Result<(), StoreError> {
        self.deps
            .store
            .write(DropArtifact { id, audit: None })
            .await
    }

    /// Deletes an artifact of a workspace for an operator. False: there is none. The audit of its run records
    /// the deletion.
    pub async fn delete_artifact(
        &self,
        workspace: &WorkspaceId,
        id: &str,
        by: ApiKeyId,
    ) -> Result<bool, StoreError> {
        let Some(row) = self.find_row(workspace, id).await? else {
            return Ok(false);
        };
        let run = row.run_id.as_deref().and_then(|run| run.parse().ok());
        let audit = run.map(|run| AuditEntry {
            id: Uuid::now_v7(),
            workspace: workspace.clone(),
            run_id: RunId(run),
            action: "artifact_delete",
            resource: row.id.clone(),
            operation: "delete",
            allowed: true,
            rule: format!("deleted by an operator with API key {by}").into(),
            interaction_id: None,
            bytes: row.size,
            at: self.deps.clock.now_ms(),
            is_shared: false,
        });
        let Ok(id) = row.id.parse() else {
            return Ok(false);
        };
        self.deps.store.write(DropArtifact { id, audit }).await?;
        tracing::info!(
            artifact.id = row.id, artifact.bytes = row.size, api_key.id = %by,
            "an operator deleted an artifact"
        );
        Ok(true)
    }

    /// Deletes expired artifacts, bytes first; returns their number.
    pub(crate) async fn sweep(&self) -> Result<u64, StoreError> {
        let claimed = self
            .deps
            .store
            .artifacts()
            .claim_expired_artifacts()
            .await?;
        let mut gone = Vec::with_capacity(claimed.len());
        for one in &claimed {
            match self.deps.blobs.delete(&one.location).await {
                // Bytes before the row: without its row, no sweep would find them.
                Ok(()) => gone.push(one.id),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(artifact.id = %one.id, error, "cannot delete the bytes of an artifact, trying again later");
                }
            }
        }
        let count = gone.len() as u64;
        if count > 0 {
            self.deps
                .store
                .artifacts()
                .delete_artifact_rows(gone)
                .await?;
        }
        Ok(count)
    }
}
