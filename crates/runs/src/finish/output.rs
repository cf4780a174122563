//! Output of a run: the last message. Each message is an item of the transcript.

use domain::canonical::canonical_json;
use domain::normalize::RunMessages;
use domain::run::Run;
use protocol::message::Message;
use store::{TranscriptWrite, terms_of};
use uuid::Uuid;

use crate::decide::transcript_text;

/// The last message, with the number of messages if there are several.
pub(super) fn output_of(messages: &RunMessages) -> Option<String> {
    let last = messages.last()?;
    // The usual output stays a plain message.
    if messages.count < 2 {
        return Some(canonical_json(last));
    }
    let mut output = serde_json::to_value(last).expect("a message serialises to JSON");
    output["message_count"] = messages.count.into();
    Some(canonical_json(&output))
}

pub(super) fn transcript_of(
    run: &Run,
    conversation_key: &str,
    message: &Message,
) -> TranscriptWrite {
    let text = message.plain_text();
    let content = (!text.is_empty()).then(|| transcript_text(&text));
    TranscriptWrite {
        id: Uuid::now_v7(),
        conversation_key: conversation_key.to_owned(),
        event_id: run.event_id.clone(),
        role: if message.role == "tool" {
            "tool"
        } else {
            "assistant"
        },
        terms: terms_of(conversation_key, content.as_deref()),
        content,
        content_json: canonical_json(message),
        attachment_refs: "[]".to_owned(),
        author: None,
    }
}
