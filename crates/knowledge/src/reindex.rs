//! Reindexing: chunks and embeds the stored texts again with the current settings of the base.

use std::time::Duration;

use domain::knowledge::chunk::join;
use domain::knowledge::filter::entries;
use store::{BaseKey, ChangeStamp, DocumentRecord, StoreError};
use tokio::time::Instant;

use crate::extract::Extracted;
use crate::index::{DocumentSource, Indexed, NewDocument, to_chunk};
use crate::{Knowledge, KnowledgeError};

/// Maximum duration of one call.
const MAX_DURATION: Duration = Duration::from_secs(10);
/// Maximum number of documents per call.
const DOCUMENTS: usize = 50;
/// Number of chunks per read.
const PAGE: u64 = 500;

/// Result of one call.
pub struct Reindexing {
    pub documents: Vec<DocumentRecord>,
    /// Cursor: the last document, if more follow.
    pub more_after: Option<String>,
}

impl Knowledge {
    /// Reindexes documents of a base in the order of their ids, after `after`. Failed documents, and those being
    /// indexed, are skipped.
    pub async fn reindex(
        &self,
        base: &BaseKey,
        after: Option<String>,
        stamp: &ChangeStamp,
    ) -> Result<Reindexing, KnowledgeError> {
        self.embedded(&base.kb_id)?;
        let begun = Instant::now();
        let mut documents = Vec::new();
        let mut after = after;
        // At least one document per call, so that a slow one makes progress as well.
        while begun.elapsed() < MAX_DURATION && documents.len() < DOCUMENTS {
            let store = &self.0.parts.store;
            let next = store
                .knowledge()
                .list_documents(base, after.as_deref(), 1)
                .await?;
            let next = next.items.into_iter().next();
            let Some(record) = next else {
                return Ok(Reindexing {
                    documents,
                    more_after: None,
                });
            };
            // Advance before the work: a failing document must not be repeated forever.
            after = Some(record.document_id.clone());
            documents.push(self.reindex_document(base, record, stamp).await?);
        }
        Ok(Reindexing {
            documents,
            more_after: after,
        })
    }

    async fn reindex_document(
        &self,
        base: &BaseKey,
        record: DocumentRecord,
        stamp: &ChangeStamp,
    ) -> Result<DocumentRecord, KnowledgeError> {
        if record.content == 0 || record.status == "indexing" {
            return Ok(record);
        }
        let indexing_slot = self.indexing_slot().await?;
        let text = self.text_of(base, &record).await?;
        let metadata = serde_json::from_str(&record.facts.metadata).unwrap_or_default();
        let document = NewDocument {
            base: base.clone(),
            document_id: record.document_id.clone(),
            facts: record.facts.clone(),
            entries: entries(&metadata),
            source: DocumentSource::Text(text, record.content),
            stamp: stamp.clone(),
        };
        match self.index(document, indexing_slot).await {
            Ok(Indexed::Changed(record) | Indexed::Unchanged(record)) => Ok(record),
            // The old version stays searchable; the record holds the error.
            Err(KnowledgeError::Store(error)) => Err(error.into()),
            Err(KnowledgeError::Stopping) => Err(KnowledgeError::Stopping),
            Err(_) => {
                let store = &self.0.parts.store;
                let now = store
                    .knowledge()
                    .find_document(base, &record.document_id)
                    .await?;
                Ok(now.unwrap_or(record))
            }
        }
    }

    async fn text_of(
        &self,
        base: &BaseKey,
        record: &DocumentRecord,
    ) -> Result<Extracted, StoreError> {
        let (mut chunks, mut from) = (Vec::new(), 0);
        loop {
            let store = &self.0.parts.store;
            let page = store
                .knowledge()
                .knowledge_content(base, record.content, from, PAGE)
                .await?;
            let read = page.len() as u64;
            chunks.extend(page.into_iter().map(to_chunk));
            if read < PAGE {
                break;
            }
            from += read;
        }
        let (text, headings) = join(chunks);
        // After a failed attempt this field holds the reason of the failure, so keep the text's own gaps only.
        let missing = record.error.clone().filter(|_| record.status == "ready");
        Ok(Extracted {
            text,
            headings,
            missing,
        })
    }
}
