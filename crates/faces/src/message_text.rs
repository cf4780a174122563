//! The text of a run's messages, from its ledger.

use protocol::message::{Message, MessageContent};
use protocol::result::{
    MessageCompletedPayload, MessageDeltaPayload, ResultType, RunCompletedPayload,
};
use protocol::run::AgentRunEvent;
use serde_json::Value;

const ASSISTANT: &str = "assistant";

/// A change of the text that clients see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TextChange {
    /// More text of the open message; without one, a message begins.
    Append(String),
    /// The open message is complete.
    Close,
    /// The open message is superseded. Another one begins with the next text.
    Withdraw,
}

/// The message that is being written. Its text is compared with snapshots and complete messages.
#[derive(Debug, Default)]
pub(crate) struct OpenMessage {
    text: Option<String>,
}

impl OpenMessage {
    /// Bytes that this value holds.
    pub(crate) fn bytes(&self) -> usize {
        self.text.as_ref().map_or(0, String::len)
    }

    /// The changes by an event. Messages of tools are no text for clients.
    pub(crate) fn changes(&mut self, event: &AgentRunEvent) -> Vec<TextChange> {
        let mut changes = Vec::new();
        let data = || Value::Object(event.data.clone());
        match ResultType::parse(&event.kind) {
            Some(ResultType::MessageDelta) => {
                let payload = serde_json::from_value::<MessageDeltaPayload>(data());
                if let Ok(MessageDeltaPayload { chunk }) = payload
                    && chunk.role == ASSISTANT
                {
                    // Takes precedence over the increment, which may be missing for older runners.
                    if let Some(full) = chunk.all_content {
                        self.replace(full, &mut changes);
                    } else {
                        let text = chunk.content.as_ref().map(MessageContent::plain_text);
                        self.append(text.unwrap_or_default(), &mut changes);
                    }
                }
            }
            Some(ResultType::MessageCompleted) => {
                let payload = serde_json::from_value::<MessageCompletedPayload>(data());
                if let Ok(MessageCompletedPayload { message, .. }) = payload {
                    self.complete(&message, &mut changes);
                }
            }
            Some(ResultType::RunCompleted) => {
                let payload = serde_json::from_value::<RunCompletedPayload>(data());
                if let Some(message) = payload.ok().and_then(|payload| payload.message) {
                    self.complete(&message, &mut changes);
                }
                self.close(&mut changes);
            }
            Some(ResultType::RunFailed) => self.close(&mut changes),
            _ => {}
        }
        changes
    }

    fn append(&mut self, text: String, changes: &mut Vec<TextChange>) {
        if text.is_empty() {
            return;
        }
        self.text.get_or_insert_default().push_str(&text);
        changes.push(TextChange::Append(text));
    }

    /// Clients cannot take text back, so a snapshot that does not continue the text begins another message.
    fn replace(&mut self, full: String, changes: &mut Vec<TextChange>) {
        let shown = self.text.as_deref().unwrap_or_default();
        if let Some(rest) = full.strip_prefix(shown) {
            return self.append(rest.to_owned(), changes);
        }
        // The next text starts from nothing, in the comparison as well.
        self.text = None;
        changes.push(TextChange::Withdraw);
        self.append(full, changes);
    }

    fn complete(&mut self, message: &Message, changes: &mut Vec<TextChange>) {
        // The result of a tool is no answer to the user.
        if message.role != ASSISTANT {
            return;
        }
        let text = message.plain_text();
        // A message with tool calls only has no text, which takes nothing back.
        if !text.is_empty() {
            self.replace(text, changes);
        }
        self.close(changes);
    }

    fn close(&mut self, changes: &mut Vec<TextChange>) {
        if self.text.take().is_some() {
            changes.push(TextChange::Close);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::TextChange::{Append, Close, Withdraw};
    use super::*;

    fn check(events: &[(&str, Value)], expected: &[TextChange]) {
        let mut open = OpenMessage::default();
        let mut changes = Vec::new();
        for (sequence, (kind, data)) in (1..).zip(events) {
            let event = json!({"run_id": "01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e61", "sequence": sequence,
                "type": kind, "data": data, "created_at": 0, "source": "runner"});
            changes.extend(open.changes(&serde_json::from_value(event).unwrap()));
        }
        assert_eq!(changes, expected);
    }

    fn append(text: &str) -> TextChange {
        Append(text.to_owned())
    }

    fn delta(text: &str) -> (&'static str, Value) {
        let chunk = json!({"role": "assistant", "content": text});
        ("message.delta", json!({"chunk": chunk}))
    }

    fn snapshot(text: &str) -> (&'static str, Value) {
        let chunk = json!({"role": "assistant", "content": "x", "all_content": text});
        ("message.delta", json!({"chunk": chunk}))
    }

    fn completed(text: &str) -> (&'static str, Value) {
        let message = json!({"role": "assistant", "content": text});
        ("message.completed", json!({"message": message}))
    }

    fn end() -> (&'static str, Value) {
        ("run.completed", json!({}))
    }

    #[test]
    fn appends_increments_and_the_rest_of_messages() {
        check(
            &[delta("a"), delta("b"), end()],
            &[append("a"), append("b"), Close],
        );
        check(
            &[delta("a"), completed("ab"), end()],
            &[append("a"), append("b"), Close],
        );
        check(
            &[completed("a"), completed("b"), end()],
            &[append("a"), Close, append("b"), Close],
        );
        check(&[delta("a"), completed(""), end()], &[append("a"), Close]);
        let last = json!({"message": {"role": "assistant", "content": "ab"}});
        check(
            &[delta("a"), ("run.completed", last)],
            &[append("a"), append("b"), Close],
        );
    }

    #[test]
    fn withdraws_text_that_is_not_continued() {
        check(
            &[snapshot("a"), snapshot("ab")],
            &[append("a"), append("b")],
        );
        check(
            &[snapshot("ab"), snapshot("b")],
            &[append("ab"), Withdraw, append("b")],
        );
        check(&[delta("ab"), snapshot("")], &[append("ab"), Withdraw]);
        check(
            &[delta("ab"), completed("c")],
            &[append("ab"), Withdraw, append("c"), Close],
        );
    }

    #[test]
    fn leaves_out_messages_of_tools() {
        let tool = json!({"message": {"role": "tool", "content": "4", "tool_call_id": "c"}});
        let chunk = json!({"chunk": {"role": "tool", "content": "4"}});
        check(
            &[("message.completed", tool), ("message.delta", chunk), end()],
            &[],
        );
    }
}
