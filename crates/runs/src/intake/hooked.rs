//! Events that hooks check.

use domain::event::check_event;
use protocol::event::EventEnvelope;
use protocol::hook::{HookMoment, HookValue};
use protocol::id::WorkspaceId;
use serde::Deserialize as _;
use serde_json::Value;

use super::{Intake, IntakeError};
use crate::hooks::HookSubject;

impl Intake {
    /// The event after its hooks. `event_id`: its id, also if the event has none yet.
    pub(crate) async fn checked_event(
        &self,
        workspace: &WorkspaceId,
        event_id: &str,
        event: EventEnvelope,
    ) -> Result<EventEnvelope, IntakeError> {
        let subject = HookSubject {
            moment: HookMoment::Event,
            workspace,
            event_id,
            run: None,
            target: None,
            format: None,
        };
        let check = |replaced: &Value| check_replaced(&event, replaced);
        let passed = self
            .deps
            .hooks
            .pass(&subject, HookValue::Event(&event), check);
        let Some(replaced) = passed.await? else {
            return Ok(event);
        };
        // `check` has read it already.
        Ok(EventEnvelope::deserialize(replaced).unwrap_or(event))
    }
}

/// Checks a replacement of an event: it may have another input, `data` or `raw`.
fn check_replaced(event: &EventEnvelope, replaced: &Value) -> Result<(), String> {
    let unreadable = |_| "the replacement is no event".to_owned();
    let mut replaced = EventEnvelope::deserialize(replaced).map_err(unreadable)?;
    if fixed_members(event) != fixed_members(&replaced) || question(event) != question(&replaced) {
        return Err("the replacement has another sender, conversation or type".to_owned());
    }
    // Reserved for the gateway, which has written them.
    replaced.event_id = None;
    if let Some(input) = &mut replaced.input {
        input.interaction = None;
    }
    match check_event(&replaced).first() {
        Some(fault) => Err(format!("the replacement is not valid: {}", fault.pointer)),
        None => Ok(()),
    }
}

/// Members that decide about agent, conversation, rights and delivery.
fn fixed_members(event: &EventEnvelope) -> impl PartialEq + '_ {
    // All by name: a new member must be classified here.
    let EventEnvelope {
        event_type,
        event_id,
        source,
        source_event_type,
        event_time,
        locale,
        timezone,
        bot_id,
        pipeline_id,
        conversation,
        actor,
        subject,
        input: _,
        delivery,
        data: _,
        raw: _,
        raw_ref,
        adapter,
    } = event;
    let described = (
        event_type,
        event_id,
        source,
        source_event_type,
        event_time,
        locale,
        timezone,
    );
    let routed = (bot_id, pipeline_id, conversation, actor, subject);
    (described, routed, delivery, raw_ref, adapter)
}

/// The question that the event answers, with the answer.
fn question(event: &EventEnvelope) -> impl PartialEq + '_ {
    let input = event.input.as_ref();
    input.and_then(|input| input.interaction.as_ref())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(change: &Value) -> bool {
        let event = json!({
            "event_type": "message.received", "event_id": "interaction:1", "actor": {"actor_type": "user", "actor_id": "a"},
            "conversation": {"conversation_id": "c"}, "input": {"text": "4111 1111"},
        });
        let mut replaced = event.clone();
        let members = change.as_object().unwrap().clone();
        replaced.as_object_mut().unwrap().extend(members);
        let event: EventEnvelope = serde_json::from_value(event).unwrap();
        check_replaced(&event, &replaced).is_ok()
    }

    #[test]
    fn replaces_content_but_not_sender_or_conversation() {
        for content in [
            json!({}),
            json!({"input": {"text": "…"}}),
            json!({"data": {"a": 1}}),
            json!({"raw": {"a": 1}}),
        ] {
            assert!(check(&content), "{content}");
        }
        for fixed in [
            json!({"event_type": "other"}),
            json!({"event_id": "e"}),
            json!({"actor": {"actor_type": "user", "actor_id": "b"}}),
            json!({"conversation": {"conversation_id": "d"}}),
            json!({"bot_id": "b"}),
            json!({"delivery": {"surface": "other"}}),
            json!({"input": null}),
            json!({"input": {"text": "a", "interaction": {"interaction_id": "i", "action_id": "yes"}}}),
            json!({"input": {"text": "\u{0}"}}),
            json!({"unknown": 1}),
        ] {
            assert!(!check(&fixed), "{fixed}");
        }
    }
}
