//! Knowledge bases: queries and results (`/host/v1/knowledge-bases`), and documents that an operator uploads.

use serde::{Deserialize, Serialize};

use crate::JsonObject;
use crate::message::ContentElement;
use crate::resources::KnowledgeBaseResource;

/// One passage of a knowledge base.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RetrievalResultEntry {
    pub id: String,
    pub content: Vec<ContentElement>,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: JsonObject,
    /// Distance to the query: lower is closer.
    pub distance: f64,
    /// Relevance: higher is closer. Absent if the knowledge base does not score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
}

/// Query of a knowledge base.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RetrievalQuery {
    /// Natural-language query, at most 8 KiB.
    pub query_text: String,
    /// Maximum number of results: 1 to 50, default 5.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 50))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u64>,
    /// Filters by metadata name, `document_id`, `name` or `mime_type`. Each filter is a value, or a list of
    /// which one value must match. All filters must match.
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub filters: JsonObject,
}

/// Search results, closest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RetrievalResults {
    pub results: Vec<RetrievalResultEntry>,
}

/// Knowledge bases that a run may list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KnowledgeBaseList {
    pub knowledge_bases: Vec<KnowledgeBaseResource>,
}

/// A document of a knowledge base, without its text. Times are epoch seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KnowledgeDocument {
    pub document_id: String,
    pub name: String,
    pub mime_type: String,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: JsonObject,
    /// SHA-256 of the uploaded bytes, lower-case hex.
    pub sha256: String,
    pub size: u64,
    /// Characters of the text.
    pub characters: u64,
    pub chunks: u64,
    /// Embedding model of the vectors. Null: keyword search only.
    pub embedding_model: Option<String>,
    pub status: DocumentStatus,
    /// Reason of the last indexing failure. The previous version stays searchable. For a `ready` document: the
    /// parts that could not be read and are not searchable.
    pub error: Option<String>,
    /// True if queries find the document, also during the indexing of a new version and after its failure.
    pub searchable: bool,
    /// Progress during indexing.
    pub progress: Option<DocumentProgress>,
    pub created_at: i64,
    pub updated_at: i64,
}

/// Result of the last indexing of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DocumentStatus {
    Indexing,
    Ready,
    Failed,
}

/// Indexing progress of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DocumentProgress {
    pub chunks_done: u64,
    /// Total number of chunks. 0 until the text is read.
    pub chunks_all: u64,
}

/// Documents that a reindex call has processed; `status` and `error` give each result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reindexed {
    pub documents: Vec<KnowledgeDocument>,
    /// Opaque cursor for the next call. Null: no documents remain.
    pub next_cursor: Option<String>,
}
