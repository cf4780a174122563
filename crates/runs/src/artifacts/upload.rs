//! Uploads of artifacts.

use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use domain::artifact::is_allowed;
use protocol::id::{RunId, WorkspaceId};
use store::{
    ArtifactFacts, ArtifactFinished, ArtifactOrigin, AuditEntry, BeginArtifact, Begun,
    DropArtifact, FinishArtifact, StoreError,
};
use uuid::Uuid;

use super::error::{MAX_OF_RUN, UploadError};
use super::{Artifacts, UPLOAD_TIMEOUT, blob_key_of, sniff};
use blob_store::ArtifactWriter;

/// Properties of an artifact before its first byte.
#[derive(Clone, Debug)]
pub struct NewArtifact {
    pub workspace: WorkspaceId,
    pub origin: ArtifactOrigin,
    /// The live run that uploads it.
    pub run: Option<RunId>,
    pub name: String,
    /// Declared media type.
    pub declared: Option<String>,
    /// Announced size in bytes.
    pub announced: Option<u64>,
    /// `None`: the configured retention.
    pub keep: Option<Duration>,
}

/// Owner of an artifact, known at the end of its upload.
#[derive(Clone, Debug, Default)]
pub struct ArtifactOwner {
    pub runner_id: Option<String>,
    pub conversation_key: Option<String>,
    pub event_id: Option<String>,
}

/// An artifact owner bytes and row are complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredArtifact {
    pub id: Uuid,
    pub name: String,
    pub mime_type: String,
    pub size: u64,
    pub sha256: String,
    /// Epoch milliseconds.
    pub expires_at: i64,
}

/// An upload in progress.
pub struct ArtifactUpload {
    artifacts: Artifacts,
    id: Uuid,
    new: NewArtifact,
    digest: Context,
    size: u64,
    stage: UploadStage,
}

enum UploadStage {
    /// Too few bytes to detect the type; nothing is stored yet.
    Head(Vec<u8>),
    Begun {
        kind: String,
        writing: ArtifactWriter,
    },
    Over,
}

impl Artifacts {
    /// Begins an upload. It stores nothing until the first bytes show the type.
    pub fn upload(&self, new: NewArtifact) -> Result<ArtifactUpload, UploadError> {
        let max_bytes = self.deps.limits.artifacts.max_bytes;
        // Refused before the first byte: the client need not send the body.
        if new.announced.unwrap_or(0) > max_bytes {
            return Err(UploadError::TooLarge { max_bytes });
        }
        Ok(ArtifactUpload {
            artifacts: self.clone(),
            id: Uuid::now_v7(),
            new,
            digest: Context::new(&SHA256),
            size: 0,
            stage: UploadStage::Head(Vec::new()),
        })
    }
}

impl ArtifactUpload {
    /// Id of the artifact.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Writes the next bytes.
    pub async fn take(&mut self, bytes: &[u8]) -> Result<(), UploadError> {
        let max_bytes = self.artifacts.deps.limits.artifacts.max_bytes;
        self.size += bytes.len() as u64;
        if self.size > max_bytes {
            return Err(UploadError::TooLarge { max_bytes });
        }
        self.digest.update(bytes);
        match &mut self.stage {
            UploadStage::Begun { writing, .. } => writing.write(bytes).await?,
            UploadStage::Head(head) => {
                head.extend_from_slice(bytes);
                if head.len() >= sniff::HEAD_BYTES {
                    self.begin().await?;
                }
            }
            UploadStage::Over => {}
        }
        Ok(())
    }

    async fn begin(&mut self) -> Result<(), UploadError> {
        let UploadStage::Head(head) = std::mem::replace(&mut self.stage, UploadStage::Over) else {
            return Ok(());
        };
        let limits = &self.artifacts.deps.limits.artifacts;
        let kind = sniff::media_type(self.new.declared.as_deref(), &head);
        if !is_allowed(&kind, &limits.mime_types) {
            return Err(UploadError::TypeRefused(kind));
        }
        let key = blob_key_of(self.id);
        let begun = BeginArtifact {
            id: self.id,
            workspace: self.new.workspace.clone(),
            origin: self.new.origin,
            run: self.new.run,
            location: key.clone(),
            // Without a size, the upload reserves the maximum, so that concurrent uploads cannot exceed the quota.
            reserved: self.new.announced.unwrap_or(limits.max_bytes),
            workspace_bytes: limits.workspace_bytes,
            shares: limits.shares,
            run_artifacts: MAX_OF_RUN,
            timeout: UPLOAD_TIMEOUT,
            at: self.artifacts.deps.clock.now_ms(),
        };
        match self.artifacts.deps.store.write(begun).await? {
            Begun::Begun => {}
            Begun::Full => return Err(UploadError::Full),
            Begun::ShareFull(share) => return Err(UploadError::ShareFull(share)),
            Begun::TooMany => return Err(UploadError::TooMany),
            Begun::RunEnded => return Err(UploadError::RunEnded),
        }
        // After the row: the sweep finds the bytes of a killed process by its row.
        let mut writing = self.artifacts.deps.blobs.begin(&key);
        writing.write(&head).await?;
        self.stage = UploadStage::Begun { kind, writing };
        Ok(())
    }

    /// Completes the upload, after which the artifact can be read. `audit` is recorded in the same commit.
    pub async fn finish(
        mut self,
        owner: ArtifactOwner,
        audit: impl FnOnce(u64) -> Option<AuditEntry> + Send,
    ) -> Result<StoredArtifact, UploadError> {
        if matches!(self.stage, UploadStage::Head(_)) {
            // The content is shorter than the head, so its exact size is reserved.
            self.new.announced = Some(self.size);
            self.begin().await?;
        }
        let UploadStage::Begun { kind, writing } =
            std::mem::replace(&mut self.stage, UploadStage::Over)
        else {
            return Err(UploadError::Expired);
        };
        // The row must not become visible without its bytes.
        if let Err(error) = writing.finish().await {
            self.artifacts.drop_artifact(self.id).await?;
            return Err(error.into());
        }
        let digest = std::mem::replace(&mut self.digest, Context::new(&SHA256)).finish();
        let facts = ArtifactFacts {
            runner_id: owner.runner_id,
            conversation_key: owner.conversation_key,
            event_id: owner.event_id,
            name: self.new.name.clone(),
            mime_type: kind,
            size: self.size,
            sha256: store::hex(digest.as_ref()),
        };
        let keep = self
            .new
            .keep
            .unwrap_or(self.artifacts.deps.limits.artifacts.expires);
        let finish = FinishArtifact {
            id: self.id,
            run: self.new.run,
            facts: facts.clone(),
            keep,
            audit: audit(self.size),
        };
        match self.artifacts.deps.store.write(finish).await? {
            ArtifactFinished::Ready { expires_at } => Ok(StoredArtifact {
                id: self.id,
                name: facts.name,
                mime_type: facts.mime_type,
                size: facts.size,
                sha256: facts.sha256,
                expires_at,
            }),
            ArtifactFinished::Expired => {
                // The row may be deleted already, so no sweep would find these bytes.
                let deleted = self
                    .artifacts
                    .deps
                    .blobs
                    .delete(&blob_key_of(self.id))
                    .await;
                if let Err(error) = deleted {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(artifact.id = %self.id, error, "cannot delete the bytes of an artifact owner run has ended");
                }
                Err(UploadError::Expired)
            }
            ArtifactFinished::RunEnded => {
                self.artifacts.drop_artifact(self.id).await?;
                Err(UploadError::RunEnded)
            }
        }
    }

    /// Aborts the upload. The next sweep releases its reservation.
    pub async fn give_up(mut self, audit: Option<AuditEntry>) -> Result<(), StoreError> {
        self.stage = UploadStage::Over;
        let id = self.id;
        self.artifacts
            .deps
            .store
            .write(DropArtifact { id, audit })
            .await
    }
}
