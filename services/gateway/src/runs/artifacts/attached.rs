//! Files that stand in an event itself: what is large becomes an artifact, and the event keeps a reference.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use domain::canonical::canonical_json;
use protocol::context::{AgentInput, InputAttachment};
use protocol::event::EventEnvelope;
use protocol::id::WorkspaceId;
use protocol::message::{ContentElement, ImageUrl};
use store::{ArtifactOrigin, ArtifactRecord};
use uuid::Uuid;

use crate::runs::Runs;
use crate::runs::artifacts::{NewArtifact, UploadError, Uploaded, Whose};

/// What stays in the event: smaller ones cost nobody a call.
const INLINE_BYTES: usize = 64 * 1024;
const NAME: &str = "attachment";

/// A file of an event, decoded.
struct File<'a> {
    bytes: Vec<u8>,
    declared: Option<String>,
    name: Option<&'a str>,
}

impl Runs {
    /// Makes artifacts of what is large in an event. Whoever does not store the event then drops them again.
    pub(in crate::runs) async fn keep_attached(
        &self,
        workspace: &WorkspaceId,
        event_id: &str,
        event: &mut EventEnvelope,
    ) -> Result<Vec<Uuid>, UploadError> {
        let mut kept = Vec::new();
        let Some(input) = &mut event.input else {
            return Ok(kept);
        };
        let done = self.keep_all(workspace, event_id, input, &mut kept).await;
        match done {
            Ok(()) => Ok(kept),
            Err(error) => {
                self.drop_attached(kept).await;
                Err(error)
            }
        }
    }

    /// Drops artifacts of an event that was not stored. What cannot be dropped now expires.
    pub(in crate::runs) async fn drop_attached(&self, kept: Vec<Uuid>) {
        for id in kept {
            if let Err(error) = self.drop_artifact(id).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(artifact.id = %id, error, "an artifact of a refused event stays until it expires");
            }
        }
    }

    async fn keep_all(
        &self,
        workspace: &WorkspaceId,
        event_id: &str,
        input: &mut AgentInput,
        kept: &mut Vec<Uuid>,
    ) -> Result<(), UploadError> {
        for element in &mut input.contents {
            if let Some(file) = file_of_content(element) {
                let uploaded = self.keep(workspace, event_id, file).await?;
                kept.push(uploaded.id);
                input.attachments.push(attachment_of(&uploaded));
                refer(element, &uploaded);
            }
        }
        for attachment in &mut input.attachments {
            if let Some(file) = file_of_attachment(attachment) {
                let uploaded = self.keep(workspace, event_id, file).await?;
                kept.push(uploaded.id);
                let known = attachment_of(&uploaded);
                attachment.content = None;
                attachment.mime_type = known.mime_type;
                attachment.size = known.size;
                attachment.url = known.url;
                attachment.id = known.id;
            }
        }
        Ok(())
    }

    async fn keep(
        &self,
        workspace: &WorkspaceId,
        event_id: &str,
        file: File<'_>,
    ) -> Result<Uploaded, UploadError> {
        let name = file.name.filter(|name| domain::artifact::is_name(name));
        let mut upload = self.upload(NewArtifact {
            workspace: workspace.clone(),
            origin: ArtifactOrigin::Event,
            run: None,
            name: name.unwrap_or(NAME).to_owned(),
            declared: file.declared,
            announced: Some(file.bytes.len() as u64),
            keep: None,
        })?;
        if let Err(error) = upload.take(&file.bytes).await {
            upload.give_up(None).await?;
            return Err(error);
        }
        let whose = Whose {
            event_id: Some(event_id.to_owned()),
            ..Whose::default()
        };
        upload.finish(whose, |_| None).await
    }
}

/// The artifacts that a run has announced, as its message in the transcript names them: a JSON list.
pub(in crate::runs) fn announced_attachments(announced: &[ArtifactRecord]) -> String {
    let refs = announced.iter();
    let refs = refs.map(|of| reference_to(&of.id, &of.name, &of.mime_type, of.size));
    canonical_json(&refs.collect::<Vec<_>>())
}

/// Whether an event may have a file that becomes an artifact.
pub(in crate::runs) fn may_have_files(event: &EventEnvelope) -> bool {
    let Some(input) = &event.input else {
        return false;
    };
    let of_contents = input.contents.iter().filter_map(text_of_content);
    let of_attachments = input.attachments.iter();
    let of_attachments = of_attachments.filter_map(|attachment| attachment.content.as_ref());
    of_contents.chain(of_attachments).any(|text| is_large(text))
}

/// `artifact:ID`: where a URL stands, and no URL that anybody would fetch.
fn url_of(id: &str) -> String {
    format!("artifact:{id}")
}

fn attachment_of(uploaded: &Uploaded) -> InputAttachment {
    let Uploaded {
        id,
        name,
        mime_type,
        size,
        ..
    } = uploaded;
    reference_to(&id.to_string(), name, mime_type, *size)
}

/// An artifact as messages name it.
fn reference_to(id: &str, name: &str, mime_type: &str, size: u64) -> InputAttachment {
    let kind = mime_type.split('/').next().unwrap_or_default();
    let kind = match kind {
        "image" | "audio" | "video" => kind,
        _ => "file",
    };
    InputAttachment {
        kind: Some(kind.to_owned()),
        mime_type: Some(mime_type.to_owned()),
        size: i64::try_from(size).ok(),
        name: Some(name.to_owned()),
        url: Some(url_of(id)),
        id: Some(id.to_owned()),
        ..InputAttachment::default()
    }
}

fn refer(element: &mut ContentElement, uploaded: &Uploaded) {
    let url = url_of(&uploaded.id.to_string());
    if element.image_base64.take().is_some() {
        "image_url".clone_into(&mut element.kind);
        element.image_url = Some(ImageUrl { url });
    } else {
        element.file_base64 = None;
        "file_url".clone_into(&mut element.kind);
        element.file_url = Some(url);
    }
}

fn file_of_content(element: &ContentElement) -> Option<File<'_>> {
    let (bytes, declared) = decode(text_of_content(element)?)?;
    let name = element.file_name.as_deref();
    Some(File {
        bytes,
        declared,
        name,
    })
}

fn text_of_content(element: &ContentElement) -> Option<&String> {
    let image = element.image_base64.as_ref();
    image.or(element.file_base64.as_ref())
}

fn file_of_attachment(attachment: &InputAttachment) -> Option<File<'_>> {
    let (bytes, declared) = decode(attachment.content.as_ref()?)?;
    Some(File {
        bytes,
        declared: declared.or_else(|| attachment.mime_type.clone()),
        name: attachment.name.as_deref(),
    })
}

/// The bytes of a large base64 text, and the type that a `data:` URL says. `None`: it is small, or it is
/// something else, and stays as it is.
fn decode(text: &str) -> Option<(Vec<u8>, Option<String>)> {
    if !is_large(text) {
        return None;
    }
    let (declared, text) = match text.strip_prefix("data:") {
        Some(url) => {
            let (kind, text) = url.split_once(";base64,")?;
            (Some(kind.to_owned()), text)
        }
        None => (None, text),
    };
    let bytes = STANDARD.decode(text).ok()?;
    (bytes.len() > INLINE_BYTES).then_some((bytes, declared))
}

/// Whether a base64 text may be too much to stay in its event.
fn is_large(text: &str) -> bool {
    text.len() / 4 * 3 > INLINE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_large_and_base64_is_decoded() {
        let large = STANDARD.encode(vec![7; INLINE_BYTES + 1]);
        assert_eq!(decode(&large).unwrap().0.len(), INLINE_BYTES + 1);
        let (_, declared) = decode(&format!("data:image/png;base64,{large}")).unwrap();
        assert_eq!(declared.as_deref(), Some("image/png"));
        assert!(decode(&STANDARD.encode(vec![7; INLINE_BYTES])).is_none());
        assert!(decode(&"no base64 ".repeat(INLINE_BYTES)).is_none());
        assert!(decode(&format!("data:image/png,{large}")).is_none());
    }
}
