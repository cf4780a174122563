//! Assembles a model answer from chunks.

use protocol::JsonObject;
use protocol::message::{LlmTokenUsage, Message, MessageChunk, MessageContent, ToolCall};
use protocol::model::LlmStreamEvent;
use serde_json::Value;
use uuid::Uuid;

use super::{FinishKind, ModelAnswer};

/// Name of a call without one. Providers reject nameless calls, so the model could not learn of its error.
const NAMELESS: &str = "call_without_a_name";

/// Answer so far.
#[derive(Debug, Default)]
pub(super) struct Collected {
    text: String,
    calls: Vec<ToolCall>,
    /// Index in a chunk to call: target of deltas without an id.
    index_to_call: Vec<usize>,
    usage: Option<LlmTokenUsage>,
    response_id: Option<String>,
    /// Provider fields besides the text; some are sent back with tool results.
    fields: JsonObject,
    ending: FinishKind,
}

/// New text of a chunk.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ChunkText {
    pub(super) text: String,
    /// The earlier text was reasoning: `text` is the complete answer.
    pub(super) starts_over: bool,
}

impl Collected {
    /// Adds an event; returns its new text.
    pub(super) fn add(&mut self, event: LlmStreamEvent) -> ChunkText {
        // A later report replaces an earlier one; adding would count tokens twice.
        if event.usage.is_some() {
            self.usage = event.usage;
        }
        let Some(chunk) = event.chunk else {
            return ChunkText::default();
        };
        if self.response_id.is_none() {
            self.response_id.clone_from(&chunk.resp_message_id);
        }
        self.ending = self.ending.or(chunk.provider_specific_fields.as_ref());
        // Read before the text is added: the first non-blank chunk also carries the blank start.
        let had_begun = self.has_begun();
        let starts_over = self.starts_over(&chunk);
        if starts_over {
            self.text.clear();
        }
        let new = self.new_text(&chunk);
        self.text.push_str(&new);
        self.fields
            .extend(chunk.provider_specific_fields.unwrap_or_default());
        let calls = chunk.tool_calls.unwrap_or_default();
        for (chunk_index, call) in calls.into_iter().enumerate() {
            self.add_call(chunk_index, call);
        }
        let text = if had_begun { new } else { self.text.clone() };
        ChunkText { text, starts_over }
    }

    /// True when a full-text chunk retracts earlier text.
    fn starts_over(&self, chunk: &MessageChunk) -> bool {
        let full_text = chunk.all_content.as_deref();
        full_text.is_some_and(|full_text| !full_text.starts_with(self.text.as_str()))
    }

    /// True when the answer has non-blank text.
    pub(super) fn has_begun(&self) -> bool {
        !self.calls.is_empty() || !self.text.trim().is_empty()
    }

    /// Complete answer.
    pub(super) fn finish(self) -> ModelAnswer {
        let message = Message {
            content: (!self.text.is_empty()).then_some(MessageContent::Text(self.text)),
            tool_calls: (!self.calls.is_empty()).then_some(self.calls),
            resp_message_id: self.response_id,
            provider_specific_fields: (!self.fields.is_empty()).then_some(self.fields),
            ..Message::text("assistant", "")
        };
        ModelAnswer {
            message: with_ids(message),
            usage: self.usage,
            ending: self.ending,
        }
    }

    /// Increment of a chunk; a full text takes precedence when it extends ours.
    fn new_text(&self, chunk: &MessageChunk) -> String {
        let full_text = chunk.all_content.as_deref();
        match full_text.and_then(|full_text| full_text.strip_prefix(self.text.as_str())) {
            Some(rest) => rest.to_owned(),
            None => chunk
                .content
                .as_ref()
                .map(MessageContent::plain_text)
                .unwrap_or_default(),
        }
    }

    fn add_call(&mut self, chunk_index: usize, call: ToolCall) {
        let existing = if has_id(&call) {
            self.calls
                .iter()
                .position(|existing| existing.id == call.id)
        } else {
            self.index_to_call.get(chunk_index).copied()
        };
        let index = existing.unwrap_or(self.calls.len());
        // Skipped indices point to this call, too.
        while self.index_to_call.len() <= chunk_index {
            self.index_to_call.push(index);
        }
        self.index_to_call[chunk_index] = index;
        match self.calls.get_mut(index) {
            None => self.calls.push(call),
            Some(existing) => {
                // Some providers repeat the name in each chunk.
                if existing.function.name.is_empty() {
                    existing.function.name = call.function.name;
                }
                existing
                    .function
                    .arguments
                    .push_str(&call.function.arguments);
                if let Some(fields) = call.provider_specific_fields {
                    merge(
                        existing.provider_specific_fields.get_or_insert_default(),
                        fields,
                    );
                }
            }
        }
    }
}

/// Merges fields of a later chunk; objects, such as fields of the call's function, are joined.
fn merge(existing: &mut JsonObject, more: JsonObject) {
    for (name, value) in more {
        match (existing.get_mut(&name), value) {
            (Some(Value::Object(existing)), Value::Object(more)) => existing.extend(more),
            (_, value) => {
                existing.insert(name, value);
            }
        }
    }
}

fn has_id(call: &ToolCall) -> bool {
    !matches!(call.id.trim(), "" | "none" | "None" | "null")
}

/// Message with a name and a unique id for each tool call.
pub(super) fn with_ids(mut message: Message) -> Message {
    let mut calls = message.tool_calls.take().unwrap_or_default();
    for index in 0..calls.len() {
        let (before, rest) = calls.split_at_mut(index);
        let call = &mut rest[0];
        // Two calls with one id would share one result; the model could not distinguish them.
        if !has_id(call) || before.iter().any(|other| other.id == call.id) {
            call.id = format!("call_{}", Uuid::new_v4().simple());
        }
        if call.function.name.trim().is_empty() {
            NAMELESS.clone_into(&mut call.function.name);
        }
        if call.kind.is_empty() {
            "function".clone_into(&mut call.kind);
        }
    }
    message.tool_calls = (!calls.is_empty()).then_some(calls);
    message
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// New text per chunk, and the final message.
    fn collect(chunks: &[Value]) -> (Vec<String>, ModelAnswer) {
        let mut collected = Collected::default();
        let mut new_texts = Vec::new();
        for chunk in chunks {
            let event = serde_json::from_value(json!({"chunk": chunk})).unwrap();
            let new = collected.add(event);
            new_texts.push(if collected.has_begun() {
                new.text
            } else {
                "-".to_owned()
            });
        }
        (new_texts, collected.finish())
    }

    fn text(content: &str) -> Value {
        json!({"role": "assistant", "content": content})
    }

    fn call(id: &str, name: &str, arguments: &str) -> Value {
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    }

    #[test]
    fn merges_delta_and_full_text_chunks() {
        let (new_texts, answer) = collect(&[
            text(" "),
            text("\n"),
            text("It"),
            text(" is"),
            json!({"role": "assistant"}),
        ]);
        assert_eq!(new_texts, ["-", "-", " \nIt", " is", ""]);
        assert_eq!(answer.message.plain_text(), " \nIt is");
        let full_text =
            |all: &str| json!({"role": "assistant", "content": "?", "all_content": all});
        let (new_texts, answer) =
            collect(&[full_text("It"), full_text("It is"), full_text("It is")]);
        assert_eq!(new_texts, ["It", " is", ""]);
        assert_eq!(answer.message.plain_text(), "It is");
        let (new_texts, answer) = collect(&[text("thoughts"), full_text("It"), text(" is")]);
        assert_eq!(new_texts, ["thoughts", "It", " is"]);
        assert_eq!(answer.message.plain_text(), "It is");
    }

    #[test]
    fn matches_call_deltas_by_id_or_index() {
        let chunk = |calls: &[Value]| json!({"role": "assistant", "tool_calls": calls});
        let calls = |chunks: &[Value]| {
            let (_, answer) = collect(chunks);
            let calls = answer.message.tool_calls.unwrap_or_default();
            let calls = calls
                .into_iter()
                .map(|call| (call.id, call.function.name, call.function.arguments));
            calls.collect::<Vec<_>>()
        };
        let one = |id: &str, name: &str, arguments: &str| {
            (id.to_owned(), name.to_owned(), arguments.to_owned())
        };

        let same = calls(&[
            chunk(&[call("c1", "look", "{\"a\"")]),
            chunk(&[call("", "", ":1")]),
            chunk(&[call("c1", "", "}")]),
        ]);
        assert_eq!(same, [one("c1", "look", "{\"a\":1}")]);

        let distinct = calls(&[
            chunk(&[call("c1", "a", "{}")]),
            chunk(&[call("c2", "b", "{}")]),
            chunk(&[call("none", "", " ")]),
        ]);
        assert_eq!(distinct, [one("c1", "a", "{}"), one("c2", "b", "{} ")]);

        let two = calls(&[
            chunk(&[call("", "a", "{"), call("", "b", "{")]),
            chunk(&[call("", "", "}"), call("", "", "}")]),
        ]);
        assert_eq!(two.len(), 2);
        assert!(
            two.iter()
                .all(|(id, _, arguments)| id.starts_with("call_") && arguments == "{}")
        );
        assert_ne!(two[0].0, two[1].0);
    }
}
