//! The chunks of a completion that streams, one after the other.

use std::collections::BTreeMap;

use protocol::JsonObject;
use protocol::message::{FunctionCall, LlmTokenUsage, MessageChunk, MessageContent, ToolCall};
use serde_json::{Value, json};

use super::{ThinkFilter, reasoning, text_of, usage};

/// Reads the chunks of one completion and gives the protocol's. Content is an increment; the id of a tool
/// call stands in each of its deltas, its name in the first.
#[derive(Debug)]
pub struct ChunkReader {
    filter: Option<ThinkFilter>,
    /// Thinking comes beside the text, and has not been closed yet.
    is_thinking: bool,
    ids: BTreeMap<u64, String>,
    response_id: Option<String>,
    finish_reason: Option<String>,
    usage: Option<LlmTokenUsage>,
}

impl ChunkReader {
    pub fn new(remove_think: bool) -> Self {
        Self {
            filter: remove_think.then(ThinkFilter::default),
            is_thinking: false,
            ids: BTreeMap::new(),
            response_id: None,
            finish_reason: None,
            usage: None,
        }
    }

    /// What one chunk adds; `None`: nothing that is said.
    pub fn read(&mut self, chunk: &JsonObject) -> Option<MessageChunk> {
        if let Some(usage) = chunk.get("usage").and_then(usage) {
            self.usage = Some(usage);
        }
        if self.response_id.is_none() {
            self.response_id = chunk.get("id").and_then(Value::as_str).map(str::to_owned);
        }
        let choice = chunk.get("choices")?.get(0)?;
        if let Some(reason) = text_of(choice, "finish_reason") {
            self.finish_reason = Some(reason);
        }
        let delta = choice.get("delta")?;
        let text = self.text(delta);
        let calls = self.calls(delta);
        let is_silent = text.is_empty() && calls.is_empty();
        (!is_silent).then(|| MessageChunk {
            content: (!text.is_empty()).then_some(MessageContent::Text(text)),
            tool_calls: (!calls.is_empty()).then_some(calls),
            ..self.chunk()
        })
    }

    /// Whether the provider has said why it ended.
    pub fn has_finished(&self) -> bool {
        self.finish_reason.is_some()
    }

    /// The last chunk, and the tokens when they are known.
    pub fn finish(mut self) -> (MessageChunk, Option<LlmTokenUsage>) {
        let mut rest = self
            .filter
            .as_mut()
            .map(ThinkFilter::finish)
            .unwrap_or_default();
        if self.is_thinking && self.filter.is_none() {
            rest.push_str("\n</think>\n");
        }
        let reason = self.finish_reason.take();
        let fields = reason.map(|reason| {
            let fields = json!({"finish_reason": reason});
            fields.as_object().cloned().unwrap_or_default()
        });
        let last = MessageChunk {
            content: (!rest.is_empty()).then_some(MessageContent::Text(rest)),
            is_final: true,
            provider_specific_fields: fields,
            ..self.chunk()
        };
        (last, self.usage)
    }

    fn chunk(&self) -> MessageChunk {
        MessageChunk {
            role: "assistant".to_owned(),
            resp_message_id: self.response_id.clone(),
            ..MessageChunk::default()
        }
    }

    fn text(&mut self, delta: &Value) -> String {
        let content = delta
            .get("content")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if let Some(filter) = &mut self.filter {
            return filter.push(content);
        }
        let mut text = String::new();
        if let Some(thought) = reasoning(delta) {
            if !std::mem::replace(&mut self.is_thinking, true) {
                text.push_str("<think>\n");
            }
            text.push_str(thought);
        }
        if !content.is_empty() && std::mem::take(&mut self.is_thinking) {
            text.push_str("\n</think>\n");
        }
        text + content
    }

    fn calls(&mut self, delta: &Value) -> Vec<ToolCall> {
        let calls = delta.get("tool_calls").and_then(Value::as_array);
        let calls = calls.into_iter().flatten().enumerate();
        calls.map(|(n, call)| self.call(n as u64, call)).collect()
    }

    fn call(&mut self, n: u64, call: &Value) -> ToolCall {
        let index = call.get("index").and_then(Value::as_u64).unwrap_or(n);
        if let Some(id) = text_of(call, "id").filter(|id| !id.is_empty()) {
            self.ids.insert(index, id);
        }
        let id = self
            .ids
            .entry(index)
            .or_insert_with(|| format!("call_{index}"));
        let function = call.get("function").unwrap_or(&Value::Null);
        ToolCall {
            id: id.clone(),
            kind: "function".to_owned(),
            function: FunctionCall {
                name: text_of(function, "name").unwrap_or_default(),
                arguments: text_of(function, "arguments").unwrap_or_default(),
            },
            provider_specific_fields: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(reader: &mut ChunkReader, delta: &Value) -> Option<Value> {
        let chunk = json!({"id": "r", "choices": [{"index": 0, "delta": delta}]});
        let read = reader.read(chunk.as_object().unwrap())?;
        Some(serde_json::to_value(read).unwrap())
    }

    #[test]
    fn content_and_tool_calls_are_increments_without_nulls() {
        let mut reader = ChunkReader::new(false);
        assert_eq!(
            read(&mut reader, &json!({"role": "assistant", "content": ""})),
            None
        );
        let said = read(&mut reader, &json!({"content": "Hel"})).unwrap();
        assert_eq!(
            said,
            json!({"role": "assistant", "content": "Hel", "resp_message_id": "r"})
        );
        let first = json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]});
        let then =
            json!({"tool_calls": [{"index": 0, "id": null, "function": {"arguments": "{}"}}]});
        let first = read(&mut reader, &first).unwrap();
        assert_eq!(
            first["tool_calls"],
            json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}])
        );
        let then = read(&mut reader, &then).unwrap();
        assert_eq!(
            then["tool_calls"],
            json!([{"id": "c", "type": "function", "function": {"name": "", "arguments": "{}"}}])
        );
        assert!(!reader.has_finished());
        let last =
            json!({"choices": [{"delta": {}, "finish_reason": "tool_calls"}], "usage": null});
        assert_eq!(reader.read(last.as_object().unwrap()), None);
        let counted = json!({"choices": [], "usage": {"total_tokens": 5}});
        assert_eq!(reader.read(counted.as_object().unwrap()), None);
        assert!(reader.has_finished());
        let (last, usage) = reader.finish();
        assert!(last.is_final && last.content.is_none());
        assert_eq!(
            last.provider_specific_fields.unwrap()["finish_reason"],
            "tool_calls"
        );
        assert_eq!(usage.unwrap().total_tokens, Some(5));
    }

    #[test]
    fn thinking_beside_the_text_is_shown_in_tags_or_not_at_all() {
        for (remove, said) in [(false, "<think>\nab\n</think>\nc"), (true, "c")] {
            let mut reader = ChunkReader::new(remove);
            let deltas = [
                json!({"reasoning_content": "a"}),
                json!({"reasoning_content": "b", "content": null}),
                json!({"content": "c"}),
            ];
            let chunks = deltas.iter().filter_map(|delta| read(&mut reader, delta));
            let text: String = chunks
                .filter_map(|chunk| chunk["content"].as_str().map(str::to_owned))
                .collect();
            assert_eq!(text, said);
            assert_eq!(reader.finish().0.content, None);
        }
    }
}
