//! Indexing a document: begun, written in batches that nobody finds yet, and finished by pointing the
//! document at what was written.

use std::time::Duration;

use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, Value};

use super::{BaseKey, COLUMNS, DocumentFacts, DocumentRecord, Recipe, SPAN, find_row, record};
use crate::connect::Store;
use crate::database_clock::{millis, read_now};
use crate::error::{StoreError, signed};
use crate::sql::{Sql, executed, inserted};
use crate::writer::Work;

/// An indexing that has written nothing for so long has lost its process.
const ABANDONED: Duration = Duration::from_mins(5);
/// Chunks that are deleted in one transaction: everything else waits behind it.
const SWEEP: i64 = 256;

/// Reserves a new content for a document.
#[derive(Clone, Debug)]
pub struct BeginIndexing {
    pub base: BaseKey,
    pub document_id: String,
    pub facts: DocumentFacts,
    pub recipe: Recipe,
    /// This try, by a name of its own.
    pub attempt: String,
    /// Documents that the base may have.
    pub most: u64,
    /// True: also when the same bytes stand there already, made in the same way.
    pub anew: bool,
    pub at: i64,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexingBegun {
    /// The number of the content.
    Content(i64),
    /// The very same is searched already.
    Unchanged(Box<DocumentRecord>),
    /// Somebody is indexing this document.
    Busy,
    /// The base has as many documents as it may have.
    Full,
}

impl Work for BeginIndexing {
    type Output = IndexingBegun;
    const CHANGES_AGENTS: bool = false;

    fn lock(&self) -> Option<String> {
        Some(self.base.lock())
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<IndexingBegun, StoreError> {
        let now = read_now(tx).await?;
        if let Some(row) = find_row(tx, &self.base, &self.document_id).await? {
            let pending = row.number("pending")?;
            if pending > 0 && row.text("pending_by")? == self.attempt {
                return Ok(IndexingBegun::Content(pending));
            }
            if pending > 0 {
                return Ok(IndexingBegun::Busy);
            }
            let known = record(&row)?;
            let is_same = known.content > 0
                && known.facts == self.facts
                && known.recipe == self.recipe
                && known.status == "ready";
            if is_same && !self.anew {
                return Ok(IndexingBegun::Unchanged(Box::new(known)));
            }
            return self.reserve_again(tx, now).await;
        }
        let count = "SELECT COUNT(*) AS count FROM knowledge_documents WHERE workspace_id = $1 AND kb_id = $2";
        let rows = tx
            .query_sql(count.to_owned(), self.base.values().to_vec())
            .await?;
        let count = rows.first().map_or(Ok(0), |row| row.number("count"))?;
        if count >= signed(self.most) {
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
        let insert = |values: &str| {
            format!(
                "INSERT INTO knowledge_documents (workspace_id, kb_id, document_id, name, mime_type, metadata, \
                 sha256, bytes, vector_model, chunk_chars, chunk_overlap, pending, pending_by, pending_at, \
                 created_at, updated_at, characters, chunks, units, content, status, pending_done, pending_all) \
                 SELECT v.column1, v.column2, v.column3, v.column4, v.column5, v.column6, v.column7, v.column8, \
                 CAST(v.column9 AS TEXT), v.column10, v.column11, v.column12, v.column13, v.column14, v.column15, \
                 v.column15, 0, 0, 0, 0, 'indexing', 0, 0 FROM ({values}) AS v"
            )
        };
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

/// A chunk as it is written.
#[derive(Clone, Debug)]
pub struct NewChunk {
    pub text: String,
    pub start: u64,
    pub end: u64,
    pub heading: Option<String>,
    /// Terms of the index, separated by blanks.
    pub terms: String,
    /// Words and signs.
    pub units: u64,
    /// Of length one, as bytes.
    pub vector: Option<Vec<u8>>,
}

/// Writes chunks of a content that was begun.
#[derive(Clone, Debug)]
pub struct WriteChunks {
    pub content: i64,
    /// The number of the first of them.
    pub first: u64,
    pub chunks: Vec<NewChunk>,
    /// How many the document has.
    pub all: u64,
}

impl Work for WriteChunks {
    /// False: the indexing was given up, by somebody else.
    type Output = bool;
    const CHANGES_AGENTS: bool = false;

    fn weight(&self) -> usize {
        let bytes = |chunk: &NewChunk| {
            chunk.text.len() + chunk.terms.len() + chunk.vector.as_ref().map_or(0, Vec::len)
        };
        self.chunks.iter().map(bytes).sum()
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        let done = self.first + self.chunks.len() as u64;
        let now = read_now(tx).await?;
        let sql = "UPDATE knowledge_documents SET pending_done = $2, pending_all = $3, pending_at = $4 \
            WHERE pending = $1 RETURNING pending";
        let values = vec![
            self.content.into(),
            signed(done).into(),
            signed(self.all).into(),
            now.into(),
        ];
        if tx.query_sql(sql.to_owned(), values).await?.is_empty() {
            return Ok(false);
        }
        self.insert(tx).await?;
        Ok(true)
    }

    async fn stands(&self, tx: &DatabaseTransaction, _told: &bool) -> Result<bool, StoreError> {
        let sql = "SELECT id FROM knowledge_chunks WHERE id = $1";
        let first = self.content * SPAN + signed(self.first);
        Ok(!tx
            .query_sql(sql.to_owned(), vec![first.into()])
            .await?
            .is_empty())
    }
}

impl WriteChunks {
    async fn insert(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        let from = self.content * SPAN + signed(self.first);
        let numbered = || (from..).zip(&self.chunks);
        let rows = numbered().map(|(id, chunk)| -> [Value; 6] {
            [
                id.into(),
                chunk.text.as_str().into(),
                signed(chunk.start).into(),
                signed(chunk.end).into(),
                chunk.heading.clone().into(),
                signed(chunk.units).into(),
            ]
        });
        let into = "knowledge_chunks (id, text, start_at, end_at, heading, units)";
        inserted(tx, into, rows.collect()).await?;
        let rows = numbered().filter_map(|(id, chunk)| -> Option<[Value; 2]> {
            Some([id.into(), chunk.vector.clone()?.into()])
        });
        inserted(tx, "knowledge_vectors (id, vector)", rows.collect()).await?;
        let rows = numbered()
            .filter(|(_, chunk)| !chunk.terms.is_empty())
            .map(|(id, chunk)| -> [Value; 2] { [id.into(), chunk.terms.as_str().into()] });
        let terms = match tx.get_database_backend() {
            DbBackend::Postgres => "array_to_tsvector(string_to_array(v.column2, ' '))",
            _ => "v.column2",
        };
        let insert = |values: &str| {
            format!(
                "INSERT INTO knowledge_terms (rowid, terms) \
                 SELECT v.column1, {terms} FROM ({values}) AS v"
            )
        };
        executed(tx, rows.collect(), insert).await
    }
}

/// Points a document at the content that was written.
#[derive(Clone, Debug)]
pub struct FinishIndexing {
    pub base: BaseKey,
    pub document_id: String,
    pub content: i64,
    pub facts: DocumentFacts,
    pub recipe: Recipe,
    /// Names and values that filters find it by.
    pub entries: Vec<(String, String)>,
    pub characters: u64,
    pub chunks: u64,
    pub units: u64,
    pub at: i64,
}

impl Work for FinishIndexing {
    /// `None`: the indexing was given up, by somebody else.
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
            // Done before: the answer to that commit was lost, and it is tried again.
            return Ok(Some(before));
        }
        if row.number("pending")? != self.content {
            return Ok(None);
        }
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
        let rows = self.point(tx).await?;
        changed(tx, &self.base).await?;
        rows.first().map(record).transpose()
    }
}

impl FinishIndexing {
    async fn point(&self, tx: &DatabaseTransaction) -> Result<Vec<crate::sql::Row>, StoreError> {
        let sql = format!(
            "UPDATE knowledge_documents SET name = $4, mime_type = $5, metadata = $6, sha256 = $7, \
             bytes = $8, characters = $9, chunks = $10, units = $11, content = $12, \
             vector_model = $13, chunk_chars = $14, chunk_overlap = $15, status = 'ready', \
             error = NULL, pending = 0, pending_by = '', updated_at = $16 \
             WHERE workspace_id = $1 AND kb_id = $2 AND document_id = $3 RETURNING {COLUMNS}"
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
        ]);
        tx.query_sql(sql, values).await
    }
}

/// Gives an indexing up. What was searched before stays.
#[derive(Clone, Debug)]
pub struct FailIndexing {
    pub content: i64,
    pub error: String,
    pub at: i64,
}

impl Work for FailIndexing {
    type Output = ();
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        let sql = "UPDATE knowledge_documents SET status = 'failed', error = $2, pending = 0, pending_by = '', \
            updated_at = $3 WHERE pending = $1 RETURNING document_id";
        let values = vec![
            self.content.into(),
            self.error.as_str().into(),
            self.at.into(),
        ];
        let given_up = !tx.query_sql(sql.to_owned(), values).await?.is_empty();
        if given_up {
            discard(tx, self.content).await?;
        }
        Ok(())
    }
}

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

/// Nobody searches it any more; the sweep deletes it.
async fn discard(tx: &DatabaseTransaction, content: i64) -> Result<(), StoreError> {
    if content == 0 {
        return Ok(());
    }
    inserted(tx, "knowledge_garbage (content)", vec![[content.into()]]).await
}

/// What a search of the base finds is another from here on.
async fn changed(tx: &DatabaseTransaction, base: &BaseKey) -> Result<(), StoreError> {
    let sql = "INSERT INTO knowledge_bases (workspace_id, kb_id, version) VALUES ($1, $2, 1) \
        ON CONFLICT (workspace_id, kb_id) DO UPDATE SET version = knowledge_bases.version + 1";
    tx.execute_sql(sql.to_owned(), base.values().to_vec()).await
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
        let rows = tx
            .query_sql(sql.to_owned(), vec![(now - millis(self.abandoned)).into()])
            .await?;
        for row in rows {
            let fail = FailIndexing {
                content: row.number("pending")?,
                error: "the gateway stopped while it indexed this document; send it again"
                    .to_owned(),
                at: now,
            };
            fail.apply(tx).await?;
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
            crate::connect::Backend::Sqlite => Duration::ZERO,
            crate::connect::Backend::Postgres => ABANDONED,
        };
        self.write(SweepKnowledge { abandoned }).await
    }
}
