//! Child runs: limits of their parents, and cancellation with the parent.

use protocol::child_run::{MAX_CHILD_RUNS, WAITING_CHILD};
use protocol::id::RunId;
use protocol::principal::Principal;
use protocol::run::RunStatus;
use sea_orm::{DatabaseTransaction, Value};
use uuid::Uuid;

use crate::conversation::lock_runs;
use crate::error::{StoreError, parsed};
use crate::model::ingest::{AnyIngest, ChildRefused};
use crate::mutation::Mutation;
use crate::repositories::RunRepository;
use crate::sql::{Sql, SqlRow};
use crate::state::lock_live_run;

/// Maximum child runs cancelled by one pass over all parents.
const BATCH: i64 = 200;

impl AnyIngest {
    pub(crate) async fn child_refused(
        &self,
        tx: &impl Sql,
    ) -> Result<Option<ChildRefused>, StoreError> {
        let Some(parent) = self.parent else {
            return Ok(None);
        };
        // Locks the parent's row until the commit, so its end comes before or after.
        if !lock_live_run(tx, parent.run_id).await? {
            return Ok(Some(ChildRefused::Ended));
        }
        // Only the current attempt may create children.
        let sql = "SELECT cancel_requested_at FROM runs WHERE id = $1 AND workspace_id = $2 AND attempt = $3";
        let values = vec![
            parent.run_id.to_string().into(),
            self.workspace.as_str().into(),
            i64::from(parent.attempt).into(),
        ];
        let rows = tx.query_sql(sql.to_owned(), values).await?;
        let Some(run) = rows.first() else {
            return Ok(Some(ChildRefused::Ended));
        };
        if run.number_if_any("cancel_requested_at")?.is_some() {
            return Ok(Some(ChildRefused::Cancelled));
        }
        let sql = "SELECT count(*) AS n FROM runs WHERE parent_run_id = $1";
        let values = vec![parent.run_id.to_string().into()];
        let rows = tx.query_sql(sql.to_owned(), values).await?;
        let count = rows.first().map_or(Ok(0), |row| row.number("n"))?;
        Ok((count >= i64::from(MAX_CHILD_RUNS)).then_some(ChildRefused::TooMany))
    }
}

/// See [`RunRepository::end_children`].
#[derive(Clone, Copy, Debug)]
struct EndChildren {
    parent: Option<RunId>,
    at: i64,
}

/// A live child run of an ended or cancelled parent.
struct Orphan {
    id: Uuid,
    parent: RunId,
    has_parent_ended: bool,
}

impl Mutation for EndChildren {
    type Output = Vec<RunId>;
    const CHANGES_AGENTS: bool = false;

    /// A separate commit on `PostgreSQL`: it locks rows of other runs.
    fn lock(&self) -> Option<String> {
        Some("child runs".to_owned())
    }

    fn order(&self) -> Uuid {
        self.parent.map_or(Uuid::nil(), |parent| parent.0)
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Vec<RunId>, StoreError> {
        let orphans = self.orphans(tx).await?;
        let ids = orphans.iter().map(|orphan| orphan.id).collect();
        // In id order, as every transaction: the children belong to many conversations.
        lock_runs(tx, &ids, std::iter::empty()).await?;
        let cancel = "UPDATE runs SET cancel_requested_at = $1, status_reason = $2, cancelled_by = $4 \
                      WHERE id = $3 AND finished_at IS NULL AND cancel_requested_at IS NULL";
        for orphan in &orphans {
            let reason = if orphan.has_parent_ended {
                "parent_ended"
            } else {
                "parent_cancelled"
            };
            let values: Vec<Value> = vec![
                self.at.into(),
                reason.into(),
                orphan.id.to_string().into(),
                Principal::from(orphan.parent).stored().into(),
            ];
            tx.execute_sql(cancel.to_owned(), values).await?;
        }
        Ok(orphans.iter().map(|orphan| RunId(orphan.id)).collect())
    }
}

impl RunRepository<'_> {
    /// Requests cancel of live child runs after their parent ended or got a cancel request. Without `parent` it
    /// handles a batch over all parents. A parent that completed with the finish reason [`WAITING_CHILD`] keeps
    /// its children. Returns the cancelled runs. `at`: epoch milliseconds.
    pub async fn end_children(
        self,
        parent: Option<RunId>,
        at: i64,
    ) -> Result<Vec<RunId>, StoreError> {
        let end = EndChildren { parent, at };
        // Skips the writer when there is nothing to do.
        if end.orphans(&self.db.readers).await?.is_empty() {
            return Ok(Vec::new());
        }
        self.db.write(end).await
    }
}

impl EndChildren {
    async fn orphans(&self, tx: &impl Sql) -> Result<Vec<Orphan>, StoreError> {
        let mut values: Vec<Value> = vec![
            RunStatus::Completed.as_str().into(),
            WAITING_CHILD.into(),
            BATCH.into(),
        ];
        let only = match self.parent {
            Some(parent) => {
                values.push(parent.to_string().into());
                "AND c.parent_run_id = $4"
            }
            None => "",
        };
        let sql = format!(
            "SELECT c.id, p.id AS parent_id, (p.finished_at IS NOT NULL) AS has_ended FROM runs c, runs p \
             WHERE c.parent_run_id IS NOT NULL AND c.finished_at IS NULL AND c.cancel_requested_at IS NULL \
             AND p.id = c.parent_run_id {only} AND (p.cancel_requested_at IS NOT NULL OR \
             (p.finished_at IS NOT NULL AND NOT (p.status = $1 AND COALESCE(p.status_reason, '') = $2))) LIMIT $3"
        );
        let rows = tx.query_sql(sql, values).await?;
        let read = |row: &SqlRow| {
            let (id, parent) = (row.text("id")?, row.text("parent_id")?);
            Ok(Orphan {
                parent: parsed("runs.parent_run_id", &id, &parent)?,
                id: parsed("runs.id", &id, &id)?,
                has_parent_ended: row.flag("has_ended")?,
            })
        };
        rows.iter().map(read).collect()
    }
}
