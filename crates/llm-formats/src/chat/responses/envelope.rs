//! Members of a chat completion that must return to its model in the next turn: reasoning and signatures of
//! calls. The client keeps them as `encrypted_content` of a reasoning item. They return only to the same model.

use std::collections::BTreeMap;

use protocol::JsonObject;
use serde_json::{Value, json};

use crate::chat::carried::{may_carry, of_call};
use domain::json_text::check_json_text;

/// Prefix of content written by the gateway.
const MARK: &str = "runnel:1:";

/// Content of one reasoning item.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ReasoningEnvelope {
    /// Members of the assistant's message.
    pub(super) reasoning_members: JsonObject,
    /// Members of its calls, by call id.
    pub(super) calls: BTreeMap<String, JsonObject>,
}

impl ReasoningEnvelope {
    /// Returns the content of a reasoning item. `None`: there is none.
    pub(super) fn seal(&self, model: &str) -> Option<String> {
        // An empty item would only cost tokens in the next request.
        if self.reasoning_members.is_empty() && self.calls.is_empty() {
            return None;
        }
        let held = json!({"model": model, "thoughts": self.reasoning_members, "calls": self.calls});
        Some(format!("{MARK}{held}"))
    }

    /// Parses the content. `None`: it belongs to another model, or the gateway did not write it.
    pub(super) fn open(content: &str, model: &str) -> Option<Self> {
        // Content of providers is opaque; only the gateway's own has this mark.
        let text = content.strip_prefix(MARK)?;
        // The client stores the content and may have changed it.
        check_json_text(text.as_bytes()).ok()?;
        let held: Value = serde_json::from_str(text).ok()?;
        // Another model cannot verify these signatures.
        if held["model"] != model {
            return None;
        }
        let reasoning_members = held["thoughts"].as_object().into_iter().flatten();
        let calls = held["calls"].as_object().into_iter().flatten();
        Some(Self {
            // A changed envelope must not set the role or the content of the message.
            reasoning_members: reasoning_members
                .filter(|(name, _)| may_carry(name))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            // The same filter and limit as for a provider's answer.
            calls: calls
                .map(|(id, members)| (id.clone(), of_call(members).unwrap_or_default()))
                .collect(),
        })
    }
}

/// Returns true if the gateway wrote this content. Providers cannot read it.
pub(super) fn is_sealed(content: &str) -> bool {
    content.starts_with(MARK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> JsonObject {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn stored_members_return_to_their_model() {
        let carried = ReasoningEnvelope {
            reasoning_members: object(json!({"reasoning_content": "T"})),
            calls: BTreeMap::from([("c".to_owned(), object(json!({"signature": "S"})))]),
        };
        let sealed = carried.seal("m").unwrap();
        assert!(is_sealed(&sealed));
        assert_eq!(ReasoningEnvelope::open(&sealed, "m"), Some(carried));
        assert_eq!(ReasoningEnvelope::open(&sealed, "other"), None);
        assert_eq!(ReasoningEnvelope::open("gAAAAA", "m"), None);
        assert_eq!(ReasoningEnvelope::default().seal("m"), None);
    }

    #[test]
    fn forged_envelopes_add_no_other_members() {
        let forged = json!({"model": "m", "thoughts": {"content": "x", "reasoning": "T"},
            "calls": {"c": {"function": {}, "x": 1}, "d": 7}});
        let opened = ReasoningEnvelope::open(&format!("{MARK}{forged}"), "m").unwrap();
        assert_eq!(opened.reasoning_members, object(json!({"reasoning": "T"})));
        assert_eq!(opened.calls["c"], object(json!({"x": 1})));
        assert!(opened.calls["d"].is_empty());
        assert_eq!(ReasoningEnvelope::open(&format!("{MARK}[["), "m"), None);
    }
}
