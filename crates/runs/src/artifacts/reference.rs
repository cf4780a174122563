//! Attachments that name artifacts.

use domain::artifact::url_of;
use protocol::context::InputAttachment;

/// Default name of a file.
pub(super) const NAME: &str = "attachment";

/// True when an attachment adds nothing to another one of the same artifact.
pub(super) fn is_same(existing: &mut InputAttachment, one: &InputAttachment) -> bool {
    let is_artifact = existing.url == one.url
        && existing
            .url
            .as_ref()
            .is_some_and(|url| url.starts_with(domain::artifact::SCHEME));
    let names_differ = match (&existing.name, &one.name) {
        (Some(existing), Some(one)) => existing != one && existing != NAME && one != NAME,
        _ => false,
    };
    if !is_artifact || names_differ {
        return false;
    }
    if existing.name.as_deref().is_none_or(|name| name == NAME) {
        // Any other name is better than the default one.
        existing.name.clone_from(&one.name);
    }
    true
}

/// Makes an attachment refer to an artifact, and keeps its other members.
pub(super) fn attach(attachment: &mut InputAttachment, artifact: InputAttachment) {
    attachment.mime_type = artifact.mime_type;
    attachment.size = artifact.size;
    attachment.url = artifact.url;
    attachment.id = artifact.id;
    attachment.kind = attachment.kind.take().or(artifact.kind);
    attachment.name = attachment.name.take().or(artifact.name);
}

/// An artifact as an attachment of a message.
pub(super) fn reference_to(id: &str, name: &str, mime_type: &str, size: u64) -> InputAttachment {
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
