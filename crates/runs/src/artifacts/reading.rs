//! Read access to artifacts.

use std::ops::Range;

use bytes::Bytes;
use domain::artifact::{ArtifactAccess, Provenance, artifact_access};
use futures_util::Stream;
use protocol::host_api::ArtifactMetadata;
use protocol::id::WorkspaceId;
use protocol::resources::FileResource;
use store::{ArtifactRecord, Sharers, StoreError};
use uuid::Uuid;

use super::Artifacts;
use super::files::blob_key_of_file;
use crate::grant::Grant;
use blob_store::ArtifactStoreError;

/// An artifact that the caller may read.
#[derive(Clone, Debug)]
pub struct ReadableArtifact {
    pub metadata: ArtifactMetadata,
    key: String,
}

impl ReadableArtifact {
    fn of(row: ArtifactRecord) -> Self {
        Self {
            metadata: ArtifactMetadata {
                artifact_id: row.id,
                name: row.name,
                mime_type: row.mime_type,
                size: row.size,
                sha256: row.sha256,
                origin: row.origin,
                run_id: row.run_id,
                event_id: row.event_id,
                sequence: row.sequence,
                created_at: Some(row.created_at.div_euclid(1000)),
                expires_at: Some(row.expires_at.div_euclid(1000)),
            },
            key: row.location,
        }
    }

    fn of_file(file: FileResource) -> Self {
        Self {
            key: blob_key_of_file(&file.sha256),
            metadata: ArtifactMetadata {
                artifact_id: file.id,
                name: file.name,
                mime_type: file.mime_type,
                size: file.size,
                sha256: file.sha256,
                origin: "file".to_owned(),
                run_id: None,
                event_id: None,
                sequence: None,
                created_at: None,
                expires_at: None,
            },
        }
    }
}

impl Artifacts {
    /// A file that the run was granted.
    pub fn granted_file(&self, grant: &Grant, id: &str) -> Option<ReadableArtifact> {
        grant.snapshot.file(id).map(ReadableArtifact::of_file)
    }

    /// An artifact that a run may access.
    pub async fn artifact_of_run(
        &self,
        grant: &Grant,
        id: &str,
    ) -> Result<Option<ReadableArtifact>, StoreError> {
        match self.find_row(&grant.run.workspace, id).await? {
            Some(row) => self.within_reach(grant, row, Sharers::Runner).await,
            None => Ok(None),
        }
    }

    /// A file of an event that the run, or an earlier run of its agent in its conversation, has received. It
    /// needs no grant for artifacts.
    pub async fn artifact_of_event(
        &self,
        grant: &Grant,
        id: &str,
    ) -> Result<Option<ReadableArtifact>, StoreError> {
        // Checked before the query, so that a run without the grant cannot probe ids.
        if grant.snapshot.event_artifacts().is_err() {
            return Ok(None);
        }
        let row = self.find_row(&grant.run.workspace, id).await?;
        match row.filter(|row| row.run_id.is_none()) {
            Some(row) => self.within_reach(grant, row, Sharers::Agent).await,
            None => Ok(None),
        }
    }

    async fn within_reach(
        &self,
        grant: &Grant,
        row: ArtifactRecord,
        sharers: Sharers,
    ) -> Result<Option<ReadableArtifact>, StoreError> {
        let run = &grant.run;
        let (run_id, runner_id) = (run.id.to_string(), run.runner_id.to_string());
        let reader = Provenance {
            run_id: Some(&run_id),
            runner_id: Some(&runner_id),
            conversation_key: run.conversation_key.as_deref(),
            event_id: Some(&run.event_id),
        };
        let artifact = Provenance {
            run_id: row.run_id.as_deref(),
            runner_id: row.runner_id.as_deref(),
            conversation_key: row.conversation_key.as_deref(),
            event_id: row.event_id.as_deref(),
        };
        let event_id = row.event_id.as_deref().unwrap_or_default();
        let is_open = match artifact_access(reader, artifact) {
            ArtifactAccess::Open => true,
            ArtifactAccess::IfEventReceived => {
                let store = &self.deps.store;
                store
                    .artifacts()
                    .has_had_event(run, event_id, sharers)
                    .await?
            }
            ArtifactAccess::Closed => false,
        };
        Ok(is_open.then(|| ReadableArtifact::of(row)))
    }

    /// An artifact of a workspace.
    pub async fn artifact_of_workspace(
        &self,
        workspace: &WorkspaceId,
        id: &str,
    ) -> Result<Option<ReadableArtifact>, StoreError> {
        let row = self.find_row(workspace, id).await?;
        Ok(row.map(ReadableArtifact::of))
    }

    pub(super) async fn find_row(
        &self,
        workspace: &WorkspaceId,
        id: &str,
    ) -> Result<Option<ArtifactRecord>, StoreError> {
        match Uuid::parse_str(id) {
            // Only the canonical form of an id names an artifact.
            Ok(uuid) if uuid.to_string() == id => {
                self.deps
                    .store
                    .artifacts()
                    .find_artifact(workspace, uuid)
                    .await
            }
            _ => Ok(None),
        }
    }

    /// Streams a range of the bytes, one chunk in memory at a time.
    pub async fn read_artifact(
        &self,
        artifact: &ReadableArtifact,
        part: Range<u64>,
    ) -> Result<
        impl Stream<Item = Result<Bytes, ArtifactStoreError>> + Send + 'static,
        ArtifactStoreError,
    > {
        self.deps.blobs.read(&artifact.key, part).await
    }
}
