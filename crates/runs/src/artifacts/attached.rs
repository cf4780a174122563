//! Files of an event. Large files become artifacts, uploads that the event names are bound to it, and the event
//! keeps references.

mod references;

use domain::artifact::{
    INLINE_BYTES, base64_of, base64_of_attachment, has_artifacts, is_large, url_of,
};
use domain::canonical::canonical_json;
use protocol::context::{AgentInput, InputAttachment};
use protocol::event::{EventEnvelope, MESSAGE_RECEIVED};
use protocol::id::WorkspaceId;
use protocol::message::{ContentElement, ImageUrl};
use store::{ArtifactOrigin, ArtifactRecord};
use uuid::Uuid;

use super::Artifacts;
use super::body::{BodyFiles, Pieces, declared_type, digest};
use super::error::UploadError;
use super::reference::{NAME, attach, is_same, reference_to};
use super::sniff::media_type;
use super::upload::{ArtifactOwner, NewArtifact, StoredArtifact};

pub(crate) use references::AttachError;
use references::{names_upload, refuse_named};

/// Maximum number of small pictures of an event that become artifacts.
const MAX_SMALL_PICTURES: usize = 16;

/// Artifacts that were created or bound for an event that is not stored yet.
#[derive(Debug, Default)]
pub(crate) struct Attached {
    made: Vec<Uuid>,
    bound: Vec<Uuid>,
}

impl Attached {
    /// One id of the set, by which a retried event finds its artifacts.
    pub(crate) fn first(&self) -> Option<Uuid> {
        self.made.iter().chain(&self.bound).next().copied()
    }
}

/// Uploads that an event may bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Uploads {
    /// Uploads of clients of its workspace.
    OfClients,
    /// None, because a run wrote the event.
    Closed,
    /// None, because the sender's key is restricted to agents: an event that names one is refused.
    Refused,
}

/// A file of an event that becomes an artifact. Its base64 is in the event, or in the body of the request.
struct EventFile {
    sha256: String,
    size: u64,
    declared: Option<String>,
    name: Option<String>,
}

impl EventFile {
    /// The file of a base64 text; `None`: the text is small or no base64, and stays in the event.
    async fn of(text: &str, files: &BodyFiles) -> Option<Self> {
        let (declared, base64) = declared_type(text);
        let (sha256, size) = match files.find(base64) {
            Some(file) => (file.sha256.clone(), file.size),
            None if is_large(base64) => digest(Pieces::plain(base64)).await?,
            None => return None,
        };
        let declared = declared.map(str::to_owned);
        (size > INLINE_BYTES as u64).then_some(Self {
            sha256,
            size,
            declared,
            name: None,
        })
    }

    /// The file of a base64 text that is a picture by its first bytes.
    async fn of_picture(text: &str) -> Option<Self> {
        let (declared, base64) = declared_type(text);
        let head = Pieces::plain(base64).next()?.ok()?;
        if !media_type(declared, &head).starts_with("image/") {
            return None;
        }
        let (sha256, size) = digest(Pieces::plain(base64)).await?;
        let declared = declared.map(str::to_owned);
        Some(Self {
            sha256,
            size,
            declared,
            name: None,
        })
    }
}

impl Artifacts {
    /// Creates artifacts of the large files of an event, and binds those that it names. If the event is not
    /// stored, the caller releases them by [`Self::drop_attached`].
    pub(crate) async fn keep_attached(
        &self,
        workspace: &WorkspaceId,
        event_id: &str,
        event: &mut EventEnvelope,
        files: &BodyFiles,
        uploads: Uploads,
    ) -> Result<Attached, AttachError> {
        let mut attached = Attached::default();
        let has_transcript = has_transcript(event);
        let Some(input) = &mut event.input else {
            return Ok(attached);
        };
        // One block, so that every failure releases the artifacts created before it.
        let keeping = async {
            match uploads {
                Uploads::OfClients => {
                    self.bind_named(workspace, event_id, input, &mut attached.bound)
                        .await?;
                }
                Uploads::Refused => refuse_named(input)?,
                Uploads::Closed => {}
            }
            self.keep_all(workspace, event_id, input, files, &mut attached.made)
                .await?;
            if has_transcript {
                self.keep_small_pictures(workspace, event_id, input, &mut attached.made)
                    .await?;
            }
            Ok(())
        };
        match keeping.await {
            Ok(()) => Ok(attached),
            Err(error) => {
                self.drop_attached(event_id, attached).await;
                Err(error)
            }
        }
    }

    /// Releases the artifacts of an event that was not stored. A failed release leaves them to expire.
    pub(crate) async fn drop_attached(&self, event_id: &str, attached: Attached) {
        for id in attached.made {
            if let Err(error) = self.drop_artifact(id).await {
                let error = &error as &dyn std::error::Error;
                // The event is already refused; the expiry deletes the artifact.
                tracing::warn!(artifact.id = %id, error, "cannot delete an artifact of a rejected event; it stays until it expires");
            }
        }
        self.unbind(event_id, attached.bound).await;
    }

    async fn keep_all(
        &self,
        workspace: &WorkspaceId,
        event_id: &str,
        input: &mut AgentInput,
        files: &BodyFiles,
        made: &mut Vec<Uuid>,
    ) -> Result<(), UploadError> {
        let found = files_of(input, files).await;
        let mut stored: Vec<(String, StoredArtifact)> = Vec::new();
        for (text, file) in texts_of(input).zip(&found) {
            let Some(file) = file else { continue };
            // The same bytes in contents and attachments become one artifact.
            if stored.iter().any(|(sha256, _)| *sha256 == file.sha256) {
                continue;
            }
            // The same bytes may occur again with a name.
            let mut same = found.iter().flatten();
            let named = same.find(|one| one.sha256 == file.sha256 && one.name.is_some());
            let name = named.and_then(|one| one.name.as_deref());
            let uploaded = self
                .keep(workspace, event_id, file, name, text, files)
                .await?;
            made.push(uploaded.id);
            stored.push((file.sha256.clone(), uploaded));
        }
        if !stored.is_empty() {
            refer_to(input, &found, &stored);
        }
        Ok(())
    }

    /// Creates artifacts of inline pictures, for the transcript: later runs of the conversation show them again.
    /// The event has both the picture and its artifact. A picture that is refused as an artifact stays inline only.
    async fn keep_small_pictures(
        &self,
        workspace: &WorkspaceId,
        event_id: &str,
        input: &mut AgentInput,
        made: &mut Vec<Uuid>,
    ) -> Result<(), UploadError> {
        let mut stored: Vec<(String, String)> = Vec::new();
        for part in input.contents.iter_mut().filter(|part| is_inline(part)) {
            let text = part.image_base64.as_deref().unwrap_or_default();
            let Some(file) = EventFile::of_picture(text).await else {
                continue;
            };
            let same = stored.iter().find(|(sha256, _)| *sha256 == file.sha256);
            let url = match same {
                Some((_, url)) => url.clone(),
                // Further pictures stay inline: each artifact costs a row and an upload.
                None if stored.len() == MAX_SMALL_PICTURES => break,
                None => {
                    let name = part.file_name.as_deref();
                    let name = name.filter(|name| domain::artifact::is_name(name));
                    let none = BodyFiles::default();
                    let uploaded = self.keep(workspace, event_id, &file, name, text, &none);
                    let uploaded = match uploaded.await {
                        Ok(uploaded) => uploaded,
                        Err(error @ (UploadError::BlobStore(_) | UploadError::Store(_))) => {
                            return Err(error);
                        }
                        Err(error) => {
                            tracing::debug!(
                                event.id = event_id,
                                "no artifact of an inline picture: {error}"
                            );
                            continue;
                        }
                    };
                    made.push(uploaded.id);
                    let url = url_of(&uploaded.id.to_string());
                    stored.push((file.sha256, url.clone()));
                    url
                }
            };
            part.image_url = Some(ImageUrl { url });
        }
        Ok(())
    }

    async fn keep(
        &self,
        workspace: &WorkspaceId,
        event_id: &str,
        file: &EventFile,
        name: Option<&str>,
        text: &str,
        files: &BodyFiles,
    ) -> Result<StoredArtifact, UploadError> {
        let mut upload = self.upload(NewArtifact {
            workspace: workspace.clone(),
            origin: ArtifactOrigin::Event,
            run: None,
            name: name.unwrap_or(NAME).to_owned(),
            declared: file.declared.clone(),
            announced: Some(file.size),
            keep: None,
        })?;
        let (_, base64) = declared_type(text);
        let found = files.find(base64);
        let mut pieces = found.map_or_else(|| Pieces::plain(base64), |file| file.pieces());
        // Invalid base64 cannot occur here: `EventFile` has decoded the full text for its digest.
        while let Some(Ok(piece)) = pieces.next() {
            if let Err(error) = upload.take(&piece).await {
                // Releases the reservation in the workspace's quota.
                upload.give_up(None).await?;
                return Err(error);
            }
        }
        let owner = ArtifactOwner {
            event_id: Some(event_id.to_owned()),
            ..ArtifactOwner::default()
        };
        upload.finish(owner, |_| None).await
    }
}

/// Texts of an input that may be files: those of its contents, then those of its attachments.
fn texts_of(input: &AgentInput) -> impl Iterator<Item = &str> {
    let of_contents = input.contents.iter().map(base64_of);
    let of_attachments = input.attachments.iter().map(base64_of_attachment);
    let texts = of_contents.chain(of_attachments);
    texts.map(Option::unwrap_or_default)
}

/// The large files among these texts, by index.
async fn files_of(input: &AgentInput, files: &BodyFiles) -> Vec<Option<EventFile>> {
    let of_contents = input.contents.iter().map(|one| (&one.file_name, None));
    let of_attachments = input.attachments.iter();
    let of_attachments = of_attachments.map(|one| (&one.name, one.mime_type.as_ref()));
    let declarations = of_contents.chain(of_attachments);
    let mut found = Vec::new();
    for (text, (name, declared)) in texts_of(input).zip(declarations) {
        let file = EventFile::of(text, files).await;
        found.push(file.map(|file| EventFile {
            declared: file.declared.or_else(|| declared.cloned()),
            name: name.clone().filter(|name| domain::artifact::is_name(name)),
            ..file
        }));
    }
    found
}

/// Replaces files by references. Each artifact becomes one attachment, except if the same bytes have several
/// names.
fn refer_to(
    input: &mut AgentInput,
    found: &[Option<EventFile>],
    stored: &[(String, StoredArtifact)],
) {
    let uploaded = |file: &Option<EventFile>| {
        let sha256 = &file.as_ref()?.sha256;
        let mut stored = stored.iter();
        stored.find(|(of, _)| of == sha256).map(|(_, one)| one)
    };
    let (in_contents, in_attachments) = found.split_at(input.contents.len());
    for (element, file) in input.contents.iter_mut().zip(in_contents) {
        if let Some(uploaded) = uploaded(file) {
            refer(element, uploaded);
        }
    }
    for (attachment, file) in input.attachments.iter_mut().zip(in_attachments) {
        if let Some(uploaded) = uploaded(file) {
            attachment.content = None;
            attach(attachment, attachment_of(uploaded));
        }
    }
    let further = stored.iter().map(|(_, uploaded)| attachment_of(uploaded));
    input.attachments.extend(further);
    let mut attachments: Vec<InputAttachment> = Vec::new();
    for one in std::mem::take(&mut input.attachments) {
        if !attachments
            .iter_mut()
            .any(|existing| is_same(existing, &one))
        {
            attachments.push(one);
        }
    }
    input.attachments = attachments;
}

/// Announced artifacts as attachments of a message in the transcript: a JSON list.
pub(crate) fn announced_attachments(announced: &[ArtifactRecord]) -> String {
    let refs = announced.iter();
    let refs = refs.map(|of| reference_to(&of.id, &of.name, &of.mime_type, of.size));
    canonical_json(&refs.collect::<Vec<_>>())
}

/// True when an event may have files that become its artifacts.
pub(crate) fn may_have_files(event: &EventEnvelope, files: &BodyFiles) -> bool {
    let input = event.input.as_ref();
    let has_pictures =
        |input: &AgentInput| has_transcript(event) && input.contents.iter().any(is_inline);
    !files.is_empty()
        || input
            .is_some_and(|input| has_artifacts(input) || names_upload(input) || has_pictures(input))
}

/// True when an event becomes a message of a conversation's history.
fn has_transcript(event: &EventEnvelope) -> bool {
    event.event_type == MESSAGE_RECEIVED && event.conversation.is_some()
}

fn is_inline(part: &ContentElement) -> bool {
    part.image_base64.is_some() && part.image_url.is_none()
}

fn attachment_of(uploaded: &StoredArtifact) -> InputAttachment {
    let StoredArtifact {
        id,
        name,
        mime_type,
        size,
        ..
    } = uploaded;
    reference_to(&id.to_string(), name, mime_type, *size)
}

fn refer(element: &mut ContentElement, uploaded: &StoredArtifact) {
    let url = url_of(&uploaded.id.to_string());
    if element.image_base64.take().is_some() || element.image_url.is_some() {
        "image_url".clone_into(&mut element.kind);
        element.image_url = Some(ImageUrl { url });
    } else {
        element.file_base64 = None;
        "file_url".clone_into(&mut element.kind);
        element.file_url = Some(url);
    }
}
