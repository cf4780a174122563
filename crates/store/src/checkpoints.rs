//! Checkpoints: the newest state from which the runner of a live run can continue it.

use protocol::id::RunId;
use protocol::run::RunStatus;
use sea_orm::{DatabaseTransaction, Value};
use uuid::Uuid;

use crate::error::{StoreError, signed, unsigned};
use crate::model::audit::AuditEntry;
use crate::mutation::Mutation;
use crate::repositories::{RetentionRepository, StateRepository};
use crate::sql::{Sql, text};

/// Maximum checkpoints deleted per transaction.
const SWEPT: u64 = 50;

/// A checkpoint of a live run, with its audit row in the same transaction.
#[derive(Clone, Debug)]
pub struct PutCheckpoint {
    pub run_id: RunId,
    /// Attempt of the caller's token.
    pub attempt: u32,
    /// JSON text.
    pub value: String,
    /// Last ledger event that the value includes. `None`: the last one at the commit.
    pub after: Option<u64>,
    /// Expected current version, if given; 0 for none.
    pub if_match: Option<i64>,
    pub audit: AuditEntry,
    /// Epoch milliseconds.
    pub at: i64,
}

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointWritten {
    Stored {
        version: i64,
        /// Last ledger event that the checkpoint includes; 0 for none.
        after: u64,
    },
    /// The current version differs; 0 for none.
    Mismatch(i64),
    /// A later attempt has the run.
    Moved,
    /// The run has ended.
    RunEnded,
}

/// A stored checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointRecord {
    /// JSON text.
    pub value: String,
    pub version: i64,
    /// Last ledger event that it includes; 0 for none.
    pub after: u64,
    /// Time of its write, in epoch milliseconds.
    pub at: i64,
}

impl Mutation for PutCheckpoint {
    type Output = CheckpointWritten;
    const CHANGES_AGENTS: bool = false;

    fn weight(&self) -> usize {
        self.value.len()
    }

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<CheckpointWritten, StoreError> {
        // Locks the row: a new attempt commits before or after this transaction.
        let lock = "UPDATE runs SET last_sequence = last_sequence WHERE id = $1 AND status = $2 \
                    RETURNING attempt, last_sequence";
        let values = vec![text(self.run_id), RunStatus::Running.as_str().into()];
        let run = tx.query_sql(lock.to_owned(), values).await?;
        let Some(run) = run.first() else {
            return Ok(CheckpointWritten::RunEnded);
        };
        if run.number("attempt")? != i64::from(self.attempt) {
            return Ok(CheckpointWritten::Moved);
        }
        // The audit row also proves an earlier commit, so refusals are audited, too.
        crate::audit::insert(tx, [&self.audit]).await?;
        if let Some(wanted) = self.if_match {
            let current = find(tx, self.run_id).await?;
            let current = current.map_or(0, |current| current.version);
            if current != wanted {
                return Ok(CheckpointWritten::Mismatch(current));
            }
        }
        let after = self.after.map_or(run.number("last_sequence")?, signed);
        let upsert = "INSERT INTO run_checkpoints (run_id, version, value, after_sequence, updated_at) \
            VALUES ($1, 1, $2, $3, $4) ON CONFLICT (run_id) DO UPDATE SET \
            version = run_checkpoints.version + 1, value = excluded.value, \
            after_sequence = excluded.after_sequence, updated_at = excluded.updated_at RETURNING version";
        let values: Vec<Value> = vec![
            text(self.run_id),
            self.value.as_str().into(),
            after.into(),
            self.at.into(),
        ];
        let stored = tx.query_sql(upsert.to_owned(), values).await?;
        Ok(CheckpointWritten::Stored {
            version: stored.first().map_or(Ok(1), |row| row.number("version"))?,
            after: after_of(self.run_id, after)?,
        })
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        _output: &Self::Output,
    ) -> Result<bool, StoreError> {
        crate::audit::is_recorded(tx, &self.audit).await
    }
}

async fn find(conn: &impl Sql, run: RunId) -> Result<Option<CheckpointRecord>, StoreError> {
    let sql =
        "SELECT version, value, after_sequence, updated_at FROM run_checkpoints WHERE run_id = $1";
    let found = conn.query_sql(sql.to_owned(), vec![text(run)]).await?;
    let read = |row: &crate::sql::SqlRow| {
        Ok(CheckpointRecord {
            value: row.text("value")?,
            version: row.number("version")?,
            after: after_of(run, row.number("after_sequence")?)?,
            at: row.number("updated_at")?,
        })
    };
    found.first().map(read).transpose()
}

fn after_of(run: RunId, after: i64) -> Result<u64, StoreError> {
    unsigned("run_checkpoints.after_sequence", &run.to_string(), after)
}

impl StateRepository<'_> {
    /// The newest checkpoint of a live run.
    pub async fn find_checkpoint(self, run: RunId) -> Result<Option<CheckpointRecord>, StoreError> {
        find(&self.db.readers, run).await
    }
}

const OF_ENDED_RUNS: &str = "SELECT c.run_id FROM run_checkpoints c JOIN runs r ON r.id = c.run_id \
                             WHERE r.finished_at IS NOT NULL";

struct SweepCheckpoints;

impl Mutation for SweepCheckpoints {
    type Output = u64;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        // In one order, so that replicas do not deadlock.
        let sql = format!(
            "DELETE FROM run_checkpoints WHERE run_id IN ({OF_ENDED_RUNS} ORDER BY c.run_id LIMIT {SWEPT}) \
             RETURNING run_id"
        );
        let deleted = tx.query_sql(sql, Vec::new()).await?;
        Ok(deleted.len() as u64)
    }
}

impl RetentionRepository<'_> {
    /// Deletes a batch of checkpoints of ended runs; returns their number.
    pub async fn sweep_checkpoints(self) -> Result<u64, StoreError> {
        // Skips the writer when there is nothing to do.
        let sql = format!("{OF_ENDED_RUNS} LIMIT 1");
        if self.db.readers.query_sql(sql, Vec::new()).await?.is_empty() {
            return Ok(0);
        }
        self.db.write(SweepCheckpoints).await
    }
}
