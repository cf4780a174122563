//! The sample document of the playground.

use anyhow::Context as _;
use bytes::Bytes;
use protocol::id::{DEFAULT_WORKSPACE, WorkspaceId};
use protocol::principal::PrincipalKind;
use store::{BaseKey, ChangeStamp, DocumentFacts, sha256_hex};

use crate::app::App;
use clock::Clock;
use knowledge::extract::DocumentFormat;
use knowledge::index::{DocumentSource, Indexed, NewDocument};

/// Id of its knowledge base.
pub(super) const BASE: &str = "runnel";
const DOCUMENT: &str = "runnel.md";
const TEXT: &str = include_str!("runnel.md");
const MEDIA_TYPE: &str = "text/markdown";

/// Indexes the document unless it is unchanged. Returns its number of passages.
pub(super) async fn put(app: &App) -> anyhow::Result<u64> {
    let kind = DocumentFormat::of_media_type(MEDIA_TYPE).map_err(anyhow::Error::msg)?;
    let document = NewDocument {
        base: BaseKey {
            workspace: WorkspaceId(DEFAULT_WORKSPACE.to_owned()),
            kb_id: BASE.to_owned(),
        },
        document_id: DOCUMENT.to_owned(),
        facts: DocumentFacts {
            name: DOCUMENT.to_owned(),
            mime_type: MEDIA_TYPE.to_owned(),
            metadata: "{}".to_owned(),
            sha256: sha256_hex(TEXT.as_bytes()),
            bytes: TEXT.len() as u64,
        },
        entries: Vec::new(),
        source: DocumentSource::Bytes(kind, Bytes::from_static(TEXT.as_bytes())),
        stamp: ChangeStamp::of(PrincipalKind::Cli, Clock::system().now_ms()),
    };
    let knowledge = app.knowledge();
    // The slot bounds concurrent embeddings, as for uploads over the API.
    let slot = knowledge.indexing_slot().await?;
    let indexed = knowledge.index(document, slot).await;
    match indexed.with_context(|| format!("the knowledge base {BASE} cannot be made"))? {
        Indexed::Changed(record) | Indexed::Unchanged(record) => Ok(record.chunks),
    }
}
