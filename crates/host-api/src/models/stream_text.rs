//! The generated text of a stream, for hooks.

use protocol::JsonObject;
use serde_json::{Value, json};

/// Maximum text of a stream, in bytes. A longer one cannot be checked.
const MAX_BYTES: usize = 1024 * 1024;

/// Text of the items of a provider, in their order.
#[derive(Debug, Default)]
pub(crate) struct StreamText {
    text: String,
    reasoning: String,
    /// Names and arguments of tool calls.
    tool_calls: String,
    is_cut: bool,
}

#[derive(Clone, Copy)]
enum TextPart {
    Text,
    Reasoning,
    ToolCalls,
}

impl TextPart {
    /// The part of a field, or of an event of the Responses API.
    fn of(name: &str) -> Self {
        if name.contains("reasoning") || name.contains("thinking") {
            Self::Reasoning
        } else if ["content", "text", "refusal"]
            .iter()
            .any(|one| name.contains(one))
        {
            Self::Text
        } else {
            Self::ToolCalls
        }
    }
}

impl StreamText {
    /// The value for hooks. `None`: the text is longer than [`MAX_BYTES`], and not complete.
    pub(crate) fn value(&self) -> Option<Value> {
        let complete = !self.is_cut;
        complete.then(|| {
            json!({"text": self.text, "reasoning": self.reasoning, "tool_calls": self.tool_calls})
        })
    }

    /// Adds the text of a chunk of a completion, or of an event of a wire format.
    pub(crate) fn add(&mut self, item: &JsonObject) {
        let choices = item.get("choices").and_then(Value::as_array);
        for choice in choices.into_iter().flatten() {
            self.add_fields(&choice["delta"]);
        }
        let kind = item.get("type").and_then(Value::as_str).unwrap_or_default();
        match item.get("delta") {
            // Anthropic: each delta has its text in a field of its own.
            Some(delta @ Value::Object(_)) => self.add_fields(delta),
            // The Responses API: the type of the event names the part.
            Some(Value::String(delta)) => self.push(TextPart::of(kind), delta),
            _ => {}
        }
        for name in ["content_block", "item"] {
            // Ends of items repeat their deltas.
            if kind.rsplit('.').next() != Some("done")
                && let Some(begun) = item.get(name)
            {
                self.add_fields(begun);
            }
        }
    }

    /// Adds all text of an object, by the names of its fields.
    fn add_fields(&mut self, fields: &Value) {
        // Identifiers, and signatures of reasoning, are not generated text.
        let ignored = [
            "role",
            "id",
            "type",
            "status",
            "call_id",
            "signature",
            "stop_reason",
            "stop_sequence",
            "encrypted_content",
        ];
        let fields = fields.as_object().into_iter().flatten();
        // The name of a call precedes its arguments, in whatever order a provider sends them.
        let (names, others): (Vec<_>, Vec<_>) = fields.partition(|(name, _)| *name == "name");
        for (name, value) in names.into_iter().chain(others) {
            if !ignored.contains(&name.as_str()) {
                self.add_value(TextPart::of(name), value);
            }
        }
    }

    fn add_value(&mut self, part: TextPart, value: &Value) {
        match value {
            Value::String(text) => self.push(part, text),
            Value::Array(items) => items.iter().for_each(|item| match item {
                Value::Object(_) => self.add_fields(item),
                other => self.add_value(part, other),
            }),
            Value::Object(_) => self.add_fields(value),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn push(&mut self, part: TextPart, text: &str) {
        let bytes = self.text.len() + self.reasoning.len() + self.tool_calls.len();
        if bytes + text.len() > MAX_BYTES {
            self.is_cut = true;
            return;
        }
        match part {
            TextPart::Text => self.text.push_str(text),
            TextPart::Reasoning => self.reasoning.push_str(text),
            TextPart::ToolCalls => self.tool_calls.push_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value_of(items: &[Value]) -> Value {
        let mut text = StreamText::default();
        for item in items {
            text.add(item.as_object().unwrap());
        }
        text.value().unwrap()
    }

    fn chunk(delta: &Value) -> Value {
        json!({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
    }

    #[test]
    fn collects_text_of_all_stream_formats() {
        let expected = json!({"text": "ab", "reasoning": "why", "tool_calls": "find{\"q\":1}"});
        let call = |function: Value| {
            chunk(
                &json!({"tool_calls": [{"index": 0, "id": "t", "type": "function", "function": function}]}),
            )
        };
        let chat = [
            chunk(&json!({"role": "assistant", "reasoning_content": "why"})),
            chunk(&json!({"content": "a"})),
            chunk(&json!({"content": "b"})),
            call(json!({"name": "find", "arguments": "{\"q\""})),
            call(json!({"arguments": ":1}"})),
        ];
        assert_eq!(value_of(&chat), expected);
        let delta =
            |delta: Value| json!({"type": "content_block_delta", "index": 0, "delta": delta});
        let messages = [
            delta(json!({"type": "thinking_delta", "thinking": "why"})),
            delta(json!({"type": "signature_delta", "signature": "s"})),
            delta(json!({"type": "text_delta", "text": "a"})),
            delta(json!({"type": "text_delta", "text": "b"})),
            json!({"type": "content_block_start",
                "content_block": {"type": "tool_use", "id": "t", "name": "find", "input": {}}}),
            delta(json!({"type": "input_json_delta", "partial_json": "{\"q\":1}"})),
            json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}),
        ];
        assert_eq!(value_of(&messages), expected);
        let event = |kind: &str, delta: &str| json!({"type": kind, "delta": delta});
        let responses = [
            event("response.reasoning_summary_text.delta", "why"),
            event("response.output_text.delta", "a"),
            event("response.output_text.delta", "b"),
            json!({"type": "response.output_item.added",
                "item": {"type": "function_call", "id": "i", "call_id": "t", "name": "find", "arguments": ""}}),
            event("response.function_call_arguments.delta", "{\"q\":1}"),
            json!({"type": "response.output_item.done", "item": {"name": "find", "arguments": "{\"q\":1}"}}),
        ];
        assert_eq!(value_of(&responses), expected);
    }

    #[test]
    fn text_beyond_the_bound_has_no_value() {
        let mut text = StreamText::default();
        let half = chunk(&json!({"content": "x".repeat(MAX_BYTES / 2)}));
        text.add(half.as_object().unwrap());
        text.add(half.as_object().unwrap());
        assert!(text.value().is_some());
        text.add(chunk(&json!({"content": "y"})).as_object().unwrap());
        assert_eq!(text.value(), None);
    }
}
