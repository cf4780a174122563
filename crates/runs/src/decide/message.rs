//! Transcript items of messages.

use domain::canonical::canonical_json;
use protocol::JsonObject;
use protocol::context::{ActorContext, AgentInput, InputAttachment};
use protocol::event::{EventEnvelope, MESSAGE_RECEIVED};
use serde_json::json;
use store::UserMessage;
use uuid::Uuid;

/// Maximum characters of a transcript item's text.
const TRANSCRIPT_CHARACTERS: usize = 4000;

/// The user's transcript item of a message event.
pub(crate) fn user_message(event: &EventEnvelope, id: Uuid) -> Option<UserMessage> {
    let input = event
        .input
        .as_ref()
        .filter(|_| event.event_type == MESSAGE_RECEIVED)?;
    let contents: Vec<_> = input
        .contents
        .iter()
        .map(|part| {
            let mut part = part.clone();
            // Inline bytes would repeat on every page of the history; the event has them.
            let has_picture = part.image_base64.take().is_some();
            let is_artifact = part.image_url.is_some();
            if has_picture && is_artifact {
                "image_url".clone_into(&mut part.kind);
            }
            let has_file = part.file_base64.take().is_some();
            (part, has_file || has_picture && !is_artifact)
        })
        .collect();
    let redacted = contents.iter().any(|(_, inline)| *inline);
    let contents: Vec<_> = contents.into_iter().map(|(part, _)| part).collect();
    let mut message = json!({"role": "user", "content": contents});
    if redacted {
        message["content_redacted"] = json!(true);
    }
    Some(UserMessage {
        id,
        content: input.text.as_deref().map(transcript_text),
        content_json: message.to_string(),
        attachment_refs: attachment_refs(input),
        author: event.actor.as_ref().map(author),
    })
}

/// The author without metadata and locale, which would repeat on every page of a history.
fn author(actor: &ActorContext) -> String {
    canonical_json(&ActorContext {
        locale: None,
        timezone: None,
        metadata: JsonObject::new(),
        ..actor.clone()
    })
}

/// Attachments by reference. Inline content stays in the event only.
fn attachment_refs(input: &AgentInput) -> String {
    let refs: Vec<_> = input
        .attachments
        .iter()
        .map(|attachment| InputAttachment {
            content: None,
            ..attachment.clone()
        })
        .collect();
    canonical_json(&refs)
}

/// The text of a transcript item, shortened. `content_json` keeps all of it.
pub(crate) fn transcript_text(text: &str) -> String {
    if text.chars().count() <= TRANSCRIPT_CHARACTERS {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(TRANSCRIPT_CHARACTERS - 3).collect();
    short.push_str("...");
    short
}
