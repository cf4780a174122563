//! Reasons for which an artifact is refused.

use store::{ShareOf, StoreError};

use blob_store::ArtifactStoreError;

/// Maximum number of artifacts of one run.
pub(super) const MAX_OF_RUN: u64 = 1000;

/// Cause of a refused upload.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    #[error("an artifact has at most {max_bytes} bytes (artifacts.max_bytes)")]
    TooLarge { max_bytes: u64 },
    #[error("artifacts of type {0} are not accepted (artifacts.mime_types)")]
    TypeRefused(String),
    #[error(
        "the workspace's artifacts are full (artifacts.workspace_bytes); others must expire first"
    )]
    Full,
    #[error("{}", share_full(*.0))]
    ShareFull(ShareOf),
    #[error("a run creates at most {MAX_OF_RUN} artifacts")]
    TooMany,
    #[error("the run has ended")]
    RunEnded,
    #[error("the upload took too long; send it again")]
    Expired,
    #[error(transparent)]
    BlobStore(#[from] ArtifactStoreError),
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
