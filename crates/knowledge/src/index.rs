//! Indexing: extracts and chunks a document, writes the chunks next to the live version, then replaces that
//! version.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::knowledge::MAX_DOCUMENTS;
use domain::knowledge::chunk::{Chunk, chunk};
use futures_util::FutureExt as _;
use store::{
    BaseKey, BeginIndexing, ChangeStamp, DeleteDocument, DocumentFacts, DocumentRecord,
    FailIndexing, FinishIndexing, IndexingBegun, Recipe, WriteChunks,
};
use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

use crate::extract::{DocumentFormat, Extracted, extract};
use crate::{EmbeddedBase, Knowledge, KnowledgeError, prepare};
use telemetry::metrics;

/// Maximum wait for an indexing slot.
const WAIT: Duration = Duration::from_secs(20);
/// Number of chunks per commit and per embedding request.
const BATCH: usize = 32;

/// A document as uploaded.
#[derive(Clone, Debug)]
pub struct NewDocument {
    pub base: BaseKey,
    pub document_id: String,
    pub facts: DocumentFacts,
    /// Metadata for filters, as names and values.
    pub entries: Vec<(String, String)>,
    pub source: DocumentSource,
    pub stamp: ChangeStamp,
}

/// Origin of a document's text.
#[derive(Clone, Debug)]
pub enum DocumentSource {
    Bytes(DocumentFormat, Bytes),
    /// The stored text, to be reindexed, and its content version.
    Text(Extracted, i64),
}

/// An indexed document.
#[derive(Clone, Debug)]
pub enum Indexed {
    /// New or changed.
    Changed(DocumentRecord),
    /// The same document was indexed before.
    Unchanged(DocumentRecord),
}

/// Size of the written content.
struct WrittenSize {
    characters: u64,
    chunks: u64,
    units: u64,
}

impl Knowledge {
    /// Waits for an indexing slot, which is held until dropped.
    pub async fn indexing_slot(&self) -> Result<OwnedSemaphorePermit, KnowledgeError> {
        let indexing_slot = Arc::clone(&self.0.indexing).acquire_owned();
        match tokio::time::timeout(WAIT, indexing_slot).await {
            Ok(Ok(indexing_slot)) => Ok(indexing_slot),
            Ok(Err(_)) | Err(_) => Err(KnowledgeError::TooMany),
        }
    }

    /// Indexes a document and returns when it is searchable. Continues if the caller is dropped.
    pub async fn index(
        &self,
        document: NewDocument,
        indexing_slot: OwnedSemaphorePermit,
    ) -> Result<Indexed, KnowledgeError> {
        let base = self.embedded(&document.base.kb_id)?.clone();
        let begin = BeginIndexing {
            base: document.base.clone(),
            document_id: document.document_id.clone(),
            facts: document.facts.clone(),
            recipe: base.recipe(),
            // Identifies this attempt: a later upload of the document takes its place.
            attempt: Uuid::now_v7().to_string(),
            max_documents: MAX_DOCUMENTS,
            anew: match document.source {
                DocumentSource::Bytes(..) => None,
                DocumentSource::Text(_, content) => Some(content),
            },
            at: self.0.parts.clock.now_ms(),
        };
        let content = match self.0.parts.store.write(begin).await? {
            IndexingBegun::Content(content) => content,
            IndexingBegun::Unchanged(record) => return Ok(Indexed::Unchanged(*record)),
            // The document was uploaded again, or deleted, which takes precedence.
            IndexingBegun::Busy | IndexingBegun::Gone => return Err(KnowledgeError::DocumentBusy),
            IndexingBegun::Full => return Err(KnowledgeError::BaseFull),
        };
        // A spawned task continues if the HTTP client disconnects, so the document does not stay in `indexing`.
        let knowledge = self.clone();
        let indexing = self.0.tasks.spawn(async move {
            // Hold the slot until the end of the work, not of the request.
            let _permit = indexing_slot;
            knowledge.carry_out(&base, document, content).await
        });
        indexing.await.map_err(|_| KnowledgeError::Stopping)?
    }

    /// Deletes a document.
    pub async fn remove(
        &self,
        base: BaseKey,
        document_id: String,
        stamp: ChangeStamp,
    ) -> Result<(), KnowledgeError> {
        self.embedded(&base.kb_id)?;
        let delete = DeleteDocument {
            base,
            document_id: document_id.clone(),
        };
        if self.0.parts.store.change(stamp, delete).await? {
            Ok(())
        } else {
            Err(KnowledgeError::UnknownDocument(document_id))
        }
    }

    async fn carry_out(
        &self,
        base: &EmbeddedBase,
        document: NewDocument,
        content: i64,
    ) -> Result<Indexed, KnowledgeError> {
        // A parser panic must end in a failed document, and not in one that stays in `indexing`.
        let doing = AssertUnwindSafe(self.write_and_finish(base, document, content)).catch_unwind();
        let done = tokio::select! {
            done = doing => done.unwrap_or_else(|_| {
                tracing::error!("indexing a document panicked");
                metrics::panicked(metrics::PanickedTask::Handler);
                Err(KnowledgeError::Unreadable("could not be indexed; see the gateway's log".to_owned()))
            }),
            () = self.0.parts.stopping.cancelled() => Err(KnowledgeError::Stopping),
        };
        if let Err(error) = &done {
            let fail = FailIndexing {
                content,
                error: error.to_string(),
                at: self.0.parts.clock.now_ms(),
            };
            if let Err(error) = self.0.parts.store.write(fail).await {
                let error = &error as &dyn std::error::Error;
                tracing::error!(
                    error,
                    "cannot cancel indexing of a document; the sweep retries"
                );
            }
        }
        done.map(Indexed::Changed)
    }

    async fn write_and_finish(
        &self,
        base: &EmbeddedBase,
        document: NewDocument,
        content: i64,
    ) -> Result<DocumentRecord, KnowledgeError> {
        let text = match document.source {
            DocumentSource::Text(text, _) => text,
            DocumentSource::Bytes(kind, bytes) => extract(kind, &bytes)
                .await
                .map_err(KnowledgeError::Unreadable)?,
        };
        let missing = text.missing.clone();
        let document_id = document.document_id.clone();
        let gone = || KnowledgeError::UnknownDocument(document_id.clone());
        let written = self.write(base, &document.base, content, text).await?;
        let written = written.ok_or_else(gone)?;
        let finish = FinishIndexing {
            base: document.base,
            document_id: document.document_id,
            content,
            facts: document.facts,
            recipe: base.recipe(),
            entries: document.entries,
            characters: written.characters,
            chunks: written.chunks,
            units: written.units,
            missing,
            at: self.0.parts.clock.now_ms(),
        };
        let stamp = ChangeStamp {
            // The indexing took its time since the request.
            at: finish.at,
            id: Uuid::now_v7(),
            ..document.stamp
        };
        let finished = self.0.parts.store.change(stamp, finish).await?;
        finished.ok_or_else(gone)
    }

    /// `None`: the document was deleted meanwhile.
    async fn write(
        &self,
        base: &EmbeddedBase,
        key: &BaseKey,
        content: i64,
        text: Extracted,
    ) -> Result<Option<WrittenSize>, KnowledgeError> {
        let size = base.size;
        let cut = move || {
            (
                chunk(&text.text, &text.headings, size),
                text.text.chars().count(),
            )
        };
        let (chunks, characters) = on_blocking_thread(cut).await?;
        let chunks = chunks.map_err(|error| KnowledgeError::Unreadable(error.to_string()))?;
        if chunks.is_empty() {
            return Err(KnowledgeError::Unreadable("has no text".to_owned()));
        }
        let (mut units, all) = (0, chunks.len() as u64);
        // One commit per batch: a long document must not block the writer.
        let mut first = 0;
        for batch in chunks.chunks(BATCH) {
            let (owner, batch) = (key.clone(), batch.to_vec());
            let prepared = on_blocking_thread(move || prepare::with_terms(&owner, &batch));
            let mut prepared = prepared.await?;
            if let Some(model) = &base.embedding_model
                && let Some(embedder) = &self.0.parts.embedder
            {
                prepare::add_vectors(embedder.as_ref(), model, &mut prepared).await?;
            }
            units += prepared.iter().map(|chunk| chunk.units).sum::<u64>();
            let next = first + prepared.len() as u64;
            let write = WriteChunks {
                content,
                first,
                chunks: prepared,
                all,
            };
            if !self.0.parts.store.write(write).await? {
                return Ok(None);
            }
            first = next;
        }
        Ok(Some(WrittenSize {
            characters: characters as u64,
            chunks: all,
            units,
        }))
    }
}

impl EmbeddedBase {
    fn recipe(&self) -> Recipe {
        Recipe {
            vector_model: self.embedding_model.clone(),
            chunk_chars: self.size.characters as u64,
            chunk_overlap: self.size.overlap as u64,
        }
    }
}

/// Runs CPU-bound work on a blocking thread.
pub(super) async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, KnowledgeError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| KnowledgeError::Unreadable("could not be indexed".to_owned()))
}

/// Converts a stored chunk.
pub(super) fn to_chunk(found: store::FoundChunk) -> Chunk {
    let position = |position: u64| usize::try_from(position).unwrap_or(usize::MAX);
    Chunk {
        start: position(found.start),
        end: position(found.end),
        text: found.text,
        heading: found.heading,
    }
}
