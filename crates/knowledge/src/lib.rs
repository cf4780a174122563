//! Knowledge bases: document indexing and retrieval. Embedded bases are in the gateway's database, remote ones are
//! servers with an API.

pub mod embed;
pub mod extract;
pub mod index;
pub mod remote_knowledge;
pub mod retrieve;

mod closest;
mod prepare;
mod reindex;
mod vectors;

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::knowledge::chunk::ChunkSize;
use protocol::admin::Fault;
use store::{Store, StoreError};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::remote_knowledge::RemoteBase;
use clock::Clock;
use egress::Egress;
use egress::upstream::UpstreamError;
use embed::Embedder;
use vectors::VectorCache;

/// Maximum number of documents that are indexed concurrently. Each of them is completely in memory.
const AT_ONCE: usize = 2;

/// A knowledge base.
#[derive(Clone)]
pub enum Base {
    Embedded(EmbeddedBase),
    Remote(Arc<RemoteBase>),
}

/// A base with documents in the gateway's database.
#[derive(Clone, Debug)]
pub struct EmbeddedBase {
    /// Embedding model; `None`: full-text search only.
    pub embedding_model: Option<String>,
    pub size: ChunkSize,
}

/// Dependencies of knowledge bases.
pub struct Parts {
    pub store: Store,
    pub clock: Clock,
    /// HTTP client for remote bases.
    pub egress: Egress,
    /// By id.
    pub bases: BTreeMap<String, Base>,
    /// Embedding provider, if any base needs one.
    pub embedder: Option<Arc<dyn Embedder>>,
    /// Cancels indexing.
    pub stopping: CancellationToken,
}

/// All knowledge bases of the gateway. Cheap to clone.
#[derive(Clone)]
pub struct Knowledge(Arc<KnowledgeInner>);

struct KnowledgeInner {
    parts: Parts,
    indexing: Arc<Semaphore>,
    vectors: VectorCache,
    tasks: TaskTracker,
}

/// Failure of a knowledge base operation.
#[derive(Debug, thiserror::Error)]
pub enum KnowledgeError {
    #[error("there is no knowledge base {0}")]
    UnknownBase(String),
    #[error("there is no document {0}")]
    UnknownDocument(String),
    #[error("the documents of this knowledge base are on a remote server; change them there")]
    Remote,
    #[error("this document is being indexed; wait until its status is ready or failed")]
    DocumentBusy,
    #[error("too many documents are being indexed; retry later")]
    TooMany,
    #[error("the knowledge base has the maximum number of documents; delete some")]
    BaseFull,
    #[error("the document {0}")]
    Unreadable(String),
    #[error("the gateway is stopping; send it to another one, or later")]
    Stopping,
    #[error("the query is invalid")]
    Faults(Vec<Fault>),
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A base needs embeddings, but no provider is available.
#[derive(Debug, thiserror::Error)]
#[error(
    "knowledge base {kb_id} has an embedding_model, and no provider of this gateway makes vectors; \
     take the key out"
)]
pub struct NoEmbedder {
    kb_id: String,
}

impl Knowledge {
    pub fn new(parts: Parts) -> Result<Self, NoEmbedder> {
        let wants =
            |base: &Base| matches!(base, Base::Embedded(base) if base.embedding_model.is_some());
        if parts.embedder.is_none()
            && let Some((kb_id, _)) = parts.bases.iter().find(|(_, base)| wants(base))
        {
            let kb_id = kb_id.clone();
            return Err(NoEmbedder { kb_id });
        }
        Ok(Self(Arc::new(KnowledgeInner {
            parts,
            indexing: Arc::new(Semaphore::new(AT_ONCE)),
            vectors: VectorCache::default(),
            tasks: TaskTracker::new(),
        })))
    }

    fn base(&self, kb_id: &str) -> Result<&Base, KnowledgeError> {
        self.0
            .parts
            .bases
            .get(kb_id)
            .ok_or_else(|| KnowledgeError::UnknownBase(kb_id.to_owned()))
    }

    /// The base of that id, if it is embedded.
    pub fn embedded(&self, kb_id: &str) -> Result<&EmbeddedBase, KnowledgeError> {
        match self.base(kb_id)? {
            Base::Embedded(base) => Ok(base),
            Base::Remote(_) => Err(KnowledgeError::Remote),
        }
    }

    /// The model that embeds queries to this base.
    pub fn embedding_model(&self, kb_id: &str) -> Option<&str> {
        self.embedded(kb_id).ok()?.embedding_model.as_deref()
    }

    /// Waits until indexing has ended; it is cancelled at shutdown.
    pub async fn end(&self) {
        // `wait` returns only after `close`.
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

#[cfg(test)]
mod tests;
