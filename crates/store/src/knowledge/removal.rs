//! Deletion of documents, and batched deletion of unused contents.

use std::time::Duration;

use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend};

use super::indexing::{FailIndexing, changed, discard};
use super::{BaseKey, SPAN, find_row};
use crate::database_clock::{millis, read_now};
use crate::engine::Backend;
use crate::error::StoreError;
use crate::mutation::Mutation;
use crate::repositories::KnowledgeRepository;
use crate::sql::Sql;

/// An indexing without a write for this long has lost its process.
const ABANDONED: Duration = Duration::from_mins(5);
/// Maximum chunks deleted per transaction: other writes wait.
const SWEEP: i64 = 256;

/// Deletes a document, even during indexing.
#[derive(Clone, Debug)]
pub struct DeleteDocument {
    pub base: BaseKey,
    pub document_id: String,
}

impl Mutation for DeleteDocument {
    /// False: no such document.
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
        // Both contents: a document under indexing has a searchable one and a pending one.
        discard(tx, row.number("content")?).await?;
        discard(tx, row.number("pending")?).await?;
        changed(tx, &self.base).await?;
        Ok(true)
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        output: &bool,
    ) -> Result<bool, StoreError> {
        // A result of false wrote nothing, so a retry is safe.
        Ok(*output && find_row(tx, &self.base, &self.document_id).await?.is_none())
    }
}

/// Abandons indexings of dead processes, and deletes chunks of unused contents.
#[derive(Clone, Copy, Debug)]
pub struct SweepKnowledge {
    /// Timeout of an indexing without a write. Zero: every begun indexing has lost its process.
    abandoned: Duration,
}

impl Mutation for SweepKnowledge {
    /// True: more chunks are left to delete.
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
            // Checked again in the update: the indexing may have written a chunk meanwhile.
            fail.fail_unless_written_since(tx, abandoned).await?;
        }
        // Replicas skip each other's rows; SQLite has one writer and no such clause.
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

/// Deletes a batch of chunks of a content, or the rest of the content after the last chunk.
async fn delete_some(tx: &DatabaseTransaction, content: i64) -> Result<(), StoreError> {
    let (from, end) = (content * SPAN, (content + 1) * SPAN);
    let sql = format!(
        "SELECT id FROM knowledge_chunks WHERE id >= $1 AND id < $2 ORDER BY id LIMIT {SWEEP}"
    );
    let rows = tx.query_sql(sql, vec![from.into(), end.into()]).await?;
    // The last batch is deleted: only now the number may go.
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
        // Index rows first: chunks find the rest of a content after a crash.
        let sql = format!("DELETE FROM {table} WHERE {id} >= $1 AND {id} <= $2");
        tx.execute_sql(sql, vec![from.into(), last.into()]).await?;
    }
    Ok(())
}

impl KnowledgeRepository<'_> {
    /// Abandons indexings of dead processes and deletes a batch of unused contents. True: more are left.
    pub async fn sweep_knowledge(self) -> Result<bool, StoreError> {
        let sql = "SELECT content AS one FROM knowledge_garbage UNION ALL \
            SELECT pending FROM knowledge_documents WHERE pending > 0 LIMIT 1";
        // Reads first, because most passes have nothing to do and need no write.
        if self
            .db
            .readers
            .query_sql(sql.to_owned(), Vec::new())
            .await?
            .is_empty()
        {
            return Ok(false);
        }
        let abandoned = ABANDONED;
        self.db.write(SweepKnowledge { abandoned }).await
    }

    /// The same at boot. On `SQLite` this process is the only one, so every begun indexing has lost its process.
    pub async fn sweep_knowledge_at_boot(self) -> Result<bool, StoreError> {
        let abandoned = match self.db.backend() {
            Backend::Sqlite => Duration::ZERO,
            Backend::Postgres => ABANDONED,
        };
        self.db.write(SweepKnowledge { abandoned }).await
    }
}
