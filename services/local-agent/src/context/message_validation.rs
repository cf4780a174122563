//! Message sequences that every provider accepts: known roles and parts, and tool results directly after the
//! message with their calls.

use std::ops::Range;

use protocol::message::{ContentElement, Message, MessageContent, ToolCall};

use crate::context::estimate;

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Message with its original index.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexedMessage {
    pub at: usize,
    pub message: Message,
}

/// Drops unknown roles and parts, empty messages, calls without a result and results without a call. A call with
/// a pending result is dropped, too.
pub fn sanitize(messages: Vec<Message>) -> Vec<Message> {
    let placed = sanitize_indexed(messages).into_iter();
    placed.map(|placed| placed.message).collect()
}

/// As [`sanitize`], with the original index of each message.
pub fn sanitize_indexed(messages: Vec<Message>) -> Vec<IndexedMessage> {
    let mut valid = Vec::new();
    let mut open = None;
    for (at, message) in messages.into_iter().enumerate() {
        let Some(message) = valid_part_of(message) else {
            continue;
        };
        if message.role == "tool" {
            let is_awaited = open
                .as_mut()
                .is_some_and(|open: &mut PendingCalls| open.takes(&message));
            if is_awaited {
                valid.push(IndexedMessage { at, message });
            }
            continue;
        }
        // Results must follow their calls directly: any other message ends the wait.
        close(open.take(), &mut valid);
        open = PendingCalls::of(&message, valid.len());
        valid.push(IndexedMessage { at, message });
    }
    close(open, &mut valid);
    valid
}

/// True when a message instructs the model.
pub fn is_instruction(message: &Message) -> bool {
    ["system", "developer"].contains(&message.role.as_str())
}

/// Messages that stay together: an assistant's calls with their results, or a single message.
pub fn units(messages: &[Message]) -> Vec<Range<usize>> {
    let mut units: Vec<Range<usize>> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        match units.last_mut() {
            Some(unit) if message.role == "tool" => unit.end = index + 1,
            _ => units.push(index..index + 1),
        }
    }
    units
}

/// Assistant message whose results may follow.
struct PendingCalls {
    /// Index among kept messages.
    caller: usize,
    waiting: Vec<String>,
    answered: Vec<String>,
}

impl PendingCalls {
    fn of(message: &Message, caller: usize) -> Option<Self> {
        let calls = message.tool_calls.as_ref()?;
        Some(Self {
            caller,
            waiting: calls.iter().map(|call| call.id.clone()).collect(),
            answered: Vec::new(),
        })
    }

    /// Accepts the first result of each call.
    fn takes(&mut self, result: &Message) -> bool {
        let waits = |id: &String| Some(id.as_str()) == result.tool_call_id.as_deref();
        let Some(position) = self.waiting.iter().position(waits) else {
            return false;
        };
        self.answered.push(self.waiting.swap_remove(position));
        true
    }
}

/// Removes calls without a result, and the message itself when nothing is left.
fn close(open: Option<PendingCalls>, valid: &mut Vec<IndexedMessage>) {
    let Some(open) = open else { return };
    let Some(placed) = valid.get_mut(open.caller) else {
        return;
    };
    let message = &mut placed.message;
    if let Some(calls) = &mut message.tool_calls {
        calls.retain(|call| open.answered.contains(&call.id));
    }
    if open.answered.is_empty() {
        // A message that had calls only is empty now.
        message.tool_calls = None;
        if message.content.is_none() {
            valid.remove(open.caller);
        }
    }
}

fn valid_part_of(mut message: Message) -> Option<Message> {
    if !ROLES.contains(&message.role.as_str()) {
        return None;
    }
    message.content = message.content.and_then(valid_content);
    let calls = message.tool_calls.take().map(valid_calls);
    if message.role == "tool" {
        // An empty tool result is valid.
        message
            .content
            .get_or_insert_with(|| MessageContent::Text(String::new()));
        let is_named = message
            .tool_call_id
            .as_ref()
            .is_some_and(|id| !id.is_empty());
        return is_named.then_some(message);
    }
    // Providers reject a call id outside of tool results.
    message.tool_call_id = None;
    if message.role == "assistant" {
        message.tool_calls = calls.filter(|calls| !calls.is_empty());
    }
    let has_content = message.content.is_some() || message.tool_calls.is_some();
    has_content.then_some(message)
}

fn valid_content(content: MessageContent) -> Option<MessageContent> {
    match content {
        MessageContent::Text(text) if text.is_empty() => None,
        MessageContent::Parts(mut parts) => {
            parts.retain(is_valid_part);
            (!parts.is_empty()).then_some(MessageContent::Parts(parts))
        }
        text @ MessageContent::Text(_) => Some(text),
    }
}

fn is_valid_part(part: &ContentElement) -> bool {
    if part.kind == "text" {
        return part.text.as_ref().is_some_and(|text| !text.is_empty());
    }
    let has_data = part.image_url.is_some()
        || part.image_base64.is_some()
        || part.file_url.is_some()
        || part.file_base64.is_some();
    estimate::is_attachment(part) && has_data
}

/// Calls with a unique id and a name.
fn valid_calls(calls: Vec<ToolCall>) -> Vec<ToolCall> {
    let mut valid: Vec<ToolCall> = Vec::new();
    for call in calls {
        let is_new = valid.iter().all(|other| other.id != call.id);
        if is_new && !call.id.is_empty() && !call.function.name.is_empty() {
            valid.push(call);
        }
    }
    valid
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::context::testing::{Generator, assert_legal, call, result};

    fn text(role: &str, text: &str) -> Message {
        Message::text(role, text)
    }

    fn check(messages: Vec<Message>, expected: &[usize]) {
        let indices: Vec<_> = sanitize_indexed(messages)
            .into_iter()
            .map(|placed| placed.at)
            .collect();
        assert_eq!(indices, expected);
    }

    #[test]
    fn drops_unknown_roles_and_empty_messages() {
        check(
            vec![
                text("system", "s"),
                text("reasoning", "hm"),
                text("user", ""),
                text("developer", "d"),
                text("assistant", ""),
                text("user", "u"),
            ],
            &[0, 3, 5],
        );
    }

    #[test]
    fn drops_provider_specific_parts() {
        let of = |content: serde_json::Value| {
            let message = json!({"role": "user", "content": content});
            sanitize(vec![serde_json::from_value(message).unwrap()])
        };
        let image = json!({"type": "image_url", "image_url": {"url": "https://a.b/c.png"}});
        let file = json!({"type": "file_base64", "file_base64": "AAAA", "file_name": "a"});
        let expected = json!([{"type": "text", "text": "hi"}, image, file]);
        let mut more = expected.as_array().unwrap().clone();
        more.insert(0, json!({"type": "thinking", "text": "hm"}));
        more.push(json!({"type": "text", "text": ""}));
        more.push(json!({"type": "image_url"}));
        let sanitized = of(json!(more));
        assert_eq!(
            serde_json::to_value(&sanitized[0].content).unwrap(),
            expected
        );
        assert!(of(json!([{"type": "reasoning", "text": "hm"}])).is_empty());
    }

    #[test]
    fn drops_misplaced_tool_results() {
        let orphan = vec![text("user", "u"), result("a", "1"), text("assistant", "x")];
        check(orphan, &[0, 2]);
        let late = vec![call(&["a"]), text("user", "u"), result("a", "1")];
        check(late, &[1]);
        let twice = vec![
            call(&["a"]),
            result("a", "1"),
            result("a", "2"),
            result("b", "3"),
        ];
        check(twice, &[0, 1]);
        let mut nameless = result("a", "1");
        nameless.tool_call_id = None;
        check(vec![call(&["a"]), nameless, result("a", "2")], &[0, 2]);
        let silent = vec![call(&["a"]), result("a", "")];
        check(silent, &[0, 1]);
        let past_unknown = vec![call(&["a"]), text("thinking", "x"), result("a", "1")];
        check(past_unknown, &[0, 2]);
    }

    #[test]
    fn drops_unanswered_calls_and_keeps_text() {
        let sanitized = sanitize(vec![call(&["a", "b"]), result("b", "1")]);
        let ids: Vec<_> = sanitized[0]
            .tool_calls
            .iter()
            .flatten()
            .map(|call| &call.id)
            .collect();
        assert_eq!(ids, ["b"]);
        let mut says = call(&["a"]);
        says.content = Some(MessageContent::Text("let me see".to_owned()));
        let sanitized = sanitize(vec![says, text("user", "u")]);
        assert_eq!(sanitized[0], text("assistant", "let me see"));
        check(vec![call(&["a"]), text("user", "u")], &[1]);
    }

    #[test]
    fn requires_unique_call_ids_and_names() {
        let mut odd = call(&["a", "a", "", "b"]);
        odd.tool_calls.as_mut().unwrap()[3].function.name.clear();
        let sanitized = sanitize(vec![odd, result("a", "1"), result("b", "2")]);
        assert_eq!(sanitized.len(), 2);
        assert_eq!(sanitized[0].tool_calls.as_ref().unwrap().len(), 1);
        let mut not_an_assistant = call(&["a"]);
        not_an_assistant.role = "user".to_owned();
        check(vec![not_an_assistant, result("a", "1")], &[]);
    }

    #[test]
    fn groups_calls_with_their_results() {
        let messages = [
            text("user", "u"),
            call(&["a", "b"]),
            result("a", "1"),
            result("b", "2"),
            text("assistant", "x"),
        ];
        assert_eq!(units(&messages), [0..1, 1..4, 4..5]);
        assert!(units(&[]).is_empty());
    }

    #[test]
    fn normalizes_any_sequence_idempotently() {
        for seed in 0..2_000 {
            let mut generator = Generator::new(seed);
            let messages = generator.jumble();
            let sanitized = sanitize(messages);
            assert_legal(&sanitized);
            assert_eq!(sanitize(sanitized.clone()), sanitized, "seed {seed}");
        }
    }
}
