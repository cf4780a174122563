//! Artifacts: uploads, their owners, and their deletion.
//!
//! The row is written before the first byte and becomes visible after the last one. After a crash in between, the sweep
//! finds the bytes by the row.

mod attached;
mod body;
mod error;
mod files;
mod reading;
mod reference;
mod removal;
mod sniff;
mod upload;

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::deps::RunDeps;

pub(super) use attached::{AttachError, Attached, Uploads, announced_attachments, may_have_files};
pub use body::BodyFiles;
pub use error::UploadError;
pub use files::{FileError, OwnFile, enter_file};
pub use reading::ReadableArtifact;
pub use upload::{ArtifactOwner, ArtifactUpload, NewArtifact, StoredArtifact};

pub use crate::limits::ArtifactLimits;

/// Timeout of an upload.
pub const UPLOAD_TIMEOUT: Duration = Duration::from_mins(15);
/// Maximum retention that a caller can request.
pub const MAX_KEEP: Duration = Duration::from_hours(90 * 24);

/// All artifacts of the database. Cheap to clone.
#[derive(Clone)]
pub struct Artifacts {
    pub(super) deps: Arc<RunDeps>,
}

/// Blob key of an artifact, without any foreign text.
fn blob_key_of(id: Uuid) -> String {
    let hex = id.simple().to_string();
    // The last two digits are random in a UUIDv7, so the directories fill evenly.
    format!("{}/{hex}", &hex[30..])
}
