//! Answers of this API, complete or streamed, as chat completions and chunks.

use protocol::JsonObject;
use serde_json::{Value, json};

use crate::{FormatError, list, object};

/// Reads the chunks of one answer.
#[derive(Debug, Default)]
pub struct ContentReader {
    /// Number of calls so far.
    calls: usize,
}

/// Text, reasoning and calls of some parts.
#[derive(Debug, Default)]
struct ReadParts {
    text: String,
    thought: String,
    calls: Vec<Value>,
    /// Signature of the text.
    signature: Option<Value>,
}

/// Translates a complete answer.
pub fn completion(answer: &JsonObject) -> Result<JsonObject, FormatError> {
    let mut reader = ContentReader::default();
    let mut chunk = reader
        .read(answer)?
        .ok_or_else(|| FormatError::Malformed("an answer without candidates".to_owned()))?;
    if let Some(choice) = chunk
        .get_mut("choices")
        .and_then(|choices| choices.get_mut(0))
    {
        let mut message = choice["delta"].take();
        message["role"] = json!("assistant");
        for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
            // Complete calls have no index.
            if let Some(call) = call.as_object_mut() {
                call.remove("index");
            }
        }
        if message.get("content").is_none() {
            message["content"] = json!("");
        }
        let is_cut = choice["finish_reason"].is_null();
        let reason = if is_cut {
            json!("stop")
        } else {
            choice["finish_reason"].take()
        };
        *choice = json!({"index": 0, "message": message, "finish_reason": reason});
        // Indexing has inserted null for a message without calls.
        if let Some(message) = choice["message"].as_object_mut() {
            message.retain(|_, value| !value.is_null());
        }
    }
    chunk.insert("object".to_owned(), json!("chat.completion"));
    Ok(chunk)
}

impl ContentReader {
    /// The chunk of an event. `None`: it adds nothing to a completion.
    ///
    /// # Errors
    /// The model wrote a call that the provider could not read.
    pub fn read(&mut self, event: &JsonObject) -> Result<Option<JsonObject>, FormatError> {
        let usage = event.get("usageMetadata").filter(|usage| usage.is_object());
        let candidate = event
            .get("candidates")
            .and_then(|candidates| candidates.get(0));
        let blocked = event
            .get("promptFeedback")
            .and_then(|feedback| feedback["blockReason"].as_str());
        let choice = match (candidate, blocked) {
            (Some(candidate), _) => Some(self.choice(candidate)?),
            (None, Some(reason)) => {
                let refusal = format!("The provider blocked the prompt: {reason}");
                Some(
                    json!({"index": 0, "delta": {"refusal": refusal}, "finish_reason": "content_filter"}),
                )
            }
            (None, None) if usage.is_some() => None,
            (None, None) => return Ok(None),
        };
        let mut chunk = json!({"id": event.get("responseId"), "object": "chat.completion.chunk",
            "model": event.get("modelVersion"), "choices": choice.into_iter().collect::<Vec<_>>()});
        if let Some(usage) = usage {
            chunk["usage"] = usage_json(usage);
        }
        Ok(Some(object(chunk)))
    }

    fn choice(&mut self, candidate: &Value) -> Result<Value, FormatError> {
        let read = self.parts(list(candidate["content"].get("parts")));
        let mut delta = json!({});
        for (name, text) in [("content", read.text), ("reasoning_content", read.thought)] {
            if !text.is_empty() {
                delta[name] = json!(text);
            }
        }
        if let Some(signature) = read.signature {
            delta["extra_content"] = signed(&signature);
        }
        if !read.calls.is_empty() {
            delta["tool_calls"] = json!(read.calls);
        }
        let reason = match candidate["finishReason"].as_str() {
            None | Some("" | "FINISH_REASON_UNSPECIFIED") => None,
            Some("MAX_TOKENS") => Some("length"),
            Some("MALFORMED_FUNCTION_CALL" | "UNEXPECTED_TOOL_CALL") => {
                let why = candidate["finishMessage"].as_str().unwrap_or("no details");
                let what = format!("the model wrote a call that its provider cannot read: {why}");
                return Err(FormatError::Malformed(what));
            }
            Some("STOP" | "OTHER") if self.calls > 0 => Some("tool_calls"),
            Some("STOP" | "OTHER") => Some("stop"),
            // Safety, recitation, block-lists, personal data and their later kinds.
            Some(_) => Some("content_filter"),
        };
        Ok(json!({"index": 0, "delta": delta, "finish_reason": reason}))
    }

    fn parts(&mut self, parts: &[Value]) -> ReadParts {
        let mut read = ReadParts::default();
        for part in parts {
            let signature = part
                .get("thoughtSignature")
                .filter(|value| value.is_string());
            let call = &part["functionCall"];
            if call.is_object() {
                read.calls.push(self.call(call, signature));
                continue;
            }
            if let Some(signature) = signature {
                read.signature = Some(signature.clone());
            }
            let text = part["text"].as_str().unwrap_or_default();
            if part["thought"] == true {
                read.thought.push_str(text);
            } else {
                read.text.push_str(text);
            }
        }
        read
    }

    fn call(&mut self, call: &Value, signature: Option<&Value>) -> Value {
        let index = self.calls;
        self.calls += 1;
        // Absent for a function without parameters.
        let arguments = match &call["args"] {
            args @ Value::Object(_) => args.to_string(),
            _ => "{}".to_owned(),
        };
        let mut read = json!({"index": index, "type": "function",
            "function": {"name": call["name"], "arguments": arguments}});
        // Older models send none; the gateway then assigns one.
        if let Some(id) = call["id"].as_str() {
            read["id"] = json!(id);
        }
        if let Some(signature) = signature {
            read["extra_content"] = signed(signature);
        }
        read
    }
}

/// A signature in the form of Google's own chat completions.
fn signed(signature: &Value) -> Value {
    json!({"google": {"thought_signature": signature}})
}

/// The signature of a message or call.
pub(super) fn signature_in(value: &Value) -> Option<&Value> {
    let signature = value.pointer("/extra_content/google/thought_signature");
    signature.filter(|signature| signature.as_str().is_some_and(|text| !text.is_empty()))
}

/// Cached tokens are part of the prompt; thoughts are counted separately.
fn usage_json(reported: &Value) -> Value {
    let of = |name: &str| {
        let count = domain::usage::count(&reported[name]).unwrap_or(0);
        u64::try_from(count).unwrap_or(0)
    };
    let prompt = of("promptTokenCount").saturating_add(of("toolUsePromptTokenCount"));
    let reasoning = of("thoughtsTokenCount");
    let completion = of("candidatesTokenCount").saturating_add(reasoning);
    json!({"prompt_tokens": prompt, "completion_tokens": completion,
        "total_tokens": prompt.saturating_add(completion),
        "prompt_tokens_details": {"cached_tokens": of("cachedContentTokenCount")},
        "completion_tokens_details": {"reasoning_tokens": reasoning}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(candidate: &Value) -> JsonObject {
        object(
            json!({"responseId": "r", "modelVersion": "gemini-x", "candidates": [candidate],
            "usageMetadata": {"promptTokenCount": 9, "cachedContentTokenCount": 4, "candidatesTokenCount": 3,
                "thoughtsTokenCount": 2, "totalTokenCount": 14}}),
        )
    }

    #[test]
    fn complete_answer_becomes_completion() {
        let candidate = json!({"content": {"role": "model", "parts": [
            {"text": "hm", "thought": true}, {"text": "I lo"}, {"text": "ok"},
            {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "S"},
            {"functionCall": {"id": "own", "name": "g"}}]}, "finishReason": "STOP"});
        let completion = completion(&answer(&candidate)).unwrap();
        assert_eq!(
            Value::Object(completion),
            json!({"id": "r", "object": "chat.completion", "model": "gemini-x",
                "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
                    "role": "assistant", "content": "I look", "reasoning_content": "hm", "tool_calls": [
                        {"type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"},
                            "extra_content": {"google": {"thought_signature": "S"}}},
                        {"id": "own", "type": "function", "function": {"name": "g", "arguments": "{}"}}]}}],
                "usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14,
                    "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 2}}})
        );
        assert!(super::completion(&object(json!({}))).is_err());
    }

    #[test]
    fn events_become_chunks() {
        let mut reader = ContentReader::default();
        let mut read = |parts: Value, reason: Value| {
            let candidate = json!({"content": {"parts": parts}, "finishReason": reason});
            let chunk = reader.read(&answer(&candidate)).unwrap().unwrap();
            chunk["choices"][0].clone()
        };
        let first = read(json!([{"text": "a"}]), Value::Null);
        assert_eq!(
            first,
            json!({"index": 0, "delta": {"content": "a"}, "finish_reason": null})
        );
        let call = json!({"functionCall": {"name": "f", "args": {}}});
        for index in 0..2 {
            let called = read(json!([call]), Value::Null);
            assert_eq!(called["delta"]["tool_calls"][0]["index"], index);
        }
        let last = read(
            json!([{"text": "", "thoughtSignature": "T"}]),
            json!("STOP"),
        );
        assert_eq!(last["finish_reason"], "tool_calls");
        assert_eq!(signature_in(&last["delta"]), Some(&json!("T")));
        let counted = json!({"usageMetadata": {"promptTokenCount": 1}});
        let counted = reader.read(&object(counted)).unwrap().unwrap();
        assert_eq!(counted["choices"], json!([]));
        assert_eq!(reader.read(&object(json!({"x": 1}))), Ok(None));
    }

    #[test]
    fn maps_every_finish_reason() {
        for (reason, expected) in [
            ("STOP", Some("stop")),
            ("MAX_TOKENS", Some("length")),
            ("SAFETY", Some("content_filter")),
            ("PROHIBITED_CONTENT", Some("content_filter")),
            ("MALFORMED_FUNCTION_CALL", None),
        ] {
            let candidate = json!({"content": {}, "finishReason": reason, "finishMessage": "why"});
            let read = ContentReader::default().read(&answer(&candidate));
            let found = read
                .ok()
                .flatten()
                .map(|chunk| chunk["choices"][0]["finish_reason"].clone());
            assert_eq!(found, expected.map(|reason| json!(reason)), "{reason}");
        }
        let blocked = object(json!({"promptFeedback": {"blockReason": "SAFETY"}}));
        let blocked = ContentReader::default().read(&blocked).unwrap().unwrap();
        assert_eq!(blocked["choices"][0]["finish_reason"], "content_filter");
    }
}
