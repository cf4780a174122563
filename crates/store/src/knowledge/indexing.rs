//! Indexing of a document: begun, written in unsearchable batches, finished by moving the document to the new
//! content.

use sea_orm::{DatabaseTransaction, Value};

use super::{BaseKey, COLUMNS, DocumentFacts, DocumentRecord, Recipe, find_row, record};
use crate::database_clock::read_now;
use crate::error::{StoreError, signed};
use crate::mutation::Mutation;
use crate::sql::{Sql, executed, inserted};

/// Reserves a new content for a document.
#[derive(Clone, Debug)]
pub struct BeginIndexing {
    pub base: BaseKey,
    pub document_id: String,
    pub facts: DocumentFacts,
    pub recipe: Recipe,
    /// Unique name of this attempt.
    pub attempt: String,
    /// Maximum documents of the base.
    pub max_documents: u64,
    /// Rebuilds this content. Begins only while the document points at it, and even if bytes and parameters are
    /// unchanged.
    pub anew: Option<i64>,
    pub at: i64,
}

/// Result of a begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexingBegun {
    /// Number of the new content.
    Content(i64),
    /// The same content is already searchable.
    Unchanged(Box<DocumentRecord>),
    /// The content to rebuild is outdated: the document was replaced or deleted.
    Gone,
    /// Another process is indexing this document.
    Busy,
    /// The base has the maximum number of documents.
    Full,
}

impl Mutation for BeginIndexing {
    type Output = IndexingBegun;
    const CHANGES_AGENTS: bool = false;

    fn lock(&self) -> Option<String> {
        Some(self.base.lock())
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<IndexingBegun, StoreError> {
        let now = read_now(tx).await?;
        if let Some(row) = find_row(tx, &self.base, &self.document_id).await? {
            let pending = row.number("pending")?;
            // A retry of this attempt after a lost commit reply.
            if pending > 0 && row.text("pending_by")? == self.attempt {
                return Ok(IndexingBegun::Content(pending));
            }
            if pending > 0 {
                return Ok(IndexingBegun::Busy);
            }
            let existing = record(&row)?;
            if self.anew.is_some_and(|content| content != existing.content) {
                return Ok(IndexingBegun::Gone);
            }
            let is_same = existing.content > 0
                && existing.facts == self.facts
                && existing.recipe == self.recipe
                && existing.status == "ready";
            if is_same && self.anew.is_none() {
                return Ok(IndexingBegun::Unchanged(Box::new(existing)));
            }
            return self.reserve_again(tx, now).await;
        }
        if self.anew.is_some() {
            return Ok(IndexingBegun::Gone);
        }
        let count = "SELECT COUNT(*) AS count FROM knowledge_documents WHERE workspace_id = $1 AND kb_id = $2";
        let rows = tx
            .query_sql(count.to_owned(), self.base.values().to_vec())
            .await?;
        // Counted under the lock of the base, so concurrent uploads cannot exceed the limit.
        let count = rows.first().map_or(Ok(0), |row| row.number("count"))?;
        if count >= signed(self.max_documents) {
            return Ok(IndexingBegun::Full);
        }
        self.reserve_new(tx, now).await
    }
}

impl BeginIndexing {
    async fn reserve_again(
        &self,
        tx: &DatabaseTransaction,
        now: i64,
    ) -> Result<IndexingBegun, StoreError> {
        let content = next_content(tx).await?;
        let sql = "UPDATE knowledge_documents SET status = 'indexing', error = NULL, pending = $4, \
            pending_by = $5, pending_done = 0, pending_all = 0, pending_at = $6, updated_at = $7 \
            WHERE workspace_id = $1 AND kb_id = $2 AND document_id = $3";
        let mut values = self.base.values().to_vec();
        values.extend([
            self.document_id.as_str().into(),
            content.into(),
            self.attempt.as_str().into(),
            now.into(),
            self.at.into(),
        ]);
        tx.execute_sql(sql.to_owned(), values).await?;
        Ok(IndexingBegun::Content(content))
    }

    async fn reserve_new(
        &self,
        tx: &DatabaseTransaction,
        now: i64,
    ) -> Result<IndexingBegun, StoreError> {
        let content = next_content(tx).await?;
        let [workspace, kb_id] = self.base.values();
        let row = [
            workspace,
            kb_id,
            self.document_id.as_str().into(),
            self.facts.name.as_str().into(),
            self.facts.mime_type.as_str().into(),
            self.facts.metadata.as_str().into(),
            self.facts.sha256.as_str().into(),
            signed(self.facts.bytes).into(),
            self.recipe.vector_model.clone().into(),
            signed(self.recipe.chunk_chars).into(),
            signed(self.recipe.chunk_overlap).into(),
            content.into(),
            self.attempt.as_str().into(),
            now.into(),
            self.at.into(),
        ];
        let insert = "INSERT INTO knowledge_documents (workspace_id, kb_id, document_id, name, mime_type, metadata, \
                 sha256, bytes, vector_model, chunk_chars, chunk_overlap, pending, pending_by, pending_at, \
                 created_at, updated_at, characters, chunks, units, content, status, pending_done, pending_all) \
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, \
                 CAST(?9 AS TEXT), ?10, ?11, ?12, ?13, ?14, ?15, \
                 ?15, 0, 0, 0, 0, 'indexing', 0, 0 FROM rows";
        executed(tx, vec![row], insert).await?;
        Ok(IndexingBegun::Content(content))
    }
}

async fn next_content(tx: &DatabaseTransaction) -> Result<i64, StoreError> {
    let sql = "UPDATE knowledge_numbers SET last = last + 1 WHERE name = 'content' RETURNING last";
    let rows = tx.query_sql(sql.to_owned(), Vec::new()).await?;
    rows.first()
        .map_or(Err(StoreError::Refused), |row| row.number("last"))
}

/// Moves a document to the written content.
#[derive(Clone, Debug)]
pub struct FinishIndexing {
    pub base: BaseKey,
    pub document_id: String,
    pub content: i64,
    pub facts: DocumentFacts,
    pub recipe: Recipe,
    /// Names and values for filters.
    pub entries: Vec<(String, String)>,
    pub characters: u64,
    pub chunks: u64,
    pub units: u64,
    /// The unreadable parts of the document.
    pub missing: Option<String>,
    pub at: i64,
}

impl Mutation for FinishIndexing {
    /// `None`: another process has abandoned the indexing.
    type Output = Option<DocumentRecord>;
    const CHANGES_AGENTS: bool = false;

    fn lock(&self) -> Option<String> {
        Some(self.base.lock())
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Self::Output, StoreError> {
        let Some(row) = find_row(tx, &self.base, &self.document_id).await? else {
            return Ok(None);
        };
        let before = record(&row)?;
        if before.content == self.content {
            // A retry after a lost commit reply.
            return Ok(Some(before));
        }
        if row.number("pending")? != self.content {
            return Ok(None);
        }
        // A sweep may abandon it concurrently: the first one wins.
        let pointed = self.point(tx).await?;
        if pointed.is_empty() {
            return Ok(None);
        }
        // The old chunks are deleted in batches by the sweep: they may be many.
        discard(tx, before.content).await?;
        let rows = self.entries.iter().map(|(name, value)| -> [Value; 3] {
            [
                self.content.into(),
                name.as_str().into(),
                value.as_str().into(),
            ]
        });
        let into = "knowledge_metadata (content, name, value)";
        inserted(tx, into, rows.collect()).await?;
        changed(tx, &self.base).await?;
        pointed.first().map(record).transpose()
    }
}

impl FinishIndexing {
    async fn point(&self, tx: &DatabaseTransaction) -> Result<Vec<crate::sql::SqlRow>, StoreError> {
        let sql = format!(
            "UPDATE knowledge_documents SET name = $4, mime_type = $5, metadata = $6, sha256 = $7, \
             bytes = $8, characters = $9, chunks = $10, units = $11, content = $12, \
             vector_model = $13, chunk_chars = $14, chunk_overlap = $15, status = 'ready', \
             error = $17, pending = 0, pending_by = '', updated_at = $16 \
             WHERE workspace_id = $1 AND kb_id = $2 AND document_id = $3 AND pending = $12 \
             RETURNING {}",
            COLUMNS.selected()
        );
        let mut values = self.base.values().to_vec();
        values.extend([
            self.document_id.as_str().into(),
            self.facts.name.as_str().into(),
            self.facts.mime_type.as_str().into(),
            self.facts.metadata.as_str().into(),
            self.facts.sha256.as_str().into(),
            signed(self.facts.bytes).into(),
            signed(self.characters).into(),
            signed(self.chunks).into(),
            signed(self.units).into(),
            self.content.into(),
            self.recipe.vector_model.clone().into(),
            signed(self.recipe.chunk_chars).into(),
            signed(self.recipe.chunk_overlap).into(),
            self.at.into(),
            self.missing.clone().into(),
        ]);
        tx.query_sql(sql, values).await
    }
}

/// Abandons an indexing. The previous content stays searchable.
#[derive(Clone, Debug)]
pub struct FailIndexing {
    pub content: i64,
    pub error: String,
    pub at: i64,
}

impl Mutation for FailIndexing {
    type Output = ();
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        self.fail_unless_written_since(tx, i64::MAX).await
    }
}

impl FailIndexing {
    /// The same, unless it wrote a chunk after `moment`.
    pub(super) async fn fail_unless_written_since(
        &self,
        tx: &DatabaseTransaction,
        moment: i64,
    ) -> Result<(), StoreError> {
        let sql = "UPDATE knowledge_documents SET status = 'failed', error = $2, pending = 0, pending_by = '', \
            updated_at = $3 WHERE pending = $1 AND pending_at <= $4 RETURNING document_id";
        let values = vec![
            self.content.into(),
            self.error.as_str().into(),
            self.at.into(),
            moment.into(),
        ];
        let given_up = !tx.query_sql(sql.to_owned(), values).await?.is_empty();
        if given_up {
            discard(tx, self.content).await?;
        }
        Ok(())
    }
}

/// Marks an unused content for the sweep.
pub(super) async fn discard(tx: &DatabaseTransaction, content: i64) -> Result<(), StoreError> {
    if content == 0 {
        return Ok(());
    }
    inserted(tx, "knowledge_garbage (content)", vec![[content.into()]]).await
}

/// Increments the version of the base, because search results change.
pub(super) async fn changed(tx: &DatabaseTransaction, base: &BaseKey) -> Result<(), StoreError> {
    let sql = "INSERT INTO knowledge_bases (workspace_id, kb_id, version) VALUES ($1, $2, 1) \
        ON CONFLICT (workspace_id, kb_id) DO UPDATE SET version = knowledge_bases.version + 1";
    tx.execute_sql(sql.to_owned(), base.values().to_vec()).await
}
