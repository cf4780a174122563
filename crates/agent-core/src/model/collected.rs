//! Assembles a model answer from chunks.

use protocol::JsonObject;
use protocol::message::{LlmTokenUsage, Message, MessageChunk, MessageContent, ToolCall};
use protocol::model::{LlmInvokeResult, LlmStreamEvent};
use serde_json::Value;
use uuid::Uuid;

use super::FinishKind;

/// Name of a call without one. Providers reject nameless calls, so the model could not learn of its error.
const NAMELESS: &str = "call_without_a_name";

/// Answer of a model so far.
#[derive(Debug, Default)]
pub struct CollectedReply {
    text: String,
    calls: Vec<ToolCall>,
    /// Index in a chunk to call: target of deltas without an id.
    call_indices: Vec<usize>,
    usage: Option<LlmTokenUsage>,
    response_id: Option<String>,
    /// Provider fields besides the text; some are sent back with tool results.
    fields: JsonObject,
    finish: FinishKind,
}

/// Complete answer of a model.
#[derive(Debug)]
pub struct ModelReply {
    /// Text, calls and provider fields.
    pub message: Message,
    /// `None`: the provider reported none.
    pub usage: Option<LlmTokenUsage>,
    /// Finish reason.
    pub finish: FinishKind,
}

/// New content of a chunk.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NewContent {
    /// Text to append, or the complete text after a replacement.
    pub text: String,
    /// The earlier text was reasoning: `text` replaces it.
    pub replaces: bool,
    /// New arguments of the first call.
    pub arguments: String,
}

impl CollectedReply {
    /// Adds an event; returns its new content.
    pub fn add(&mut self, event: LlmStreamEvent) -> NewContent {
        // A later report replaces an earlier one; adding would count tokens twice.
        if event.usage.is_some() {
            self.usage = event.usage;
        }
        let Some(chunk) = event.chunk else {
            return NewContent::default();
        };
        if self.response_id.is_none() {
            self.response_id.clone_from(&chunk.resp_message_id);
        }
        self.finish = self.finish.or(chunk.provider_specific_fields.as_ref());
        let (text, replaces) = self.new_text(&chunk);
        if replaces {
            self.text.clear();
        }
        self.text.push_str(&text);
        self.fields
            .extend(chunk.provider_specific_fields.unwrap_or_default());
        let mut arguments = String::new();
        let calls = chunk.tool_calls.unwrap_or_default();
        for (position, call) in calls.into_iter().enumerate() {
            let new = call.function.arguments.clone();
            if self.add_call(position, call) == 0 {
                arguments.push_str(&new);
            }
        }
        NewContent {
            text,
            replaces,
            arguments,
        }
    }

    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Bytes of text and arguments.
    pub fn bytes(&self) -> usize {
        let calls = self.calls.iter().map(|call| call.function.arguments.len());
        self.text.len() + calls.sum::<usize>()
    }

    /// True once the answer has a call or text that is not blank.
    pub fn has_begun(&self) -> bool {
        !self.calls.is_empty() || !self.text.trim().is_empty()
    }

    /// Name of the first call.
    pub fn first_name(&self) -> Option<&str> {
        self.calls.first().map(|call| call.function.name.as_str())
    }

    /// Complete answer.
    pub fn finish(self) -> ModelReply {
        let message = Message {
            content: (!self.text.is_empty()).then_some(MessageContent::Text(self.text)),
            tool_calls: (!self.calls.is_empty()).then_some(self.calls),
            resp_message_id: self.response_id,
            provider_specific_fields: (!self.fields.is_empty()).then_some(self.fields),
            ..Message::text("assistant", "")
        };
        ModelReply {
            message,
            usage: self.usage,
            finish: self.finish,
        }
    }

    /// New text of a chunk, and true if it replaces the text so far.
    fn new_text(&self, chunk: &MessageChunk) -> (String, bool) {
        // `all_content` repeats the text so far, so only its rest is new.
        if let Some(full) = &chunk.all_content {
            return match full.strip_prefix(self.text.as_str()) {
                Some(rest) => (rest.to_owned(), false),
                None => (full.clone(), true),
            };
        }
        let content = chunk.content.as_ref();
        let text = content.map(MessageContent::plain_text).unwrap_or_default();
        (text, false)
    }

    /// Adds a delta to its call and returns the index of the call.
    fn add_call(&mut self, position: usize, call: ToolCall) -> usize {
        let existing = if has_id(&call) {
            self.calls
                .iter()
                .position(|existing| existing.id == call.id)
        } else {
            self.call_indices.get(position).copied()
        };
        let index = existing.unwrap_or(self.calls.len());
        // Skipped indices point to this call, too.
        while self.call_indices.len() <= position {
            self.call_indices.push(index);
        }
        self.call_indices[position] = index;
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
        index
    }
}

impl From<LlmInvokeResult> for ModelReply {
    fn from(answer: LlmInvokeResult) -> Self {
        let fields = answer.message.provider_specific_fields.as_ref();
        Self {
            finish: FinishKind::default().or(fields),
            message: answer.message,
            usage: answer.usage,
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
#[must_use]
pub fn with_ids(mut message: Message) -> Message {
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

    /// New content per chunk, and the answer with ids.
    fn collect(chunks: &[Value]) -> (Vec<NewContent>, ModelReply) {
        let mut collected = CollectedReply::default();
        let new = chunks
            .iter()
            .map(|chunk| collected.add(serde_json::from_value(json!({"chunk": chunk})).unwrap()));
        let new = new.collect();
        let reply = collected.finish();
        let message = with_ids(reply.message);
        (new, ModelReply { message, ..reply })
    }

    fn text(content: &str) -> Value {
        json!({"role": "assistant", "content": content})
    }

    fn call(id: &str, name: &str, arguments: &str) -> Value {
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    }

    #[test]
    fn merges_delta_and_full_text_chunks() {
        let texts = |new: &[NewContent]| {
            let texts = new.iter().map(|new| (new.text.clone(), new.replaces));
            texts.collect::<Vec<_>>()
        };
        let added = |text: &str| (text.to_owned(), false);
        let full_text =
            |all: &str| json!({"role": "assistant", "content": "?", "all_content": all});
        let (new, answer) = collect(&[text(" "), text("It"), json!({"role": "assistant"})]);
        assert_eq!(texts(&new), [added(" "), added("It"), added("")]);
        assert_eq!(answer.message.plain_text(), " It");
        let (new, answer) = collect(&[full_text("It"), full_text("It is"), full_text("It is")]);
        assert_eq!(texts(&new), [added("It"), added(" is"), added("")]);
        assert_eq!(answer.message.plain_text(), "It is");
        let (new, answer) = collect(&[text("thoughts"), full_text("It"), text(" is")]);
        let replaced = ("It".to_owned(), true);
        assert_eq!(texts(&new), [added("thoughts"), replaced, added(" is")]);
        assert_eq!(answer.message.plain_text(), "It is");
    }

    #[test]
    fn returns_new_arguments_of_first_call() {
        let chunk = |calls: &[Value]| json!({"role": "assistant", "tool_calls": calls});
        let (new, _) = collect(&[
            chunk(&[call("a", "look", "{"), call("b", "send", "{}")]),
            chunk(&[call("", "", "}")]),
        ]);
        let arguments = new.iter().map(|new| new.arguments.as_str());
        assert_eq!(arguments.collect::<Vec<_>>(), ["{", "}"]);
    }

    #[test]
    fn first_reported_finish_reason_is_not_hidden() {
        for (reasons, finish) in [
            (["length", "stop"], FinishKind::CutOff),
            (["stop", "SAFETY"], FinishKind::Filtered),
            (["stop", "stop"], FinishKind::Complete),
        ] {
            let chunks = reasons.map(|reason| {
                json!({"role": "assistant", "content": "x", "provider_specific_fields": {"finish_reason": reason}})
            });
            assert_eq!(collect(&chunks).1.finish, finish, "{reasons:?}");
        }
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
