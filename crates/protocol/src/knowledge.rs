//! Knowledge bases: what is asked of them (`/host/v1/knowledge-bases`), what they find, and the documents
//! that an operator puts into them.

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
    /// The lower, the closer to the query.
    pub distance: f64,
    /// The higher, the closer; absent when the base does not score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
}

/// What is searched for in a knowledge base.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RetrievalQuery {
    /// As somebody asks it, at most 8 KiB.
    pub query_text: String,
    /// 1 to 50, default 5.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 50))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u64>,
    /// By name of the metadata, `document_id`, `name` or `mime_type`: a value, or a list of which one must
    /// stand there. All names must hold.
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub filters: JsonObject,
}

/// What was found, the closest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RetrievalResults {
    pub results: Vec<RetrievalResultEntry>,
}

/// The knowledge bases that a run may list.
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
    /// Of the bytes that were sent, lower-case hex.
    pub sha256: String,
    pub size: u64,
    /// Characters of its text.
    pub characters: u64,
    pub chunks: u64,
    /// The model of its vectors; null: it is found by its words alone.
    pub embedding_model: Option<String>,
    pub status: DocumentStatus,
    /// Why the last try failed: what was searched before it still is. Of a document that is `ready`: what of it could not be
    /// read and is not searched.
    pub error: Option<String>,
    /// Whether a query finds it now: also while a new version is indexed, or after that failed.
    pub searchable: bool,
    /// While it is indexed.
    pub progress: Option<DocumentProgress>,
    pub created_at: i64,
    pub updated_at: i64,
}

/// What became of the last try to index a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DocumentStatus {
    Indexing,
    Ready,
    Failed,
}

/// How far the indexing of a document is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DocumentProgress {
    pub chunks_done: u64,
    /// 0 until the text is read.
    pub chunks_all: u64,
}

/// The documents that a call of reindex has made anew.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reindexed {
    pub documents: Vec<KnowledgeDocument>,
    /// Opaque; call again with it. Null: all are done.
    pub next_cursor: Option<String>,
}
