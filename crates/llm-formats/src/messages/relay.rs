//! Answers of a provider with this API, with the granted model name.

use protocol::JsonObject;
use protocol::message::LlmTokenUsage;
use serde_json::{Value, json};

use super::list;
use domain::usage;

/// Relays one answer, complete or as events. Members between client and provider stay unchanged.
#[derive(Debug)]
pub struct MessageRelay {
    model: String,
    usage: JsonObject,
    has_ended: bool,
    has_stopped: bool,
}

impl MessageRelay {
    /// Creates a relay for an answer of this granted model.
    pub fn new(model: &str) -> Self {
        Self {
            model: model.to_owned(),
            usage: JsonObject::new(),
            has_ended: false,
            has_stopped: false,
        }
    }

    /// Reads a complete message and returns the bytes of the model's output. `None`: it is not a message.
    pub fn message(&mut self, message: &mut JsonObject) -> Option<usize> {
        let content = message.get("content").and_then(Value::as_array)?;
        let bytes = content.iter().map(output_bytes).sum();
        message.insert("model".to_owned(), json!(self.model));
        self.count(message.get("usage"));
        Some(bytes)
    }

    /// Reads the next event and returns the bytes of the model's output in it.
    pub fn event(&mut self, event: &mut JsonObject) -> usize {
        let kind = event
            .get("type")
            .and_then(Value::as_str)
            .unwrap_or_default();
        match kind {
            "message_start" => {
                // A malformed event passes unchanged, like every unknown one.
                let Some(message) = event.get_mut("message").and_then(Value::as_object_mut) else {
                    return 0;
                };
                // The client must see the granted name, not the operator's.
                message.insert("model".to_owned(), json!(self.model));
                let usage = message.get("usage").cloned();
                self.count(usage.as_ref());
                0
            }
            "content_block_start" => event.get("content_block").map_or(0, output_bytes),
            "content_block_delta" => event.get("delta").map_or(0, output_bytes),
            "message_delta" => {
                self.count(event.get("usage"));
                let reason = event.get("delta").map(|delta| &delta["stop_reason"]);
                // `message_delta` without a reason only updates counts.
                self.has_ended |= reason.is_some_and(Value::is_string);
                0
            }
            "message_stop" => {
                self.has_stopped = true;
                0
            }
            // New event types of the provider pass unchanged.
            _ => 0,
        }
    }

    /// Returns true if the answer is complete: the provider sent a stop reason or the last event.
    pub fn has_finished(&self) -> bool {
        self.has_ended || self.has_stopped
    }

    /// Returns true after the last event.
    pub fn has_stopped(&self) -> bool {
        self.has_stopped
    }

    /// Returns the token usage so far, including cached input tokens. `None`: the provider reported none.
    pub fn usage(&self) -> Option<LlmTokenUsage> {
        let mut usage = usage::usage(&Value::Object(self.usage.clone()))?;
        let (prompt, output) = (usage.prompt_tokens, usage.completion_tokens);
        // Anthropic sends no total.
        usage.total_tokens = Some(prompt.unwrap_or(0).saturating_add(output.unwrap_or(0)));
        Some(usage)
    }

    /// Later counts are totals.
    fn count(&mut self, usage: Option<&Value>) {
        usage::merge_usage(&mut self.usage, usage.unwrap_or(&Value::Null));
    }
}

/// Returns the bytes of texts, reasoning and arguments in a block or delta.
fn output_bytes(block: &Value) -> usize {
    let texts = ["text", "thinking", "partial_json", "name"];
    let texts = texts.iter().filter_map(|name| block[*name].as_str());
    let texts: usize = texts.map(str::len).sum();
    let input = match &block["input"] {
        // An empty input precedes the deltas of a call.
        Value::Object(input) if !input.is_empty() => block["input"].to_string().len(),
        _ => 0,
    };
    // Citations are output tokens too.
    let cited = list(block.get("citations")).iter();
    let cited: usize = cited.map(|citation| citation.to_string().len()).sum();
    texts + input + cited
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: &Value) -> JsonObject {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn messages_change_only_model_name() {
        let source = json!({"id": "msg_x", "model": "claude-upstream", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "EqMD"}, {"type": "text", "text": "four"},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}], "stop_reason": "tool_use",
            "usage": {"input_tokens": 3, "cache_read_input_tokens": 2, "output_tokens": 4, "service_tier": "standard"}});
        let (mut relay, mut message) = (MessageRelay::new("claude"), object(&source));
        assert_eq!(relay.message(&mut message), Some(2 + 4 + 1 + 7));
        let mut expected = source;
        expected["model"] = json!("claude");
        assert_eq!(Value::Object(message), expected);
        let usage = relay.usage().unwrap();
        assert_eq!(
            (usage.prompt_tokens, usage.completion_tokens),
            (Some(5), Some(4))
        );
        assert_eq!(relay.message(&mut JsonObject::new()), None);
    }

    #[test]
    fn events_change_only_model_name() {
        let mut relay = MessageRelay::new("claude");
        let mut bytes = 0;
        for (source, has_finished) in [
            (
                json!({"type": "message_start", "message": {"model": "claude",
                    "usage": {"input_tokens": 9, "output_tokens": 1}}}),
                false,
            ),
            (json!({"type": "ping"}), false),
            (
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}),
                false,
            ),
            (
                json!({"type": "content_block_delta", "index": 0,
                    "delta": {"type": "signature_delta", "signature": "EqMD"}}),
                false,
            ),
            (
                json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"},
                    "usage": {"input_tokens": 0, "output_tokens": 7}}),
                true,
            ),
            (json!({"type": "message_stop"}), true),
            (json!({"type": "of tomorrow", "x": 1}), true),
        ] {
            let mut event = object(&source);
            bytes += relay.event(&mut event);
            assert_eq!(Value::Object(event), source);
            assert_eq!(relay.has_finished(), has_finished, "{source}");
        }
        let usage = relay.usage().unwrap();
        assert_eq!((bytes, usage.total_tokens), (2, Some(16)));
        assert_eq!(MessageRelay::new("m").usage(), None);
    }
}
