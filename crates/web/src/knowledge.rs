//! Errors and documents of knowledge bases.

use protocol::knowledge::{DocumentProgress, DocumentStatus, KnowledgeDocument};
use store::DocumentRecord;

use crate::error::ApiError;
use knowledge::KnowledgeError;
use runs::intake::IntakeError;

impl From<KnowledgeError> for ApiError {
    fn from(error: KnowledgeError) -> Self {
        let message = error.to_string();
        match error {
            KnowledgeError::UnknownBase(id) => Self::not_found("knowledge base", id),
            KnowledgeError::UnknownDocument(id) => Self::not_found("document", id),
            KnowledgeError::Remote => Self::conflict("remote_base", message),
            KnowledgeError::DocumentBusy => Self::conflict("document_busy", message),
            KnowledgeError::BaseFull => Self::conflict("base_full", message),
            KnowledgeError::TooMany => Self::rate_limited_by("indexing", message, 10),
            KnowledgeError::Unreadable(_) => Self::invalid_argument(message),
            KnowledgeError::Stopping => IntakeError::Stopping.into(),
            KnowledgeError::Faults(faults) => Self::faults(&faults),
            KnowledgeError::Upstream(error) => error.into(),
            KnowledgeError::Store(error) => error.into(),
        }
    }
}

/// Converts a stored document to its API form.
pub fn shown(record: DocumentRecord) -> KnowledgeDocument {
    let status = match record.status.as_str() {
        "ready" => DocumentStatus::Ready,
        "failed" => DocumentStatus::Failed,
        _ => DocumentStatus::Indexing,
    };
    let progress = DocumentProgress {
        chunks_done: record.done,
        chunks_all: record.all,
    };
    KnowledgeDocument {
        document_id: record.document_id,
        name: record.facts.name,
        mime_type: record.facts.mime_type,
        metadata: serde_json::from_str(&record.facts.metadata).unwrap_or_default(),
        sha256: record.facts.sha256,
        size: record.facts.bytes,
        characters: record.characters,
        chunks: record.chunks,
        embedding_model: record.recipe.vector_model,
        status,
        error: record.error,
        searchable: record.content > 0,
        progress: (status == DocumentStatus::Indexing).then_some(progress),
        created_at: record.created_at.div_euclid(1000),
        updated_at: record.updated_at.div_euclid(1000),
    }
}
