//! What a result announces, looked at before it is judged.

use protocol::result::ResultType;
use uuid::Uuid;

use super::{Envelope, payload};

/// The artifact that a result announces, if it is one that does.
pub fn announced_artifact(raw: &[u8]) -> Option<Uuid> {
    let text = std::str::from_utf8(raw).ok()?;
    // Most results are something else, and are not parsed twice.
    if !text.contains(ResultType::ArtifactCreated.as_str()) {
        return None;
    }
    let envelope: Envelope<'_> = serde_json::from_str(text).ok()?;
    payload::artifact_id(envelope.data?.get())
}
