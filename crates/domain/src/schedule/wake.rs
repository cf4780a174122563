//! Wakes: a run wakes its agent later, in its conversation.

use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::event::EventEnvelope;
use protocol::id::RunId;
use protocol::schedule::{
    AGENT_WAKE, MAX_WAKE_SECONDS, WAKE_DATA_BYTES, WAKE_KEY_CHARS, WakeRequest,
};
use serde_json::json;
use uuid::Uuid;

use super::{SOURCE, WAKE_ID_PREFIX};
use crate::canonical::canonical_json;
use crate::event::contains_nul;

/// Returns all faults of a request. `now`: epoch seconds.
pub fn check_wake(request: &WakeRequest, now: i64) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut fault = |pointer: &str, message: &str| faults.push(Fault::new(pointer, message));
    if !(1..=WAKE_KEY_CHARS).contains(&request.key.chars().count()) {
        fault("/key", "must have 1 to 128 characters");
    }
    match (request.at, request.after_seconds) {
        (None, None) => fault("/at", "is required without `after_seconds`"),
        (Some(_), Some(_)) => fault("/after_seconds", "must be absent when `at` is set"),
        (Some(at), None) if !(0..=now + MAX_WAKE_SECONDS).contains(&at) => {
            fault(
                "/at",
                "must be a time in epoch seconds, at most 366 days from now",
            );
        }
        (None, Some(after)) if !(0..=MAX_WAKE_SECONDS).contains(&after) => {
            fault("/after_seconds", "must be 0 to 31622400 seconds, 366 days");
        }
        _ => {}
    }
    if canonical_json(&request.data).len() > WAKE_DATA_BYTES {
        fault(
            "/data",
            "is larger than 16 KiB; store it as state or an artifact, and pass its key",
        );
    }
    // PostgreSQL rejects it; an error here beats a failed insert.
    if contains_nul(&canonical_json(request)) {
        fault("", "must not contain the character U+0000");
    }
    faults
}

/// Returns the time of a wake, in epoch seconds.
pub fn wake_time(request: &WakeRequest, now: i64) -> i64 {
    let after = request.after_seconds.unwrap_or(0);
    request.at.unwrap_or(now.saturating_add(after))
}

/// Returns the id of the event of a wake.
pub fn wake_event_id(id: Uuid) -> String {
    format!("{WAKE_ID_PREFIX}{id}")
}

/// Creates the event of a wake, in the conversation of the event that started the run.
pub fn wake_event(
    origin: EventEnvelope,
    id: Uuid,
    run: RunId,
    request: &WakeRequest,
    at: i64,
) -> EventEnvelope {
    let wake = json!({"key": request.key, "at": at, "run_id": run, "data": request.data});
    EventEnvelope {
        event_type: AGENT_WAKE.to_owned(),
        event_id: Some(wake_event_id(id)),
        source: SOURCE.to_owned(),
        source_event_type: None,
        event_time: Some(at),
        // The message was answered already, and its files expire with its event.
        input: None,
        data: JsonObject::from_iter([("wake".to_owned(), wake)]),
        raw: None,
        raw_ref: None,
        adapter: None,
        ..origin
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn request(value: Value) -> WakeRequest {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn reports_all_faults_of_a_wake() {
        let now = 1_796_054_400;
        let long = "k".repeat(129);
        for (body, pointers) in [
            (json!({"key": "k"}), ["/at"]),
            (json!({"key": "", "at": now}), ["/key"]),
            (json!({"key": long, "after_seconds": 0}), ["/key"]),
            (
                json!({"key": "k", "at": now, "after_seconds": 1}),
                ["/after_seconds"],
            ),
            (json!({"key": "k", "at": now + 367 * 86_400}), ["/at"]),
            (json!({"key": "k", "after_seconds": -1}), ["/after_seconds"]),
            (
                json!({"key": "k", "at": 1, "data": {"x": "d".repeat(17_000)}}),
                ["/data"],
            ),
            (json!({"key": "k\u{0}", "at": 1}), [""]),
        ] {
            let faults = check_wake(&request(body.clone()), now);
            let found: Vec<_> = faults.iter().map(|fault| &*fault.pointer).collect();
            assert_eq!(found, pointers, "{body}");
        }
        let good = request(json!({"key": "k", "after_seconds": 60}));
        assert_eq!(check_wake(&good, now), []);
        assert_eq!(wake_time(&good, now), now + 60);
    }

    #[test]
    fn wake_stays_in_the_conversation_without_its_message() {
        let origin = json!({"event_type": "message.received", "event_id": "e", "source": "chat",
            "conversation": {"conversation_id": "c"}, "input": {"text": "hi"}, "data": {"old": 1}});
        let origin = serde_json::from_value(origin).unwrap();
        let body = request(json!({"key": "k", "at": 5, "data": {"step": 2}}));
        let event = wake_event(origin, Uuid::nil(), RunId(Uuid::nil()), &body, 5);
        let conversation = event.conversation.unwrap();
        assert_eq!(conversation.conversation_id.as_deref(), Some("c"));
        assert_eq!((event.event_type.as_str(), event.input), (AGENT_WAKE, None));
        assert_eq!(event.data["wake"]["data"]["step"], 2);
        assert_eq!(event.data.get("old"), None);
    }
}
