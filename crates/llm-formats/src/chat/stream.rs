//! Reads the chunks of a streaming completion in order.

use protocol::JsonObject;
use protocol::message::{LlmTokenUsage, Message, MessageChunk, MessageContent, ToolCall};
use protocol::model::LlmInvokeResult;
use serde_json::Value;

use super::calls::{CallPiece, CallTracker};
use super::carried::{self, Reasoning};
use super::{ThinkBlocks, ThinkFilter, finish_reason, reasoning, text_or_refusal};
use domain::usage::{add_usage, usage_of};

/// Converts one completion, or its chunks, to protocol messages. Content is an increment. Each delta of a tool call
/// has its unique id; the first has its name.
#[derive(Debug)]
pub struct ChunkReader {
    filter: Option<ThinkFilter>,
    /// True while separate reasoning is open and not closed yet.
    is_thinking: bool,
    reasoning_members: Reasoning,
    /// The granted model, recorded in the fields that must return to it.
    model: String,
    calls: CallTracker,
    response_id: Option<String>,
    finish_reason: Option<String>,
    usage: Option<LlmTokenUsage>,
}

impl ChunkReader {
    pub fn new(think_blocks: ThinkBlocks) -> Self {
        let is_filtered = think_blocks == ThinkBlocks::Removed;
        Self {
            filter: is_filtered.then(ThinkFilter::default),
            is_thinking: false,
            reasoning_members: Reasoning::default(),
            model: String::new(),
            calls: CallTracker::default(),
            response_id: None,
            finish_reason: None,
            usage: None,
        }
    }

    /// Sets the granted model of the answer.
    #[must_use]
    pub fn of_model(mut self, model: &str) -> Self {
        model.clone_into(&mut self.model);
        self
    }

    /// Returns the text and calls of one chunk. `None`: it has neither. With `all_content`, all earlier text was
    /// reasoning.
    pub fn read(&mut self, chunk: &JsonObject) -> Option<MessageChunk> {
        // Usage comes in a chunk without choices, so it is read first.
        if let Some(usage) = usage_of(chunk) {
            add_usage(&mut self.usage, usage);
        }
        if self.response_id.is_none() {
            self.response_id = chunk.get("id").and_then(Value::as_str).map(str::to_owned);
        }
        let choice = chunk.get("choices")?.get(0)?;
        if let Some(reason) = finish_reason(choice) {
            self.finish_reason = Some(reason.to_owned());
        }
        let delta = choice.get("delta").or_else(|| choice.get("message"))?;
        self.reasoning_members.add(delta);
        // Separate reasoning is buffered for the last chunk, since it returns only with calls.
        let (text, starts_over) = self.text(delta);
        let mut calls = self.calls(delta);
        carried::mark_model(None, Some(&mut calls), &self.model);
        // Chunks with metadata only would wake up clients for nothing.
        let is_silent = text.is_empty() && calls.is_empty() && !starts_over;
        (!is_silent).then(|| MessageChunk {
            // Runners replace their text by this one, since earlier text was reasoning.
            all_content: starts_over.then(|| text.clone()),
            content: (!text.is_empty()).then_some(MessageContent::Text(text)),
            tool_calls: (!calls.is_empty()).then_some(calls),
            ..self.chunk()
        })
    }

    /// Converts a complete completion. `None`: it has no choice with a message.
    pub fn complete(mut self, completion: &JsonObject) -> Option<LlmInvokeResult> {
        completion.get("choices")?.get(0)?.get("message")?;
        let read = self.read(completion).unwrap_or_default();
        let (last, usage) = self.finish();
        let texts = [read.content, last.content].into_iter().flatten();
        let text: String = texts.map(|content| content.plain_text()).collect();
        let message = Message {
            tool_calls: read.tool_calls,
            resp_message_id: last.resp_message_id,
            provider_specific_fields: last.provider_specific_fields,
            ..Message::text("assistant", text)
        };
        Some(LlmInvokeResult { message, usage })
    }

    /// Returns true after the provider sent a finish reason.
    pub fn has_finished(&self) -> bool {
        self.finish_reason.is_some()
    }

    /// Returns the last chunk, and the token usage if known.
    pub fn finish(mut self) -> (MessageChunk, Option<LlmTokenUsage>) {
        let mut rest = self
            .filter
            .as_mut()
            .map(ThinkFilter::finish)
            .unwrap_or_default();
        // An answer that ends within its reasoning still needs the closing tag.
        if self.is_thinking && self.filter.is_none() {
            rest.push_str("\n</think>\n");
        }
        let reason = self.finish_reason.take();
        let mut fields = JsonObject::new();
        if let Some(reason) = reason {
            fields.insert("finish_reason".to_owned(), reason.into());
        }
        let reasoning_members = std::mem::take(&mut self.reasoning_members);
        // Only now it is certain whether the answer has calls.
        fields.extend(reasoning_members.members(self.calls.has_calls()));
        carried::mark_model(Some(&mut fields), None, &self.model);
        let last = MessageChunk {
            content: (!rest.is_empty()).then_some(MessageContent::Text(rest)),
            is_final: true,
            provider_specific_fields: (!fields.is_empty()).then_some(fields),
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

    /// Returns the new text, and whether it is the complete text so far.
    fn text(&mut self, delta: &Value) -> (String, bool) {
        let content = text_or_refusal(delta);
        if let Some(filter) = &mut self.filter {
            // The filter also removes reasoning that is part of the content.
            let visible = filter.push(&content);
            return (visible.text, visible.starts_over);
        }
        let mut text = String::new();
        if let Some(thought) = reasoning(delta) {
            // One block for all deltas of the reasoning.
            if !std::mem::replace(&mut self.is_thinking, true) {
                text.push_str("<think>\n");
            }
            text.push_str(thought);
        }
        // Content ends the reasoning: providers do not announce it.
        if !content.is_empty() && std::mem::take(&mut self.is_thinking) {
            text.push_str("\n</think>\n");
        }
        (text + &content, false)
    }

    fn calls(&mut self, delta: &Value) -> Vec<ToolCall> {
        let calls = delta.get("tool_calls").and_then(Value::as_array);
        let calls = calls.into_iter().flatten().enumerate();
        let pieces = calls.flat_map(|(n, call)| self.calls.read(n as u64, call));
        pieces.map(CallPiece::into_call).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(reader: &mut ChunkReader, delta: &Value) -> Option<Value> {
        let chunk = json!({"id": "r", "choices": [{"index": 0, "delta": delta}]});
        let read = reader.read(chunk.as_object().unwrap())?;
        Some(serde_json::to_value(read).unwrap())
    }

    #[test]
    fn content_and_tool_calls_are_increments_without_nulls() {
        let mut reader = ChunkReader::new(ThinkBlocks::Retained);
        assert_eq!(
            read(&mut reader, &json!({"role": "assistant", "content": ""})),
            None
        );
        let delta = read(&mut reader, &json!({"content": "Hel"})).unwrap();
        assert_eq!(
            delta,
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

    /// Id, name and arguments of each call, assembled by id.
    fn calls(deltas: &[Value]) -> Vec<(String, String, String)> {
        let mut reader = ChunkReader::new(ThinkBlocks::Retained);
        let mut calls: Vec<(String, String, String)> = Vec::new();
        for delta in deltas {
            let chunk = json!({"choices": [{"delta": {"tool_calls": delta}}]});
            let delta = reader.read(chunk.as_object().unwrap()).unwrap();
            for call in delta.tool_calls.unwrap() {
                let index = calls.iter().position(|(id, ..)| *id == call.id);
                let index = index.unwrap_or_else(|| {
                    calls.push((call.id.clone(), String::new(), String::new()));
                    calls.len() - 1
                });
                calls[index].1.push_str(&call.function.name);
                calls[index].2.push_str(&call.function.arguments);
            }
        }
        calls
    }

    fn delta(index: Option<u64>, id: &str, name: &str, arguments: impl Into<Value>) -> Value {
        let mut delta =
            json!({"id": id, "function": {"name": name, "arguments": arguments.into()}});
        if let Some(index) = index {
            delta["index"] = json!(index);
        }
        delta
    }

    fn check(deltas: &[Value], expected: &[(&str, &str)]) {
        let found = calls(deltas);
        let found: Vec<_> = found
            .iter()
            .map(|(_, name, arguments)| (name.as_str(), arguments.as_str()))
            .collect();
        assert_eq!(found, expected, "{deltas:?}");
    }

    #[test]
    fn separates_calls_despite_inconsistent_ids() {
        let d = delta;
        let mut object = d(Some(0), "c", "write", "");
        object["function"]["arguments"] = json!({"q": 1});
        let one = r#"{"q":1}"#;
        for (deltas, expected) in [
            // An object instead of a text.
            (vec![json!([object])], vec![("write", one)]),
            // One id for two calls.
            (
                vec![
                    json!([d(Some(0), "c", "write", "")]),
                    json!([d(Some(1), "c", "look", one)]),
                ],
                vec![("write", ""), ("look", one)],
            ),
            // One index for two calls without ids.
            (
                vec![
                    json!([d(Some(0), "", "write", one)]),
                    json!([d(Some(0), "", "look", one)]),
                ],
                vec![("write", one), ("look", one)],
            ),
            (
                vec![
                    json!([d(Some(0), "", "look", one)]),
                    json!([d(Some(0), "", "look", one)]),
                ],
                vec![("look", one), ("look", one)],
            ),
            // One index and one id for several complete objects, in separate deltas or one.
            (
                vec![
                    json!([d(Some(0), "call_0", "look", one)]),
                    json!([d(Some(0), "call_0", "look", " {\"q\":")]),
                    json!([d(Some(0), "call_0", "", "2}\n")]),
                    json!([d(Some(0), "call_0", "look", "{\"q\":\"}{\"}")]),
                ],
                vec![
                    ("look", "{\"q\":1} "),
                    ("look", "{\"q\":2}\n"),
                    ("look", "{\"q\":\"}{\"}"),
                ],
            ),
            (
                vec![json!([d(
                    Some(0),
                    "c",
                    "look",
                    "{\"q\":1} {} {\"q\":[{}]}"
                )])],
                vec![
                    ("look", "{\"q\":1} "),
                    ("look", "{} "),
                    ("look", "{\"q\":[{}]}"),
                ],
            ),
            // One index for two calls with ids.
            (
                vec![
                    json!([d(Some(0), "a", "look", "{")]),
                    json!([d(Some(0), "b", "look", "{")]),
                    json!([d(Some(0), "", "", "}")]),
                    json!([d(Some(0), "a", "", "}")]),
                ],
                vec![("look", "{}"), ("look", "{}")],
            ),
            // No index: matched by id or by position.
            (
                vec![
                    json!([d(None, "a", "look", "{"), d(None, "b", "write", "{")]),
                    json!([d(None, "b", "", "}")]),
                    json!([d(None, "a", "", "}")]),
                ],
                vec![("look", "{}"), ("write", "{}")],
            ),
            (
                vec![
                    json!([d(None, "", "look", "{"), d(None, "", "write", "{")]),
                    json!([d(None, "", "", "}"), d(None, "", "", "}")]),
                ],
                vec![("look", "{}"), ("write", "{}")],
            ),
        ] {
            check(&deltas, &expected);
        }
    }

    #[test]
    fn keeps_one_call_despite_changing_ids() {
        let d = delta;
        let one = r#"{"q":1}"#;
        for (deltas, expected) in [
            // Another id in each chunk of one call.
            (
                vec![
                    json!([d(Some(0), "a", "look", "{")]),
                    json!([d(Some(0), "b", "", "\"q\":")]),
                    json!([d(Some(0), "null", "", "1}")]),
                ],
                vec![("look", one)],
            ),
            // Text that looks like two objects in the arguments of one call.
            (
                vec![
                    json!([d(Some(0), "a", "look", "{\"q\":\"x{a}")]),
                    json!([d(Some(0), "a", "look", "{b}\"}")]),
                ],
                vec![("look", r#"{"q":"x{a}{b}"}"#)],
            ),
            // The name repeated in each chunk.
            (
                vec![
                    json!([d(Some(0), "a", "look", "{")]),
                    json!([d(Some(0), "a", "look", "\"q\":1}")]),
                    json!([d(Some(0), "a", "look", "")]),
                ],
                vec![("look", one)],
            ),
        ] {
            check(&deltas, &expected);
        }
    }

    #[test]
    fn reads_text_from_parts_and_refusals() {
        let mut reader = ChunkReader::new(ThinkBlocks::Retained);
        let parts =
            json!({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]});
        assert_eq!(read(&mut reader, &parts).unwrap()["content"], "ab");
        let refusal = json!({"content": null, "refusal": "I will not."});
        assert_eq!(
            read(&mut reader, &refusal).unwrap()["content"],
            "I will not."
        );
    }

    #[test]
    fn separate_reasoning_is_tagged_or_removed() {
        for (think_blocks, expected) in [
            (ThinkBlocks::Retained, "<think>\nab\n</think>\nc"),
            (ThinkBlocks::Removed, "c"),
        ] {
            let mut reader = ChunkReader::new(think_blocks);
            let deltas = [
                json!({"reasoning_content": "a"}),
                json!({"reasoning_content": "b", "content": null}),
                json!({"content": "c"}),
            ];
            let chunks = deltas.iter().filter_map(|delta| read(&mut reader, delta));
            let text: String = chunks
                .filter_map(|chunk| chunk["content"].as_str().map(str::to_owned))
                .collect();
            assert_eq!(text, expected);
            assert_eq!(reader.finish().0.content, None);
        }
    }

    #[test]
    fn lone_closing_mark_turns_text_into_reasoning() {
        let mut reader = ChunkReader::new(ThinkBlocks::Removed);
        let delta = read(&mut reader, &json!({"content": "thoughts"})).unwrap();
        assert_eq!(delta["content"], "thoughts");
        let over = read(&mut reader, &json!({"content": "</think>\nanswer"})).unwrap();
        assert_eq!(
            (&over["content"], &over["all_content"]),
            (&json!("answer"), &json!("answer"))
        );
        let more = read(&mut reader, &json!({"content": "."})).unwrap();
        assert_eq!(
            (&more["content"], &more["all_content"]),
            (&json!("."), &Value::Null)
        );
    }

    #[test]
    fn reads_reasoning_despite_empty_reasoning_content() {
        let mut reader = ChunkReader::new(ThinkBlocks::Retained);
        let delta = json!({"reasoning_content": "", "reasoning": "a"});
        assert_eq!(read(&mut reader, &delta).unwrap()["content"], "<think>\na");
    }
}
