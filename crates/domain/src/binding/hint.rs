//! Hint for the sender of an event that no agent takes.

use protocol::admin::AgentSpec;
use protocol::event::EventEnvelope;

use super::covers;
use crate::nearest::nearest;

/// Maximum length of an event type in a hint.
const QUOTED: usize = 64;

/// Returns what to do about an event that none of these agents takes. `agents`: the enabled ones.
pub fn no_match_hint<'a>(
    agents: impl Iterator<Item = &'a AgentSpec> + Clone,
    event: &EventEnvelope,
) -> String {
    // The type goes into a shell command that users copy; other characters could inject commands.
    let Some(kind) = quotable(&event.event_type) else {
        return "no enabled agent covers this event type; see its event_types".to_owned();
    };
    let patterns = agents.flat_map(|agent| &agent.event_types);
    let explain = format!("`runnel explain --type {kind}` shows why for each agent");
    if patterns.clone().any(|pattern| covers(pattern, kind)) {
        return format!("the scope or the filters of each agent exclude this event; {explain}");
    }
    match nearest(kind, patterns.map(String::as_str)) {
        Some(near) => format!("no enabled agent covers {kind}; did you mean {near}? {explain}"),
        None => format!("no enabled agent covers {kind}; add it to event_types of one; {explain}"),
    }
}

/// The type, if it is one plain word for a shell.
fn quotable(kind: &str) -> Option<&str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    // A leading hyphen would be parsed as an option.
    let is_quotable = kind.len() <= QUOTED && !kind.starts_with('-') && kind.bytes().all(is_plain);
    is_quotable.then_some(kind)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_nearest_type_or_excluding_filters() {
        let agents: Vec<AgentSpec> = vec![
            serde_json::from_value(json!({"name": "a", "event_types": ["message.received"],
                "runner_id": "plugin:a/b/c", "filters": {"source": ["webui"]}}))
            .unwrap(),
        ];
        for (kind, expected) in [
            ("message.recieved", "did you mean message.received?"),
            ("message.received", "filters"),
            ("timer.fired", "add it to event_types"),
            ("$(reboot)", "no enabled agent covers this event type"),
        ] {
            let event = json!({"event_type": kind, "source": "api"});
            let event: EventEnvelope = serde_json::from_value(event).unwrap();
            let hint = no_match_hint(agents.iter(), &event);
            assert!(hint.contains(expected), "{hint}");
            assert!(!hint.contains('$'), "{hint}");
        }
    }
}
