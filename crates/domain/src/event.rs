//! Validation of event envelopes, and the conversation of an event.

use protocol::admin::Fault;
use protocol::context::{AgentInput, InputAttachment};
use protocol::event::{EventEnvelope, MESSAGE_RECEIVED};
use protocol::message::ContentElement;

use crate::actor_token::check_credential;
use crate::artifact::{false_reference, is_false_reference};
use crate::canonical::canonical_json;
use crate::locale::check_locale;
use crate::schedule::{OCCURRENCE_ID_PREFIX, WAKE_ID_PREFIX};

/// Id prefix of events that answer questions. Other events cannot use it.
pub const ANSWER_ID_PREFIX: &str = "interaction:";
/// Maximum bytes of `data`, as JSON.
pub const DATA_BYTES: usize = 64 * 1024;
/// Maximum bytes of `raw`, as JSON.
pub const RAW_BYTES: usize = 4 * 1024 * 1024;

/// Returns all faults of an envelope that a client posted.
pub fn check_posted(event: &EventEnvelope) -> Vec<Fault> {
    let mut faults = check_event(event);
    if event.adapter.is_some() {
        faults.push(Fault::new(
            "/adapter",
            "is reserved for adapters; post a pipeline's Query to /v1/adapters/pipeline/queries",
        ));
    }
    faults
}

/// Returns all faults of an envelope.
pub fn check_event(event: &EventEnvelope) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut fault = |pointer: &str, message: &str| faults.push(Fault::new(pointer, message));
    if event.event_type.is_empty() || event.event_type.len() > 128 || has_control(&event.event_type)
    {
        fault(
            "/event_type",
            "must have 1 to 128 bytes and no control characters",
        );
    }
    if let Some(id) = &event.event_id
        && (id.is_empty()
            || id.len() > 512
            || !id
                .bytes()
                .all(|byte| byte.is_ascii_graphic() || byte == b' '))
    {
        fault("/event_id", "must be 1 to 512 printable ASCII characters");
    }
    // A client could otherwise replace an occurrence of a schedule, which then would not run.
    let reserved = [OCCURRENCE_ID_PREFIX, WAKE_ID_PREFIX];
    if event
        .event_id
        .as_ref()
        .is_some_and(|id| reserved.iter().any(|prefix| id.starts_with(prefix)))
    {
        fault(
            "/event_id",
            "must not begin with `schedule/` or `wake/`, which are reserved for schedules",
        );
    }
    // A client could otherwise forge the event of another user's answer.
    if event
        .event_id
        .as_ref()
        .is_some_and(|id| id.starts_with(ANSWER_ID_PREFIX))
    {
        fault(
            "/event_id",
            "must not begin with `interaction:`, which is reserved for answers to questions",
        );
    }
    if event.source.is_empty() || event.source.len() > 512 {
        fault("/source", "must have 1 to 512 bytes");
    }
    if event.event_type == MESSAGE_RECEIVED && event.input.is_none() {
        fault("/input", "is required for message.received");
    }
    if event
        .input
        .as_ref()
        .is_some_and(|input| input.interaction.is_some())
    {
        fault(
            "/input/interaction",
            "must be absent: the gateway writes it when it has checked a submission",
        );
    }
    faults.extend(check_ids(event));
    faults.extend(check_locales(event));
    faults.extend(event.actor.iter().flat_map(check_credential));
    faults.extend(event.input.as_ref().and_then(check_references));
    let mut fault = |pointer: &str, message: &str| faults.push(Fault::new(pointer, message));
    let text = canonical_json(event);
    // PostgreSQL rejects it; an error here beats a failed insert.
    if contains_nul(&text) {
        fault("", "must not contain the character U+0000");
    }
    if canonical_json(&event.data).len() > DATA_BYTES {
        fault(
            "/data",
            "is larger than 64 KiB; send a platform's payload as `raw`",
        );
    }
    faults.extend(check_raw(event));
    faults
}

/// Checks the ids in the parts of the event.
fn check_ids(event: &EventEnvelope) -> Vec<Fault> {
    let mut faults = Vec::new();
    let conversation = event.conversation.as_ref();
    let ids = [
        ("/bot_id", event.bot_id.as_ref()),
        ("/pipeline_id", event.pipeline_id.as_ref()),
        (
            "/conversation/conversation_id",
            conversation.and_then(|c| c.conversation_id.as_ref()),
        ),
        (
            "/conversation/thread_id",
            conversation.and_then(|c| c.thread_id.as_ref()),
        ),
        (
            "/actor/actor_id",
            event
                .actor
                .as_ref()
                .and_then(|actor| actor.actor_id.as_ref()),
        ),
        (
            "/subject/subject_id",
            event
                .subject
                .as_ref()
                .and_then(|subject| subject.subject_id.as_ref()),
        ),
    ];
    for (pointer, id) in ids {
        let max = if pointer == "/subject/subject_id" {
            512
        } else {
            255
        };
        if id.is_some_and(|id| id.is_empty() || id.len() > max) {
            faults.push(Fault::new(
                pointer,
                format!("must have 1 to {max} bytes; leave it out or null when there is none"),
            ));
        }
    }
    faults
}

fn check_locales(event: &EventEnvelope) -> Vec<Fault> {
    let of_event = check_locale("", event.locale.as_deref(), event.timezone.as_deref());
    let actor = event.actor.as_ref();
    let of_actor = actor.map(|actor| {
        let (locale, timezone) = (actor.locale.as_deref(), actor.timezone.as_deref());
        check_locale("/actor", locale, timezone)
    });
    of_event
        .into_iter()
        .chain(of_actor.into_iter().flatten())
        .collect()
}

/// Checks the artifacts that an input names.
fn check_references(input: &AgentInput) -> Option<Fault> {
    let in_contents = false_reference(&input.contents);
    let in_contents = in_contents.map(|(at, member)| format!("/input/contents/{at}/{member}"));
    let pointer = in_contents.or_else(|| {
        let is_false = |one: &InputAttachment| one.url.as_deref().is_some_and(is_false_reference);
        let at = input.attachments.iter().position(is_false)?;
        Some(format!("/input/attachments/{at}/url"))
    })?;
    // Other texts after the scheme would become part of a path.
    let message = "must be `artifact:` and the id of an upload; upload the file first";
    Some(Fault::new(pointer, message))
}

fn check_raw(event: &EventEnvelope) -> Option<Fault> {
    if event
        .raw
        .as_ref()
        .is_some_and(|raw| canonical_json(raw).len() > RAW_BYTES)
    {
        // A stored raw payload gets a reference of the gateway; two would contradict each other.
        let message = "is larger than 4 MiB; keep it yourself and send `raw_ref`";
        return Some(Fault::new("/raw", message));
    }
    let reference = event.raw_ref.as_ref()?;
    if event.raw.is_some() {
        let message = "must be absent when `raw` is set: the gateway creates its own reference";
        return Some(Fault::new("/raw_ref", message));
    }
    let parts = [&reference.ref_id, &reference.storage_key];
    let mut named = parts.into_iter().flatten().peekable();
    let is_empty = named.peek().is_none();
    if is_empty || named.any(|name| name.is_empty() || name.len() > 512) {
        let message = "must name `ref_id` or `storage_key`, each of 1 to 512 bytes";
        return Some(Fault::new("/raw_ref", message));
    }
    None
}

fn has_control(text: &str) -> bool {
    text.chars().any(char::is_control)
}

/// Returns true if a JSON text contains the character U+0000, which PostgreSQL rejects and SQLite accepts.
// An escaped backslash before "u0000" makes it plain text, hence the parity check.
pub fn contains_nul(json: &str) -> bool {
    json.match_indices("\\u0000").any(|(at, _)| {
        let before = json[..at]
            .bytes()
            .rev()
            .take_while(|byte| *byte == b'\\')
            .count();
        before % 2 == 0
    })
}

/// Fills derived fields: `input.contents` from `input.text`.
#[must_use]
pub fn completed(mut event: EventEnvelope) -> EventEnvelope {
    if let Some(input) = &mut event.input
        && input.contents.is_empty()
        && let Some(text) = &input.text
    {
        input.contents.push(ContentElement::text(text.clone()));
    }
    event
}

/// Identity of a conversation. Absent parts are `''`, because NULLs are never equal in an index.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConversationIdentity {
    pub bot_id: String,
    pub conversation_id: String,
    pub thread_id: String,
}

/// Returns the conversation of an event, if it has an id.
pub fn conversation_of(event: &EventEnvelope) -> Option<ConversationIdentity> {
    let conversation = event.conversation.as_ref()?;
    Some(ConversationIdentity {
        // Empty text, not NULL: a unique index must find the conversation again.
        bot_id: event.bot_id.clone().unwrap_or_default(),
        conversation_id: conversation.conversation_id.clone()?,
        thread_id: conversation.thread_id.clone().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(body: Value, pointers: &[&str]) {
        let event: EventEnvelope = serde_json::from_value(body).unwrap();
        let found: Vec<_> = check_event(&event)
            .into_iter()
            .map(|fault| fault.pointer)
            .collect();
        assert_eq!(found, pointers, "{event:?}");
    }

    #[test]
    fn reports_all_faults_of_envelopes() {
        check(json!({"event_type": "a.b"}), &[]);
        check(json!({"event_type": "message.received"}), &["/input"]);
        check(
            json!({"event_type": "message.received", "input": {"text": "x"}}),
            &[],
        );
        check(
            json!({"event_type": "interaction.submitted",
                "input": {"interaction": {"interaction_id": "i", "action_id": "yes"}}}),
            &["/input/interaction"],
        );
        check(
            json!({"event_type": "", "event_id": "é", "bot_id": "", "pipeline_id": ""}),
            &["/event_type", "/event_id", "/bot_id", "/pipeline_id"],
        );
        check(
            json!({"event_type": "a.b", "event_id": "interaction:01a"}),
            &["/event_id"],
        );
        check(
            json!({"event_type": "a", "data": {"x": "y".repeat(DATA_BYTES)}}),
            &["/data"],
        );
        check(json!({"event_type": "a", "data": {"x": "\u{0}"}}), &[""]);
        for id in [
            "../conversations/c/history?x=",
            "..",
            "",
            "x",
            "%2e%2e/runs",
        ] {
            let url = format!("artifact:{id}");
            let file = json!({"type": "file_url", "file_url": url, "file_name": "a"});
            let image = json!({"type": "image_url", "image_url": {"url": url.to_uppercase()}});
            for (input, pointer) in [
                (json!({"contents": [file]}), "/input/contents/0/file_url"),
                (
                    json!({"contents": [image]}),
                    "/input/contents/0/image_url/url",
                ),
                (
                    json!({"attachments": [{"url": url}]}),
                    "/input/attachments/0/url",
                ),
            ] {
                check(json!({"event_type": "a", "input": input}), &[pointer]);
            }
        }
        check(json!({"event_type": "a", "data": {"x": "\\u0000"}}), &[]);
    }

    #[test]
    fn rejects_posted_adapter_data() {
        let body = json!({"event_type": "a.b", "adapter": {"extra": {"params": {}}}});
        let event: EventEnvelope = serde_json::from_value(body).unwrap();
        assert_eq!(check_event(&event), []);
        assert_eq!(check_posted(&event)[0].pointer, "/adapter");
    }

    #[test]
    fn derives_contents_from_text_and_requires_conversation_id() {
        let event: EventEnvelope = serde_json::from_value(
            json!({"event_type": "a", "input": {"text": "hi"}, "conversation": {"thread_id": "t"}}),
        )
        .unwrap();
        assert_eq!(conversation_of(&event), None);
        assert_eq!(
            completed(event).input.unwrap().contents,
            [ContentElement::text("hi")]
        );
    }
}
