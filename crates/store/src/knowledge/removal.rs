//! What goes: documents at once, and behind them, a little at a time, what nobody searches any more.

use std::time::Duration;

use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend};

use super::indexing::{FailIndexing, changed, discard};
use super::{BaseKey, SPAN, find_row};
use crate::connect::{Backend, Store};
use crate::database_clock::{millis, read_now};
use crate::error::StoreError;
use crate::sql::Sql;
use crate::writer::Work;

/// An indexing that has written nothing for so long has lost its process.
const ABANDONED: Duration = Duration::from_mins(5);
/// Chunks that are deleted in one transaction: everything else waits behind it.
const SWEEP: i64 = 256;

/// Removes a document, whatever becomes of it at this moment.
#[derive(Clone, Debug)]
pub struct DeleteDocument {
    pub base: BaseKey,
    pub document_id: String,
}

impl Work for DeleteDocument {
    /// False: there is none.
    type Output = bool;
    const CHANGES_AGENTS: bool = false;

    fn lock(&self) -> Option<String> {
        Some(self.base.lock())
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        let sql = "DELETE FROM knowledge_documents \
            WHERE workspace_id = $1 AND kb_id = $2 AND document_id = $3 RETURNING content, pending";
        let mut values = self.base.values().to_vec();
        values.push(self.document_id.as_str().into());
        let rows = tx.query_sql(sql.to_owned(), values).await?;
        let Some(row) = rows.first() else {
            return Ok(false);
        };
        discard(tx, row.number("content")?).await?;
        discard(tx, row.number("pending")?).await?;
        changed(tx, &self.base).await?;
        Ok(true)
    }

    async fn stands(&self, tx: &DatabaseTransaction, told: &bool) -> Result<bool, StoreError> {
        Ok(*told && find_row(tx, &self.base, &self.document_id).await?.is_none())
    }
}

/// Ends indexings whose process is gone, and deletes chunks of contents that no document points at.
#[derive(Clone, Copy, Debug)]
pub struct SweepKnowledge {
    /// How long an indexing may write nothing. Zero: whatever is begun has lost its process.
    abandoned: Duration,
}

impl Work for SweepKnowledge {
    /// True: there is more to delete.
    type Output = bool;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        let now = read_now(tx).await?;
        let sql = "SELECT pending FROM knowledge_documents WHERE pending > 0 AND pending_at <= $1 LIMIT 16";
        let abandoned = now - millis(self.abandoned);
        let rows = tx.query_sql(sql.to_owned(), vec![abandoned.into()]).await?;
        for row in rows {
            let fail = FailIndexing {
                content: row.number("pending")?,
                error: "the gateway stopped while it indexed this document; send it again"
                    .to_owned(),
                at: now,
            };
            fail.unless_written_since(tx, abandoned).await?;
        }
        // Of several replicas one at a time; SQLite has one writer, and no such clause.
        let ours = match tx.get_database_backend() {
            DbBackend::Postgres => " FOR UPDATE SKIP LOCKED",
            _ => "",
        };
        let sql = format!("SELECT content FROM knowledge_garbage ORDER BY content LIMIT 1{ours}");
        match tx.query_sql(sql, Vec::new()).await?.first() {
            None => Ok(false),
            Some(row) => delete_some(tx, row.number("content")?).await.map(|()| true),
        }
    }
}

/// Deletes some chunks of a content, or the rest of it when none are left.
async fn delete_some(tx: &DatabaseTransaction, content: i64) -> Result<(), StoreError> {
    let (from, end) = (content * SPAN, (content + 1) * SPAN);
    let sql = format!(
        "SELECT id FROM knowledge_chunks WHERE id >= $1 AND id < $2 ORDER BY id LIMIT {SWEEP}"
    );
    let rows = tx.query_sql(sql, vec![from.into(), end.into()]).await?;
    let Some(last) = rows.last() else {
        for table in ["knowledge_metadata", "knowledge_garbage"] {
            let sql = format!("DELETE FROM {table} WHERE content = $1");
            tx.execute_sql(sql, vec![content.into()]).await?;
        }
        return Ok(());
    };
    let last = last.number("id")?;
    for (table, id) in [
        ("knowledge_terms", "rowid"),
        ("knowledge_vectors", "id"),
        ("knowledge_chunks", "id"),
    ] {
        let sql = format!("DELETE FROM {table} WHERE {id} >= $1 AND {id} <= $2");
        tx.execute_sql(sql, vec![from.into(), last.into()]).await?;
    }
    Ok(())
}

impl Store {
    /// Ends indexings that have lost their process and deletes some of what nobody searches. True: there
    /// is more.
    pub async fn sweep_knowledge(&self) -> Result<bool, StoreError> {
        let sql = "SELECT content AS one FROM knowledge_garbage UNION ALL \
            SELECT pending FROM knowledge_documents WHERE pending > 0 LIMIT 1";
        if self
            .readers
            .query_sql(sql.to_owned(), Vec::new())
            .await?
            .is_empty()
        {
            return Ok(false);
        }
        let abandoned = ABANDONED;
        self.write(SweepKnowledge { abandoned }).await
    }

    /// The same at the start of the only process of this database: whatever was begun has lost its process.
    pub async fn sweep_knowledge_at_boot(&self) -> Result<bool, StoreError> {
        let abandoned = match self.backend() {
            Backend::Sqlite => Duration::ZERO,
            Backend::Postgres => ABANDONED,
        };
        self.write(SweepKnowledge { abandoned }).await
    }
}
