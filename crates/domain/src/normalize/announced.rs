//! What a result announces, looked at before it is judged.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use protocol::result::ResultType;
use uuid::Uuid;

use super::{Envelope, payload};

static NAME: LazyLock<Finder<'static>> =
    LazyLock::new(|| Finder::new(ResultType::ArtifactCreated.as_str()));

/// The artifact that a result announces, if it is one that does.
pub fn announced_artifact(raw: &[u8]) -> Option<Uuid> {
    // Most results are something else, and are not parsed twice.
    NAME.find(raw)?;
    let envelope: Envelope<'_> = serde_json::from_slice(raw).ok()?;
    payload::artifact_id(envelope.data?.get())
}

/// The type of a result that holds what no JSON may hold.
pub(super) fn kind_in(line: &str) -> Option<ResultType> {
    let envelope: Envelope<'_> = serde_json::from_str(line).ok()?;
    ResultType::parse(&envelope.kind)
}
