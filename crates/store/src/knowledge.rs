//! Documents of knowledge bases. A document points at its searchable content. A new content is written in
//! batches of chunks and replaces the old one in one transaction.

mod chunks;
mod indexing;
mod removal;
mod search;

use protocol::id::WorkspaceId;
use sea_orm::Value;

use crate::error::{StoreError, unsigned};
use crate::page::{Columns, ListPage, PageBound, TextPage};
use crate::repositories::KnowledgeRepository;
use crate::sql::{Sql, SqlRow};

pub use chunks::{NewChunk, WriteChunks};
pub use indexing::{BeginIndexing, FailIndexing, FinishIndexing, IndexingBegun};
pub use removal::{DeleteDocument, SweepKnowledge};
pub use search::{FoundChunk, Posting, StoredVector};

/// Chunk ids of a content start at `content * SPAN`.
const SPAN: i64 = 32_768;

/// A knowledge base of one workspace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BaseKey {
    pub workspace: WorkspaceId,
    pub kb_id: String,
}

/// Metadata of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentFacts {
    pub name: String,
    pub mime_type: String,
    /// A JSON object.
    pub metadata: String,
    /// SHA-256 of the received bytes, lower-case hex.
    pub sha256: String,
    pub bytes: u64,
}

/// Indexing parameters: other parameters give another content for the same bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Embedding model.
    pub vector_model: Option<String>,
    pub chunk_chars: u64,
    pub chunk_overlap: u64,
}

/// A document of a base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentRecord {
    pub document_id: String,
    pub facts: DocumentFacts,
    pub recipe: Recipe,
    /// The searchable content; 0: none.
    pub content: i64,
    pub characters: u64,
    pub chunks: u64,
    /// `indexing`, `ready` or `failed`: status of the last attempt.
    pub status: String,
    pub error: Option<String>,
    /// During indexing: written chunks, and all chunks.
    pub done: u64,
    pub all: u64,
    pub created_at: i64,
    pub updated_at: i64,
}

const COLUMNS: Columns = Columns {
    variable: &[
        "document_id",
        "name",
        "mime_type",
        "metadata",
        "sha256",
        "vector_model",
        "status",
        "error",
        "pending_by",
    ],
    fixed: &[
        "bytes",
        "characters",
        "chunks",
        "content",
        "chunk_chars",
        "chunk_overlap",
        "pending",
        "pending_done",
        "pending_all",
        "created_at",
        "updated_at",
    ],
};

fn record(row: &SqlRow) -> Result<DocumentRecord, StoreError> {
    let document_id = row.text("document_id")?;
    let count = |column: &'static str| unsigned(column, &document_id, row.number(column)?);
    Ok(DocumentRecord {
        facts: DocumentFacts {
            name: row.text("name")?,
            mime_type: row.text("mime_type")?,
            metadata: row.text("metadata")?,
            sha256: row.text("sha256")?,
            bytes: count("bytes")?,
        },
        recipe: Recipe {
            vector_model: row.text_if_any("vector_model")?,
            chunk_chars: count("chunk_chars")?,
            chunk_overlap: count("chunk_overlap")?,
        },
        content: row.number("content")?,
        characters: count("characters")?,
        chunks: count("chunks")?,
        status: row.text("status")?,
        error: row.text_if_any("error")?,
        done: count("pending_done")?,
        all: count("pending_all")?,
        created_at: row.number("created_at")?,
        updated_at: row.number("updated_at")?,
        document_id,
    })
}

impl BaseKey {
    /// Values of `$1` and `$2` in every statement here.
    fn values(&self) -> [Value; 2] {
        [self.workspace.as_str().into(), self.kb_id.as_str().into()]
    }

    /// Advisory lock for counting and replacing documents.
    fn lock(&self) -> String {
        format!("knowledge {} {}", self.workspace, self.kb_id)
    }
}

async fn find_row(
    conn: &impl Sql,
    base: &BaseKey,
    document_id: &str,
) -> Result<Option<SqlRow>, StoreError> {
    let columns = COLUMNS.selected();
    let sql = format!(
        "SELECT {columns} FROM knowledge_documents \
         WHERE workspace_id = $1 AND kb_id = $2 AND document_id = $3"
    );
    let mut values = base.values().to_vec();
    values.push(document_id.into());
    Ok(conn.query_sql(sql, values).await?.pop())
}

impl KnowledgeRepository<'_> {
    pub async fn find_document(
        self,
        base: &BaseKey,
        document_id: &str,
    ) -> Result<Option<DocumentRecord>, StoreError> {
        let row = find_row(&self.db.readers, base, document_id).await?;
        row.as_ref().map(record).transpose()
    }

    /// Documents of a base in byte order of their ids, after `after`.
    pub async fn list_documents(
        self,
        base: &BaseKey,
        after: Option<&str>,
        bound: impl Into<PageBound<'_>>,
    ) -> Result<ListPage<DocumentRecord>, StoreError> {
        let bound = bound.into();
        let page = TextPage {
            columns: COLUMNS,
            from: "knowledge_documents",
            owner: "workspace_id = $1 AND kb_id = $2",
            owner_values: base.values().to_vec(),
            key: ("document_id", "document_id"),
        };
        let mut values = base.values().to_vec();
        values.push(after.unwrap_or_default().into());
        let rest = "document_id > $3 ORDER BY document_id";
        let rows = page.read(&self.db.readers, rest, values, bound).await?;
        rows.try_map(|row| record(&row))
    }
}
