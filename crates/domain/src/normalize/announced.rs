//! Inspects a result before its validation.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use protocol::result::ResultType;
use uuid::Uuid;

use super::payload;
use super::reading::ResultEnvelope;
use crate::json_repair::repair_json_text;

static FAILED: LazyLock<Finder<'static>> =
    LazyLock::new(|| Finder::new(ResultType::RunFailed.as_str()));

static MESSAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"message.completed\""));

static NAME: LazyLock<Finder<'static>> =
    LazyLock::new(|| Finder::new(ResultType::ArtifactCreated.as_str()));

/// Returns the artifact that a result announces.
pub fn announced_artifact(raw: &[u8]) -> Option<Uuid> {
    // Fast path: most results announce nothing and are parsed only once.
    NAME.find(raw)?;
    let raw = &repair_json_text(raw);
    let envelope: ResultEnvelope<'_> = serde_json::from_slice(raw).ok()?;
    payload::artifact_id(envelope.data?.get())
}

/// Returns true for a `run.failed`. After a cancel it reports the run as cancelled, whatever its code.
pub fn reports_failure(raw: &[u8]) -> bool {
    // A search is cheaper than a parse, and most results contain no such name.
    if FAILED.find(raw).is_none() {
        return false;
    }
    let raw = &repair_json_text(raw);
    // The name may occur in any text, so the envelope decides.
    let envelope = serde_json::from_slice::<ResultEnvelope<'_>>(raw);
    envelope.is_ok_and(|envelope| envelope.kind == ResultType::RunFailed.as_str())
}

/// Returns true for bytes with the members of a result, regardless of their data.
pub fn is_result(raw: &[u8]) -> bool {
    type_of(raw, |_| true)
}

/// Returns true for a complete `run.completed` or `run.failed`.
pub fn is_terminal_result(raw: &[u8]) -> bool {
    type_of(raw, |kind| {
        ResultType::parse(kind).is_some_and(ResultType::is_terminal)
    })
}

fn type_of(raw: &[u8], is_wanted: impl Fn(&str) -> bool) -> bool {
    let text = repair_json_text(raw);
    let envelope = serde_json::from_slice::<ResultEnvelope<'_>>(&text);
    envelope.is_ok_and(|envelope| is_wanted(&envelope.kind))
}

/// Returns the type of a result with possibly invalid JSON. Unparseable text is classified by the type name in
/// it.
pub(super) fn kind_in(raw: &[u8]) -> Option<ResultType> {
    match serde_json::from_slice::<ResultEnvelope<'_>>(raw) {
        Ok(envelope) => ResultType::parse(&envelope.kind),
        // The message is lost, so the validator must know that there was one.
        Err(_) => MESSAGE.find(raw).map(|_| ResultType::MessageCompleted),
    }
}
