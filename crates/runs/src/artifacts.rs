//! Artifacts: bytes on their way in, whose they are, and how they go when their time is over.
//!
//! The row comes before the first byte and is shown after the last one, so that whatever dies in between
//! leaves a row that the sweep finds, and with it the bytes.

mod attached;
mod body;
mod files;
mod reading;
mod removal;
mod sniff;

use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use domain::artifact::is_allowed;
use protocol::id::{RunId, WorkspaceId};
use store::{
    ArtifactFacts, ArtifactFinished, ArtifactOrigin, ArtifactShares, AuditEntry, BeginArtifact,
    Begun, DropArtifact, FinishArtifact, ShareOf, StoreError,
};
use uuid::Uuid;

use crate::Runs;
use blob_store::{PlaceError, Writing};

pub(super) use attached::{AttachError, Uploads, announced_attachments, may_have_files};
pub use body::BodyFiles;
pub use files::{FileError, OwnFile, enter_file};
pub use reading::Readable;

/// Artifacts that one run may make.
const MOST_OF_RUN: u64 = 1000;
/// An upload is given up after this time: none takes longer.
pub const PATIENCE: Duration = Duration::from_mins(15);
/// The longest that anybody may ask for.
pub const LONGEST: Duration = Duration::from_hours(90 * 24);

/// Bounds of artifacts, from the configuration.
#[derive(Clone, Debug)]
pub struct ArtifactLimits {
    pub max_bytes: u64,
    pub workspace_bytes: u64,
    /// Of these bytes, what one owner has at most.
    pub shares: ArtifactShares,
    pub expires: Duration,
    pub mime_types: Vec<String>,
}

/// Why bytes did not become an artifact.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    #[error("an artifact has at most {most} bytes (artifacts.max_bytes)")]
    TooLarge { most: u64 },
    #[error("artifacts of type {0} are not taken (artifacts.mime_types)")]
    TypeRefused(String),
    #[error(
        "the workspace has no room for it (artifacts.workspace_bytes); others must expire first"
    )]
    Full,
    #[error("{}", share_full(*.0))]
    ShareFull(ShareOf),
    #[error("a run makes at most {MOST_OF_RUN} artifacts")]
    TooMany,
    #[error("the run has ended")]
    RunEnded,
    #[error("the upload took too long; send it again")]
    Expired,
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn share_full(share: ShareOf) -> &'static str {
    match share {
        ShareOf::Run => {
            "this run has its share of the workspace's artifacts (artifacts.run_percent); keep fewer or smaller ones"
        }
        ShareOf::Agent => {
            "the runs of this agent have their share of the workspace's artifacts (artifacts.agent_percent); \
             others must expire first, or an operator deletes some"
        }
        ShareOf::Runs => {
            "the runs of this workspace have three quarters of its artifacts (artifacts.workspace_bytes), the rest is \
             for events; others must expire first, or an operator deletes some"
        }
        ShareOf::Uploads => {
            "uploads that no event names have half of the workspace's artifacts (artifacts.workspace_bytes); post \
             the events that name them, or wait until some expire"
        }
    }
}

/// What is said of an artifact before its first byte.
#[derive(Clone, Debug)]
pub struct NewArtifact {
    pub workspace: WorkspaceId,
    pub origin: ArtifactOrigin,
    /// The live run that uploads it.
    pub run: Option<RunId>,
    pub name: String,
    /// The media type that somebody says it has.
    pub declared: Option<String>,
    /// How many bytes it is said to have.
    pub announced: Option<u64>,
    /// `None`: as long as the configuration says.
    pub keep: Option<Duration>,
}

/// Whose it is, known at its end.
#[derive(Clone, Debug, Default)]
pub struct Whose {
    pub runner_id: Option<String>,
    pub conversation_key: Option<String>,
    pub event_id: Option<String>,
}

/// An artifact that can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uploaded {
    pub id: Uuid,
    pub name: String,
    pub mime_type: String,
    pub size: u64,
    pub sha256: String,
    /// Epoch milliseconds.
    pub expires_at: i64,
}

/// Bytes on their way in.
pub struct Uploading {
    runs: Runs,
    id: Uuid,
    new: NewArtifact,
    digest: Context,
    size: u64,
    stage: Stage,
}

enum Stage {
    /// Too few bytes have come to say what they are: nothing is stored yet.
    Head(Vec<u8>),
    Begun {
        kind: String,
        writing: Writing,
    },
    Over,
}

impl Runs {
    /// Begins an upload. Nothing is stored before its first bytes have shown what it is.
    pub fn upload(&self, new: NewArtifact) -> Result<Uploading, UploadError> {
        let most = self.0.limits.artifacts.max_bytes;
        if new.announced.unwrap_or(0) > most {
            return Err(UploadError::TooLarge { most });
        }
        Ok(Uploading {
            runs: self.clone(),
            id: Uuid::now_v7(),
            new,
            digest: Context::new(&SHA256),
            size: 0,
            stage: Stage::Head(Vec::new()),
        })
    }
}

impl Uploading {
    /// The artifact's id, once it is one.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Takes the next bytes.
    pub async fn take(&mut self, bytes: &[u8]) -> Result<(), UploadError> {
        let most = self.runs.0.limits.artifacts.max_bytes;
        self.size += bytes.len() as u64;
        if self.size > most {
            return Err(UploadError::TooLarge { most });
        }
        self.digest.update(bytes);
        match &mut self.stage {
            Stage::Begun { writing, .. } => writing.write(bytes).await?,
            Stage::Head(head) => {
                head.extend_from_slice(bytes);
                if head.len() >= sniff::HEAD_BYTES {
                    self.begin().await?;
                }
            }
            Stage::Over => {}
        }
        Ok(())
    }

    async fn begin(&mut self) -> Result<(), UploadError> {
        let Stage::Head(head) = std::mem::replace(&mut self.stage, Stage::Over) else {
            return Ok(());
        };
        let limits = &self.runs.0.limits.artifacts;
        let kind = sniff::media_type(self.new.declared.as_deref(), &head);
        if !is_allowed(&kind, &limits.mime_types) {
            return Err(UploadError::TypeRefused(kind));
        }
        let place = place_of(self.id);
        let begun = BeginArtifact {
            id: self.id,
            workspace: self.new.workspace.clone(),
            origin: self.new.origin,
            run: self.new.run,
            place: place.clone(),
            reserved: self.new.announced.unwrap_or(limits.max_bytes),
            workspace_bytes: limits.workspace_bytes,
            shares: limits.shares,
            run_artifacts: MOST_OF_RUN,
            timeout: PATIENCE,
            at: self.runs.0.clock.now_ms(),
        };
        match self.runs.0.store.write(begun).await? {
            Begun::Begun => {}
            Begun::Full => return Err(UploadError::Full),
            Begun::ShareFull(share) => return Err(UploadError::ShareFull(share)),
            Begun::TooMany => return Err(UploadError::TooMany),
            Begun::RunEnded => return Err(UploadError::RunEnded),
        }
        let mut writing = self.runs.0.artifacts.begin(&place);
        writing.write(&head).await?;
        self.stage = Stage::Begun { kind, writing };
        Ok(())
    }

    /// Ends it: from here on it can be read. `audit` is recorded with it.
    pub async fn finish(
        mut self,
        whose: Whose,
        audit: impl FnOnce(u64) -> Option<AuditEntry> + Send,
    ) -> Result<Uploaded, UploadError> {
        if matches!(self.stage, Stage::Head(_)) {
            self.new.announced = Some(self.size);
            self.begin().await?;
        }
        let Stage::Begun { kind, writing } = std::mem::replace(&mut self.stage, Stage::Over) else {
            return Err(UploadError::Expired);
        };
        if let Err(error) = writing.finish().await {
            self.runs.drop_artifact(self.id).await?;
            return Err(error.into());
        }
        let digest = std::mem::replace(&mut self.digest, Context::new(&SHA256)).finish();
        let facts = ArtifactFacts {
            runner_id: whose.runner_id,
            conversation_key: whose.conversation_key,
            event_id: whose.event_id,
            name: self.new.name.clone(),
            mime_type: kind,
            size: self.size,
            sha256: store::hex(digest.as_ref()),
        };
        let keep = self
            .new
            .keep
            .unwrap_or(self.runs.0.limits.artifacts.expires);
        let finish = FinishArtifact {
            id: self.id,
            run: self.new.run,
            facts: facts.clone(),
            keep,
            audit: audit(self.size),
        };
        match self.runs.0.store.write(finish).await? {
            ArtifactFinished::Ready { expires_at } => Ok(Uploaded {
                id: self.id,
                name: facts.name,
                mime_type: facts.mime_type,
                size: facts.size,
                sha256: facts.sha256,
                expires_at,
            }),
            ArtifactFinished::Expired => {
                // Its row may be gone already: then nobody else would find these bytes.
                let deleted = self.runs.0.artifacts.delete(&place_of(self.id)).await;
                if let Err(error) = deleted {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(artifact.id = %self.id, error, "the bytes of an artifact that came too late stay");
                }
                Err(UploadError::Expired)
            }
            ArtifactFinished::RunEnded => {
                self.runs.drop_artifact(self.id).await?;
                Err(UploadError::RunEnded)
            }
        }
    }

    /// Gives it up: what it reserved is free with the next sweep.
    pub async fn give_up(mut self, audit: Option<AuditEntry>) -> Result<(), StoreError> {
        self.stage = Stage::Over;
        let id = self.id;
        self.runs.0.store.write(DropArtifact { id, audit }).await
    }
}

/// Where the bytes of an artifact stand. Nobody else's text is in it.
fn place_of(id: Uuid) -> String {
    let hex = id.simple().to_string();
    format!("{}/{hex}", &hex[30..])
}
