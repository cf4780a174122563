//! Translates messages, complete or streamed, into chat completions and chunks.

use std::collections::BTreeMap;

use domain::json_repair::{SurrogateHalves, SurrogateJoiner};
use domain::usage::{TokenParts, merge_usage};
use protocol::JsonObject;
use serde_json::{Value, json};

use crate::{FormatError, object};

/// Member of a completion's message with the signed reasoning blocks, which return with the results of its calls.
pub(super) const DETAILS: &str = "reasoning_details";
/// Maximum bytes of one streamed reasoning block that returns to the model.
const BLOCK_BYTES: usize = 128 * 1024;

/// Returns true for a reasoning block that the API takes back.
pub(super) fn is_signed(block: &Value) -> bool {
    let has = |name: &str| block[name].as_str().is_some_and(|text| !text.is_empty());
    match block["type"].as_str() {
        Some("thinking") => has("signature") && block["thinking"].is_string(),
        Some("redacted_thinking") => has("data"),
        _ => false,
    }
}

/// Translates a complete message.
pub fn completion(message: &JsonObject) -> Result<JsonObject, FormatError> {
    let blocks = message.get("content").and_then(Value::as_array);
    let blocks =
        blocks.ok_or_else(|| FormatError::Malformed("a message without content".to_owned()))?;
    let (mut text, mut thinking, mut calls) = (String::new(), String::new(), Vec::new());
    let signed: Vec<_> = blocks.iter().filter(|block| is_signed(block)).collect();
    for block in blocks {
        match block["type"].as_str() {
            Some("text") => text.push_str(block["text"].as_str().unwrap_or_default()),
            Some("thinking") => thinking.push_str(block["thinking"].as_str().unwrap_or_default()),
            Some("tool_use") => calls.push(json!({"id": block["id"], "type": "function",
                "function": {"name": block["name"], "arguments": block["input"].to_string()}})),
            _ => {}
        }
    }
    let mut reply = json!({"role": "assistant", "content": text});
    if !thinking.is_empty() {
        reply["reasoning_content"] = json!(thinking);
    }
    if !signed.is_empty() {
        reply[DETAILS] = json!(signed);
    }
    if !calls.is_empty() {
        reply["tool_calls"] = json!(calls);
    }
    let reason = message.get("stop_reason").map_or("stop", finish_reason);
    let answer = json!({"id": message.get("id"), "object": "chat.completion", "model": message.get("model"),
        "choices": [{"index": 0, "message": reply, "finish_reason": reason}],
        "usage": usage(message.get("usage").unwrap_or(&Value::Null))});
    Ok(object(answer))
}

fn finish_reason(reason: &Value) -> &'static str {
    match reason.as_str() {
        Some("max_tokens" | "model_context_window_exceeded") => "length",
        Some("tool_use") => "tool_calls",
        Some("refusal") => "content_filter",
        _ => "stop",
    }
}

/// Cached tokens count as prompt tokens.
fn usage(reported: &Value) -> Value {
    let read = domain::usage::usage(reported).unwrap_or_default();
    let parts = TokenParts::of(Some(&read));
    let (prompt, completion) = (parts.prompt(), parts.completion());
    let mut usage = json!({"prompt_tokens": prompt, "completion_tokens": completion,
        "total_tokens": prompt.saturating_add(completion),
        "prompt_tokens_details": {"cached_tokens": parts.cache_read, "cache_write_tokens": parts.cache_write()}});
    if parts.cache_write_1h > 0 {
        usage["cache_creation"] = json!({"ephemeral_5m_input_tokens": parts.cache_write_5m,
            "ephemeral_1h_input_tokens": parts.cache_write_1h});
    }
    if parts.reasoning > 0 {
        usage["completion_tokens_details"] = json!({"reasoning_tokens": parts.reasoning});
    }
    usage
}

/// Translates the events of one streamed message.
#[derive(Default)]
pub struct EventReader {
    id: Value,
    model: Value,
    usage: JsonObject,
    /// Index among the tool calls, by block index.
    calls: BTreeMap<u64, usize>,
    thinking: ThinkingBlock,
}

/// The reasoning block that is arriving.
#[derive(Default)]
struct ThinkingBlock {
    text: String,
    signature: String,
    halves: SurrogateJoiner,
}

impl ThinkingBlock {
    fn add(&mut self, delta: &Value, halves: SurrogateHalves) {
        let mut text = delta["thinking"].as_str().unwrap_or_default().to_owned();
        self.halves.push(&mut text, halves);
        // Stop collecting above the limit; `finish` then drops the block.
        if self.text.len() <= BLOCK_BYTES {
            self.text.push_str(&text);
        }
        if let Some(signature) = delta["signature"].as_str()
            && self.signature.len() <= BLOCK_BYTES
        {
            self.signature.push_str(signature);
        }
    }

    /// The complete block. `None` if it is unsigned or too large.
    fn finish(self) -> Option<Value> {
        let is_bounded = self.text.len() + self.signature.len() <= BLOCK_BYTES;
        let block = json!({"type": "thinking", "thinking": self.text, "signature": self.signature});
        (is_bounded && is_signed(&block)).then_some(block)
    }
}

impl EventReader {
    /// The chunk of an event; `None` if the event adds nothing to a completion. `halves`: of its `JsonPart`.
    pub fn read(&mut self, event: &Value, halves: SurrogateHalves) -> Option<JsonObject> {
        match event["type"].as_str()? {
            "message_start" => {
                let message = &event["message"];
                self.id = message["id"].clone();
                self.model = message["model"].clone();
                self.count(&message["usage"]);
                Some(self.chunk(&json!({"role": "assistant", "content": ""}), None))
            }
            "content_block_start" if event["content_block"]["type"] == "tool_use" => {
                let index = self.calls.len();
                self.calls.insert(event["index"].as_u64()?, index);
                let block = &event["content_block"];
                Some(self.call(
                    index,
                    &json!({"id": block["id"], "type": "function",
                    "function": {"name": block["name"], "arguments": ""}}),
                ))
            }
            "content_block_start" => {
                let block = &event["content_block"];
                self.thinking = ThinkingBlock::default();
                self.thinking.add(block, halves);
                let is_redacted = block["type"] == "redacted_thinking" && is_signed(block);
                is_redacted.then(|| self.details(block))
            }
            "content_block_delta" => {
                self.thinking.add(&event["delta"], halves);
                self.delta(event)
            }
            "content_block_stop" => {
                let block = std::mem::take(&mut self.thinking).finish()?;
                Some(self.details(&block))
            }
            "message_delta" => {
                self.count(&event["usage"]);
                let stop_reason = json!({"finish_reason": event["delta"]["stop_reason"]});
                let says_why = crate::chat::finish_reason(&stop_reason).is_some();
                let reason = says_why.then(|| finish_reason(&stop_reason["finish_reason"]));
                let mut last = self.chunk(&json!({}), reason);
                last.insert(
                    "usage".to_owned(),
                    usage(&Value::Object(self.usage.clone())),
                );
                Some(last)
            }
            _ => None,
        }
    }

    fn delta(&self, event: &Value) -> Option<JsonObject> {
        let delta = &event["delta"];
        match delta["type"].as_str()? {
            "text_delta" => Some(self.chunk(&json!({"content": delta["text"]}), None)),
            "thinking_delta" => {
                Some(self.chunk(&json!({"reasoning_content": delta["thinking"]}), None))
            }
            "input_json_delta" => {
                let index = *self.calls.get(&event["index"].as_u64()?)?;
                let function = json!({"arguments": delta["partial_json"]});
                Some(self.call(index, &json!({"function": function})))
            }
            _ => None,
        }
    }

    fn details(&self, block: &Value) -> JsonObject {
        self.chunk(&json!({DETAILS: [block]}), None)
    }

    fn call(&self, index: usize, call: &Value) -> JsonObject {
        let mut call = call.clone();
        call["index"] = json!(index);
        self.chunk(&json!({"tool_calls": [call]}), None)
    }

    fn chunk(&self, delta: &Value, finish_reason: Option<&str>) -> JsonObject {
        let chunk = json!({"id": self.id, "object": "chat.completion.chunk", "model": self.model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]});
        object(chunk)
    }

    /// The first event counts the prompt, the last the answer. Smaller later counts are ignored.
    fn count(&mut self, usage: &Value) {
        merge_usage(&mut self.usage, usage);
    }
}

#[cfg(test)]
mod tests {
    use crate::chat::{ChunkReader, ThinkBlocks};

    use super::*;

    #[test]
    fn translates_complete_messages() {
        let message = json!({"id": "m1", "model": "claude", "stop_reason": "tool_use",
            "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "ok"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}],
            "usage": {"input_tokens": 3, "cache_read_input_tokens": 2, "output_tokens": 4}});
        let completion = completion(message.as_object().unwrap()).unwrap();
        let reader = ChunkReader::new(ThinkBlocks::Removed);
        let answer = reader.complete(&completion).unwrap();
        assert_eq!(answer.message.plain_text(), "ok");
        assert_eq!(
            answer.message.tool_calls.unwrap()[0].function.arguments,
            "{\"a\":1}"
        );
        let usage = answer.usage.unwrap();
        assert_eq!(
            (usage.prompt_tokens, usage.completion_tokens),
            (Some(5), Some(4))
        );
    }

    #[test]
    fn signed_reasoning_returns_before_its_calls() {
        let signed = json!({"type": "thinking", "thinking": "hm", "signature": "EqMD"});
        let redacted = json!({"type": "redacted_thinking", "data": "x"});
        let call = json!({"type": "tool_use", "id": "t1", "name": "f", "input": {}});
        let unsigned = json!({"type": "thinking", "thinking": "a"});
        let message = json!({"content": [signed, redacted, unsigned, call]});
        let completed = completion(message.as_object().unwrap()).unwrap();
        let reply = &completed["choices"][0]["message"];
        assert_eq!(reply[DETAILS], json!([signed, redacted]));

        let delta =
            |delta: Value| json!({"type": "content_block_delta", "index": 0, "delta": delta});
        let start = |block: &Value| json!({"type": "content_block_start", "index": 0, "content_block": block});
        let stop = json!({"type": "content_block_stop", "index": 0});
        let mut reader = EventReader::default();
        let events = [
            start(&json!({"type": "thinking", "thinking": ""})),
            delta(json!({"type": "thinking_delta", "thinking": "h"})),
            delta(json!({"type": "thinking_delta", "thinking": "m"})),
            delta(json!({"type": "signature_delta", "signature": "EqMD"})),
            stop.clone(),
            start(&redacted),
            stop.clone(),
            start(&json!({"type": "text", "text": ""})),
            stop,
        ];
        let chunks = events
            .iter()
            .filter_map(|event| reader.read(event, SurrogateHalves::Absent));
        let details = chunks.filter_map(|chunk| chunk["choices"][0]["delta"].get(DETAILS).cloned());
        let details: Vec<_> = details.collect();
        assert_eq!(details, [json!([signed]), json!([redacted])]);
    }

    #[test]
    fn translates_events_to_chunks() {
        let events = [
            json!({"type": "message_start", "message": {"id": "m1", "model": "c", "usage": {"input_tokens": 9, "output_tokens": 1}}}),
            json!({"type": "ping"}),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}),
            json!({"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}}}),
            json!({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{}"}}),
            json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"input_tokens": 0, "output_tokens": 7.0}}),
            json!({"type": "message_stop"}),
        ];
        let (mut events_in, mut reader) = (
            EventReader::default(),
            ChunkReader::new(ThinkBlocks::Retained),
        );
        let chunks = events
            .iter()
            .filter_map(|event| events_in.read(event, SurrogateHalves::Absent));
        let translated: Vec<_> = chunks.filter_map(|chunk| reader.read(&chunk)).collect();
        assert_eq!(translated[0].content.as_ref().unwrap().plain_text(), "hi");
        let call = &translated[1].tool_calls.as_ref().unwrap()[0];
        assert_eq!((call.id.as_str(), call.function.name.as_str()), ("t", "f"));
        assert_eq!(
            translated[2].tool_calls.as_ref().unwrap()[0]
                .function
                .arguments,
            "{}"
        );
        let (last, usage) = reader.finish();
        assert_eq!(
            last.provider_specific_fields.unwrap()["finish_reason"],
            "tool_calls"
        );
        assert_eq!(usage.unwrap().total_tokens, Some(16));
    }
}
