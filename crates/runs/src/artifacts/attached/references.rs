//! Uploads that an event names, by an `artifact:ID` URL or by the id of an attachment.

use domain::artifact::{id_of, id_of_url};
use protocol::admin::Fault;
use protocol::context::{AgentInput, InputAttachment};
use protocol::id::WorkspaceId;
use store::{ArtifactRecord, BindArtifact, Bound, StoreError, UnbindArtifact};
use uuid::Uuid;

use crate::artifacts::Artifacts;
use crate::artifacts::error::UploadError;
use crate::artifacts::reference::{attach, is_same, reference_to};

const ABSENT: &str =
    "names no artifact of this workspace, or one that has expired; upload the file again";
const TAKEN: &str = "names an artifact that belongs to another event; upload the file again";

const CLOSED: &str = "names an artifact, which an API key that is restricted to agents cannot do; send the file as \
     base64";

/// Failure to store the files of an event.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    #[error("{}", .0.message)]
    Reference(Fault),
    #[error(transparent)]
    Upload(#[from] UploadError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A reference to an artifact in an event.
struct ArtifactReference {
    id: Uuid,
    pointer: String,
    /// An `artifact:` URL always means an artifact; a bare id may belong to the platform.
    is_certain: bool,
}

impl Artifacts {
    /// Binds the uploads that an input names to its event, and completes their attachments.
    pub(super) async fn bind_named(
        &self,
        workspace: &WorkspaceId,
        event_id: &str,
        input: &mut AgentInput,
        bound: &mut Vec<Uuid>,
    ) -> Result<(), AttachError> {
        for named in all_named(input) {
            if bound.contains(&named.id) {
                continue;
            }
            let bind = BindArtifact {
                workspace: workspace.clone(),
                id: named.id,
                event_id: event_id.to_owned(),
            };
            let refused = |message: &str| {
                let fault = Fault::new(named.pointer.clone(), message);
                Err(AttachError::Reference(fault))
            };
            match self.deps.store.write(bind).await? {
                Bound::Bound(record) => {
                    bound.push(named.id);
                    describe(input, &record);
                }
                // Not uploaded by a client: the artifact stays with its run or event.
                Bound::NotUploaded => {}
                // The id may belong to the platform.
                Bound::Absent if !named.is_certain => {}
                Bound::Absent => return refused(ABSENT),
                Bound::Taken => return refused(TAKEN),
            }
        }
        Ok(())
    }

    /// Unbinds the uploads of an event that was not stored. A failed unbind leaves them to expire.
    pub(super) async fn unbind(&self, event_id: &str, bound: Vec<Uuid>) {
        for id in bound {
            let event_id = event_id.to_owned();
            let unbound = self.deps.store.write(UnbindArtifact { id, event_id }).await;
            if let Err(error) = unbound {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(artifact.id = %id, error, "cannot release an upload from a rejected event; it stays bound until it expires");
            }
        }
    }
}

/// Refuses an input that names an artifact by its URL. A bare id may belong to the platform and stays.
pub(super) fn refuse_named(input: &AgentInput) -> Result<(), AttachError> {
    let named = all_named(input).into_iter().find(|one| one.is_certain);
    named.map_or(Ok(()), |named| {
        Err(AttachError::Reference(Fault::new(named.pointer, CLOSED)))
    })
}

/// True when an input may name an upload by the id of an attachment.
pub(super) fn names_upload(input: &AgentInput) -> bool {
    input.attachments.iter().any(|one| sole_id(one).is_some())
}

/// Id of an attachment that has no other source of bytes.
fn sole_id(attachment: &InputAttachment) -> Option<Uuid> {
    let elsewhere = [
        &attachment.reference,
        &attachment.url,
        &attachment.path,
        &attachment.content,
    ];
    let is_sole_source = elsewhere.iter().all(|one| one.is_none());
    attachment
        .id
        .as_deref()
        .filter(|_| is_sole_source)
        .and_then(id_of)
}

fn all_named(input: &AgentInput) -> Vec<ArtifactReference> {
    let named = |url: Option<&str>, pointer: String| {
        let id = id_of_url(url?)?;
        Some(ArtifactReference {
            id,
            pointer,
            is_certain: true,
        })
    };
    let contents = input.contents.iter().enumerate();
    let in_contents = contents.filter_map(|(at, part)| {
        let image = part.image_url.as_ref().map(|image| image.url.as_str());
        let base = format!("/input/contents/{at}");
        named(image, format!("{base}/image_url/url"))
            .or_else(|| named(part.file_url.as_deref(), format!("{base}/file_url")))
    });
    let attachments = input.attachments.iter().enumerate();
    let in_attachments = attachments.filter_map(|(at, one)| {
        let base = format!("/input/attachments/{at}");
        let by_id = || {
            Some(ArtifactReference {
                id: sole_id(one)?,
                pointer: format!("{base}/id"),
                is_certain: false,
            })
        };
        named(one.url.as_deref(), format!("{base}/url")).or_else(by_id)
    });
    in_contents.chain(in_attachments).collect()
}

/// Completes the attachments that name an artifact, or adds one.
fn describe(input: &mut AgentInput, record: &ArtifactRecord) {
    let reference = reference_to(&record.id, &record.name, &record.mime_type, record.size);
    let names_it = |one: &InputAttachment| {
        one.url == reference.url || sole_id(one).is_some_and(|id| id.to_string() == record.id)
    };
    for one in input.attachments.iter_mut().filter(|one| names_it(one)) {
        attach(one, reference.clone());
    }
    if !input
        .attachments
        .iter_mut()
        .any(|one| is_same(one, &reference))
    {
        input.attachments.push(reference);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds_references_by_url_and_lone_id() {
        let [a, b, c] = [1, 2, 3].map(|n| Uuid::from_u128(n).to_string());
        let input: AgentInput = serde_json::from_value(json!({
            "contents": [
                {"type": "image_url", "image_url": {"url": format!("artifact:{a}")}},
                {"type": "file_url", "file_url": "artifact:x"},
                {"type": "text", "text": format!("artifact:{b}")},
            ],
            "attachments": [
                {"url": format!("artifact:{b}")},
                {"artifact_id": c},
                {"id": c, "path": "/tmp/x"},
                {"id": c.to_uppercase().replace('3', "A")},
            ],
        }))
        .unwrap();
        let found: Vec<_> = all_named(&input)
            .into_iter()
            .map(|named| (named.id.as_u128(), named.pointer, named.is_certain))
            .collect();
        assert_eq!(
            found,
            [
                (1, "/input/contents/0/image_url/url".to_owned(), true),
                (2, "/input/attachments/0/url".to_owned(), true),
                (3, "/input/attachments/1/id".to_owned(), false),
            ]
        );
    }
}
