//! Child runs: validation of a request, and the event of the child run.

use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::child_run::{ChildRunRequest, KEY_CHARS, SUMMARY_CHARS};
use protocol::context::{ActorContext, AgentInput, DeliveryContext};
use protocol::event::{EventEnvelope, MESSAGE_RECEIVED};
use protocol::id::{AgentId, RunId};
use serde_json::{Value, json};

use crate::canonical::canonical_json;
use crate::event::{DATA_BYTES, contains_nul};

/// `source` of events that start child runs, and the surface of their delivery.
pub const SOURCE: &str = "run";

/// Returns all faults of a request, with JSON pointers.
pub fn check_child_run(request: &ChildRunRequest) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut fault = |pointer: &str, message: String| faults.push(Fault::new(pointer, message));
    if !(1..=KEY_CHARS).contains(&request.idempotency_key.chars().count()) {
        fault(
            "/idempotency_key",
            format!("must have 1 to {KEY_CHARS} characters"),
        );
    }
    let summary = request.summary.as_deref().map(|text| text.chars().count());
    if summary.is_some_and(|count| !(1..=SUMMARY_CHARS).contains(&count)) {
        let message = format!("must have 1 to {SUMMARY_CHARS} characters");
        fault("/summary", message);
    }
    if request.deadline_seconds == Some(0) {
        fault("/deadline_seconds", "must be at least 1".to_owned());
    }
    if is_empty(&request.input) {
        let message = "must have a `text`, `contents` or `attachments`";
        fault("/input", message.to_owned());
    }
    if request.input.interaction.is_some() {
        let message = "must be absent: a child run answers no question";
        fault("/input/interaction", message.to_owned());
    }
    for (index, attachment) in request.input.attachments.iter().enumerate() {
        // Uploads belong to events of clients. A run could otherwise read any upload whose id it guesses.
        if attachment.id.is_some() {
            let message = "must be absent: send the file as `content`, uploads of clients are not open to runs";
            fault(
                &format!("/input/attachments/{index}/id"),
                message.to_owned(),
            );
        }
    }
    if canonical_json(&request.context).len() > DATA_BYTES {
        let message = "is larger than 64 KiB; pass large data as a file of `input`";
        fault("/context", message.to_owned());
    }
    // PostgreSQL rejects U+0000 in text and JSON; an error here beats a failed insert.
    if contains_nul(&canonical_json(request)) {
        fault("", "must not contain the character U+0000".to_owned());
    }
    faults
}

fn is_empty(input: &AgentInput) -> bool {
    let has_text = input.text.as_ref().is_some_and(|text| !text.is_empty());
    !has_text && input.contents.is_empty() && input.attachments.is_empty()
}

/// The parent run, as the child run sees it.
#[derive(Clone, Debug)]
pub struct ParentRun<'a> {
    pub run_id: RunId,
    pub agent_id: AgentId,
    /// Name of the agent, if known.
    pub agent_name: Option<&'a str>,
}

/// Creates the event of the child run: a message of the parent's agent without a conversation. `now`: epoch
/// seconds.
pub fn child_event(request: ChildRunRequest, parent: &ParentRun<'_>, now: i64) -> EventEnvelope {
    let mut data = JsonObject::new();
    data.insert("parent_run_id".to_owned(), json!(parent.run_id));
    if let Some(summary) = request.summary {
        data.insert("summary".to_owned(), json!(summary));
    }
    if !request.context.is_empty() {
        data.insert("context".to_owned(), Value::Object(request.context));
    }
    EventEnvelope {
        event_type: MESSAGE_RECEIVED.to_owned(),
        // The gateway assigns the id.
        event_id: None,
        source: SOURCE.to_owned(),
        source_event_type: None,
        event_time: Some(now),
        locale: None,
        timezone: None,
        bot_id: None,
        pipeline_id: None,
        // Without a conversation, no concurrency policy queues the child after its own parent.
        conversation: None,
        actor: Some(ActorContext {
            actor_type: "agent".to_owned(),
            actor_id: Some(parent.agent_id.to_string()),
            actor_name: parent.agent_name.map(str::to_owned),
            ..ActorContext::default()
        }),
        subject: None,
        input: Some(request.input),
        delivery: DeliveryContext {
            surface: SOURCE.to_owned(),
            ..DeliveryContext::default()
        },
        data,
        raw: None,
        raw_ref: None,
        adapter: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(changes: &Value) -> ChildRunRequest {
        let mut body = json!({"agent_id": "a", "input": {"text": "hi"}, "idempotency_key": "k"});
        let changes = changes.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(changes);
        serde_json::from_value(body).unwrap()
    }

    #[test]
    fn reports_all_faults_of_child_run_requests() {
        for (changes, expected) in [
            (json!({}), vec![]),
            (json!({"deadline_seconds": 1, "grants": {}}), vec![]),
            (json!({"idempotency_key": ""}), vec!["/idempotency_key"]),
            (
                json!({"idempotency_key": "k".repeat(201)}),
                vec!["/idempotency_key"],
            ),
            (json!({"summary": "s".repeat(201)}), vec!["/summary"]),
            (
                json!({"deadline_seconds": 0, "input": {}}),
                vec!["/deadline_seconds", "/input"],
            ),
            (
                json!({"input": {"attachments": [{"content": "YQ=="}, {"id": "x"}]}}),
                vec!["/input/attachments/1/id"],
            ),
            (
                json!({"context": {"a": "x".repeat(DATA_BYTES)}}),
                vec!["/context"],
            ),
            (json!({"input": {"text": "a\u{0}"}}), vec![""]),
        ] {
            let faults = check_child_run(&request(&changes)).into_iter();
            let pointers: Vec<_> = faults.map(|fault| fault.pointer).collect();
            assert_eq!(pointers, expected, "{changes}");
        }
    }

    #[test]
    fn child_run_events_have_no_conversation() {
        let parent = ParentRun {
            run_id: RunId(uuid::Uuid::nil()),
            agent_id: AgentId(uuid::Uuid::nil()),
            agent_name: Some("planner"),
        };
        let event = child_event(request(&json!({"context": {"a": 1}})), &parent, 7);
        assert_eq!(crate::event::check_event(&event), []);
        assert!(event.conversation.is_none() && event.delivery.interactions.is_none());
        assert_eq!(event.data["context"], json!({"a": 1}));
        assert_eq!(event.actor.unwrap().actor_type, "agent");
    }
}
