//! Chunks of a content, written in batches that are searchable only after the last one.

use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, Value};

use super::SPAN;
use crate::database_clock::read_now;
use crate::error::{StoreError, signed};
use crate::mutation::Mutation;
use crate::sql::{Sql, executed, inserted};

/// A chunk to write.
#[derive(Clone, Debug)]
pub struct NewChunk {
    pub text: String,
    pub start: u64,
    pub end: u64,
    pub heading: Option<String>,
    /// Index terms, separated by spaces.
    pub terms: String,
    /// Words and signs.
    pub units: u64,
    /// Normalized vector, as bytes.
    pub vector: Option<Vec<u8>>,
}

/// Writes chunks of a begun content.
#[derive(Clone, Debug)]
pub struct WriteChunks {
    pub content: i64,
    /// Number of the first chunk.
    pub first: u64,
    pub chunks: Vec<NewChunk>,
    /// Total chunks of the document.
    pub all: u64,
}

impl Mutation for WriteChunks {
    /// False: another process has abandoned the indexing.
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
        // Abandoned meanwhile: its chunks would belong to no document and never be deleted.
        if tx.query_sql(sql.to_owned(), values).await?.is_empty() {
            return Ok(false);
        }
        self.insert(tx).await?;
        Ok(true)
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        _output: &bool,
    ) -> Result<bool, StoreError> {
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
        let insert = match tx.get_database_backend() {
            DbBackend::Postgres => {
                "INSERT INTO knowledge_terms (rowid, terms) \
                 SELECT ?1, array_to_tsvector(string_to_array(?2, ' ')) FROM rows"
            }
            _ => "INSERT INTO knowledge_terms (rowid, terms) VALUES rows",
        };
        executed(tx, rows.collect(), insert).await
    }
}
