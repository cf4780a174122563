//! Export of changes, each at least once.

use std::time::Duration;

use protocol::id::{ChangeId, WorkspaceId};
use sea_orm::DatabaseTransaction;

use super::{COLUMNS, ChangeRecord, INSTALLATION, read_change};
use crate::database_clock::{millis, read_now};
use crate::error::StoreError;
use crate::mutation::Mutation;
use crate::repositories::AuditRepository;
use crate::sql::{Sql, unlocked_rows};

/// Maximum changes of one export.
const BATCH: usize = 200;
/// Time after which claimed changes are exported again, unless they were marked.
const CLAIM: Duration = Duration::from_mins(1);

/// A change to export.
#[derive(Clone, Debug)]
pub struct ExportedChange {
    /// `None`: the change concerns the installation.
    pub workspace: Option<WorkspaceId>,
    pub change: ChangeRecord,
}

struct ClaimChanges;

impl Mutation for ClaimChanges {
    type Output = Vec<ExportedChange>;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Vec<ExportedChange>, StoreError> {
        let now = read_now(tx).await?;
        // Replicas export concurrently: each skips the rows of the others.
        let ours = unlocked_rows(tx);
        let columns = COLUMNS.variable.iter().chain(COLUMNS.fixed);
        let columns: Vec<_> = columns.copied().collect();
        let sql = format!(
            "UPDATE changes SET export_at = $1 WHERE id IN (SELECT id FROM changes WHERE export_at <= $2 \
             ORDER BY export_at, id LIMIT {BATCH} {ours}) RETURNING workspace_id, {}",
            columns.join(", ")
        );
        let values = vec![(now + millis(CLAIM)).into(), now.into()];
        let mut found = Vec::new();
        for row in tx.query_sql(sql, values).await? {
            let workspace = row.text("workspace_id")?;
            found.push(ExportedChange {
                workspace: (workspace != INSTALLATION).then_some(WorkspaceId(workspace)),
                change: read_change(&row)?,
            });
        }
        // `RETURNING` has no order.
        found.sort_by_key(|one| one.change.id);
        Ok(found)
    }
}

struct EndClaim {
    ids: Vec<ChangeId>,
    /// Epoch milliseconds. `None`: the changes are exported.
    export_at: Option<i64>,
}

impl Mutation for EndClaim {
    type Output = ();
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        let placeholders: Vec<_> = (2..=self.ids.len() + 1)
            .map(|one| format!("${one}"))
            .collect();
        let list = placeholders.join(", ");
        let sql = format!("UPDATE changes SET export_at = $1 WHERE id IN ({list})");
        let ids = self.ids.iter().map(|id| id.to_string().into());
        let values = std::iter::once(self.export_at.into()).chain(ids);
        tx.execute_sql(sql, values.collect()).await
    }
}

impl AuditRepository<'_> {
    /// Claims the oldest changes that are not exported, of all workspaces, in the order of their ids. A claim without an
    /// end, because the process was killed, ends after a minute.
    pub async fn claim_changes(self) -> Result<Vec<ExportedChange>, StoreError> {
        self.db.write(ClaimChanges).await
    }

    /// Ends the claim of changes that are exported.
    pub async fn mark_exported(self, ids: Vec<ChangeId>) -> Result<(), StoreError> {
        let export_at = None;
        self.db.write(EndClaim { ids, export_at }).await
    }

    /// Ends the claim of changes that the next claim returns again.
    pub async fn release_changes(self, ids: Vec<ChangeId>) -> Result<(), StoreError> {
        let export_at = Some(0);
        self.db.write(EndClaim { ids, export_at }).await
    }
}
