//! A model request, parsed for the scripted model and the counters.

use serde_json::Value;

use super::arms::{Arm, OutputForm};

/// Markers in the protocol agent's transcript.
const PROTOCOL_TURN: &str = "## Assistant protocol request";
const TURN: &str = "<turn index=";
const NOTICE: &str = "## Runtime notice";
const NOTHING_RAN: &str = "nothing was executed";

/// One request.
#[derive(Debug)]
pub(super) struct ModelRequest {
    /// All texts except system messages, with the arguments of native calls, in order.
    pub(super) text: String,
    /// Results of native tool calls.
    pub(super) results: Vec<String>,
    /// Characters of messages and tools, as JSON.
    pub(super) chars: usize,
    /// Characters of the tool results in the request.
    pub(super) shown: usize,
    /// True when the request asks for the repair of a rejected declaration.
    pub(super) is_repair: bool,
}

impl ModelRequest {
    /// Parses the body of a chat completion.
    pub(super) fn of(arm: Option<Arm>, body: &Value) -> Self {
        let messages = body["messages"].as_array().cloned().unwrap_or_default();
        let mut text = String::new();
        let mut results = Vec::new();
        for message in messages
            .iter()
            .filter(|message| message["role"] != "system")
        {
            let content = plain(&message["content"]);
            text.push_str(&content);
            text.push('\n');
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                text.push_str(call["function"]["arguments"].as_str().unwrap_or_default());
                text.push('\n');
            }
            if message["role"] == "tool" {
                results.push(content);
            }
        }
        let shown = match arm.map(Arm::form) {
            Some(OutputForm::Carrier | OutputForm::Fenced) => fenced_chars(&text),
            _ => results.iter().map(|result| result.chars().count()).sum(),
        };
        // The instruction follows the last turn in its message.
        let last_turn = text.rfind(TURN).map_or("", |at| &text[at..]);
        let chars = |value: &Value| match value {
            Value::Null => 0,
            value => value.to_string().chars().count(),
        };
        Self {
            is_repair: last_turn.contains(NOTICE) && last_turn.contains(NOTHING_RAN),
            chars: chars(&body["messages"]) + chars(&body["tools"]),
            text,
            results,
            shown,
        }
    }

    /// Finds the token with this prefix. It must not be part of a longer token.
    pub(super) fn token(&self, beginning: &str) -> Option<&str> {
        self.text.match_indices(beginning).find_map(|(at, _)| {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            let before = self.text.as_bytes()[..at].last();
            if before.is_some_and(|byte| is_part(*byte)) {
                return None;
            }
            let rest = &self.text[at..];
            let end = rest
                .bytes()
                .position(|byte| !is_part(byte))
                .unwrap_or(rest.len());
            (end > beginning.len()).then(|| &rest[..end])
        })
    }

    /// The last reference to the output of this action.
    pub(super) fn reference_of(&self, action: &str) -> Option<String> {
        let turn = self.text.rfind(PROTOCOL_TURN)?;
        let run = self.text[turn..].split("run_id: `").nth(1)?;
        let run = run.split('`').next()?;
        Some(format!("runtime://runs/{run}/actions/{action}/output"))
    }
}

/// The text of a message.
pub(super) fn plain(content: &Value) -> String {
    let parts = match content {
        Value::String(text) => return text.clone(),
        other => other.as_array().into_iter().flatten(),
    };
    parts.filter_map(|part| part["text"].as_str()).collect()
}

/// Characters inside the fences of results.
fn fenced_chars(text: &str) -> usize {
    let mut fence: Option<&str> = None;
    let mut chars = 0;
    for line in text.lines() {
        match fence {
            Some(open) if line == open => fence = None,
            Some(_) => chars += line.chars().count() + 1,
            None => fence = line.strip_suffix("md").filter(|ticks| is_fence(ticks)),
        }
    }
    chars
}

fn is_fence(ticks: &str) -> bool {
    ticks.len() >= 3 && ticks.bytes().all(|byte| byte == b'`')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn matches_tokens_only_at_word_start() {
        let body = json!({"messages": [{"role": "user", "content": "code-found-7 and found-7, item-01-7"}]});
        let seen = ModelRequest::of(None, &body);
        assert_eq!(seen.token("found-"), Some("found-7"));
        assert_eq!(seen.token("item-01-"), Some("item-01-7"));
        assert_eq!(seen.token("item-02-"), None);
    }

    #[test]
    fn counts_results_of_both_forms() {
        let native = json!({"messages": [
            {"role": "system", "content": "s"}, {"role": "user", "content": "u"},
            {"role": "tool", "content": "12345"},
        ]});
        assert_eq!(ModelRequest::of(Some(Arm::Parallel), &native).shown, 5);
        let turn = "### Result for a\n\n```md\n12345\n```\n";
        let declared = json!({"messages": [{"role": "user", "content": turn}]});
        assert_eq!(ModelRequest::of(Some(Arm::Full), &declared).shown, 6);
    }

    #[test]
    fn counts_rejection_notices_as_repairs() {
        let of = |turn: &str| {
            let body = json!({"messages": [
                {"role": "user", "content": format!("<turn index=\"1\">\n{turn}\n</turn>\nDecide.")},
            ]});
            ModelRequest::of(Some(Arm::Flat), &body).is_repair
        };
        assert!(of("## Runtime notice\n\nRefused; nothing was executed."));
        assert!(!of("## User request\n\nhi"));
    }
}
