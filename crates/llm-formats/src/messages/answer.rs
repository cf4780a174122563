//! Parts of an answer in this format: stop reason, token usage, and whether reasoning is visible.

use protocol::JsonObject;
use protocol::message::LlmTokenUsage;
use serde_json::{Value, json};

use super::{list, text};
use crate::chat::finish_reason;
use domain::usage::TokenParts;

/// Returns true if the client requests visible reasoning. The default is hidden.
pub(super) fn shows_thinking(request: &JsonObject) -> bool {
    let thinking = request.get("thinking");
    thinking.is_some_and(|thinking| {
        let thinks = matches!(
            text(thinking, "type"),
            "enabled" | "adaptive" | "between_tools"
        );
        thinks && text(thinking, "display") != "omitted"
    })
}

/// Stop reason of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AnthropicStopReason {
    pub(super) reason: &'static str,
    /// Stop sequence, if the provider reports it.
    pub(super) sequence: Option<String>,
}

/// `message`: the message or last delta of the choice.
pub(super) fn stop_of(
    choice: &Value,
    message: &Value,
    has_calls: bool,
    request: &JsonObject,
) -> AnthropicStopReason {
    let reason = match finish_reason(choice) {
        Some("length" | "max_tokens") => "max_tokens",
        Some("content_filter" | "refusal") => "refusal",
        // Some servers send `stop` although the answer has calls.
        _ if has_calls => "tool_use",
        // A refusal without a finish reason of its own.
        _ if !text(message, "refusal").is_empty() => "refusal",
        _ => "end_turn",
    };
    // vLLM and similar servers report the sequence here.
    let sequence = text(choice, "stop_reason");
    let is_requested = list(request.get("stop_sequences"))
        .iter()
        .any(|stop| stop == sequence);
    // Only a sequence of the request: the member holds other values on other servers.
    if reason == "end_turn" && is_requested && !sequence.is_empty() {
        return AnthropicStopReason {
            reason: "stop_sequence",
            sequence: Some(sequence.to_owned()),
        };
    }
    AnthropicStopReason {
        reason,
        sequence: None,
    }
}

/// Converts token usage to the names of this API, which counts cached tokens separately.
pub(super) fn usage_json(usage: Option<&LlmTokenUsage>) -> Value {
    let parts = TokenParts::of(usage);
    let written = parts.cache_write();
    let mut shown = json!({"input_tokens": parts.input, "cache_creation_input_tokens": written,
        "cache_read_input_tokens": parts.cache_read, "output_tokens": parts.completion()});
    // Absent without stored tokens, as Anthropic sends it.
    if written > 0 {
        shown["cache_creation"] = json!({"ephemeral_5m_input_tokens": parts.cache_write_5m,
            "ephemeral_1h_input_tokens": parts.cache_write_1h});
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::MessageEventWriter;

    fn object(value: &Value) -> JsonObject {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn a_completion_becomes_a_message() {
        let chat_message = json!({"role": "assistant", "content": "<think>x</think>ok", "reasoning_content": "hm", "tool_calls": [
            {"id": "call-1", "function": {"name": "f", "arguments": "{\"a\":1}"}},
            {"id": null, "function": {"name": "g", "arguments": "{\"a\""}},
            {"id": "c3", "function": {"name": "h", "arguments": ""}}]});
        let completion = json!({"choices": [{"message": chat_message, "finish_reason": "stop"}], "usage": {
            "prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 7}}});
        let request = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}});
        let writer = MessageEventWriter::new("msg_1", "m", &object(&request));
        let message = writer.complete(&object(&completion)).unwrap();
        assert_eq!(
            message,
            json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "runnel:m"}, {"type": "text", "text": "ok"},
                {"type": "tool_use", "id": "call-1", "name": "f", "input": {"a": 1}},
                {"type": "tool_use", "id": "call_1", "name": "g", "input": {"invalid_arguments": "{\"a\""}},
                {"type": "tool_use", "id": "c3", "name": "h", "input": {}}],
                "stop_reason": "tool_use", "stop_sequence": null, "usage": {"input_tokens": 3,
                    "cache_creation_input_tokens": 0, "cache_read_input_tokens": 7, "output_tokens": 4}})
        );
    }

    #[test]
    fn shows_reasoning_only_on_request() {
        for (thinking, shown) in [
            (json!({"type": "enabled"}), true),
            (json!({"type": "adaptive"}), true),
            (json!({"type": "adaptive", "display": "omitted"}), false),
            (json!({"type": "disabled"}), false),
            (json!(null), false),
        ] {
            assert_eq!(
                shows_thinking(&object(&json!({"thinking": thinking}))),
                shown,
                "{thinking}"
            );
        }
    }

    #[test]
    fn maps_every_finish_reason() {
        let request = object(&json!({"stop_sequences": ["END"]}));
        for (choice, has_calls, reason) in [
            (json!({"finish_reason": "stop"}), false, "end_turn"),
            (json!({"finish_reason": "stop"}), true, "tool_use"),
            (json!({"finish_reason": "tool_calls"}), true, "tool_use"),
            (json!({"finish_reason": "length"}), true, "max_tokens"),
            (json!({"finish_reason": "content_filter"}), false, "refusal"),
            (
                json!({"finish_reason": "stop", "stop_reason": "END"}),
                false,
                "stop_sequence",
            ),
            (
                json!({"finish_reason": "stop", "stop_reason": "eos"}),
                false,
                "end_turn",
            ),
            (json!({}), false, "end_turn"),
        ] {
            let stop = stop_of(&choice, &json!({}), has_calls, &request);
            assert_eq!(stop.reason, reason, "{choice}");
            assert_eq!(stop.sequence.is_some(), reason == "stop_sequence");
        }
        let refusal = stop_of(&json!({}), &json!({"refusal": "no"}), false, &request);
        assert_eq!(refusal.reason, "refusal");
    }

    #[test]
    fn counts_cached_tokens_separately() {
        let of = |usage: &Value| usage_json(domain::usage::usage(usage).as_ref());
        for (provider_usage, expected) in [
            (
                json!({"prompt_tokens": 9, "completion_tokens": 2}),
                [9, 0, 0, 2],
            ),
            (
                json!({"prompt_tokens": 9, "prompt_cache_hit_tokens": 4}),
                [5, 0, 4, 0],
            ),
            (
                json!({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 99}}),
                [0, 0, 9, 0],
            ),
            (
                json!({"prompt_tokens": 9, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 2}),
                [4, 3, 2, 0],
            ),
            (json!(null), [0; 4]),
        ] {
            let [input, written, read, output] = expected;
            let mut shown = json!({"input_tokens": input, "cache_creation_input_tokens": written,
                "cache_read_input_tokens": read, "output_tokens": output});
            if written > 0 {
                shown["cache_creation"] =
                    json!({"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0});
            }
            assert_eq!(of(&provider_usage), shown, "{provider_usage}");
        }
    }
}
