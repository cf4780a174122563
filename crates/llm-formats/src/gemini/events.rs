//! Chat completions as answers of this API, complete or as the chunks of a stream.

use std::collections::BTreeMap;

use protocol::JsonObject;
use protocol::message::LlmTokenUsage;
use serde_json::{Value, json};

use super::members::text;
use super::signature::SignedMembers;
use crate::chat::carried::{Reasoning, of_call};
use crate::chat::responses::{ANSWER_BYTES, AnswerTooLarge};
use crate::chat::{
    arguments_of, call_input, finish_reason, is_id, merge_provider_members, reasoning,
    text_or_refusal,
};
use crate::list;
use crate::messages::VisibleTextFilter;
use domain::usage::{TokenParts, add_usage, usage_of};

/// Writes one answer. Calls are in its last chunk, because this API has no partial calls.
#[derive(Debug)]
pub struct ContentWriter {
    id: String,
    model: String,
    shows_reasoning: bool,
    visible_text: VisibleTextFilter,
    calls: BTreeMap<u64, BufferedCall>,
    /// Bytes of the buffered calls.
    bytes: usize,
    members: Reasoning,
    has_refused: bool,
    finish: Option<&'static str>,
    usage: Option<LlmTokenUsage>,
}

#[derive(Debug, Default)]
struct BufferedCall {
    id: String,
    name: String,
    arguments: String,
    members: Option<JsonObject>,
}

impl ContentWriter {
    /// Creates a writer for an answer with this id. `shows_reasoning`: as the request demands.
    pub fn new(id: String, model: &str, request: &super::GeminiRequest) -> Self {
        Self {
            id,
            model: model.to_owned(),
            shows_reasoning: request.shows_reasoning,
            visible_text: VisibleTextFilter::default(),
            calls: BTreeMap::new(),
            bytes: 0,
            members: Reasoning::default(),
            has_refused: false,
            finish: None,
            usage: None,
        }
    }

    /// Returns the chunk of the answer for a chunk of a completion. `None`: it has no visible output.
    pub fn read(&mut self, chunk: &JsonObject) -> Result<Option<Value>, AnswerTooLarge> {
        let parts = self.add(chunk, "delta")?;
        Ok((!parts.is_empty()).then(|| self.answer(&parts, None)))
    }

    /// Converts a complete completion.
    pub fn complete(mut self, completion: &JsonObject) -> Result<Value, AnswerTooLarge> {
        let parts = self.add(completion, "message")?;
        Ok(self.last(parts))
    }

    /// Returns true after the provider sent a finish reason.
    pub fn has_finished(&self) -> bool {
        self.finish.is_some()
    }

    /// Returns the last chunk, with the calls, the finish reason and the usage.
    pub fn finish(self) -> Value {
        self.last(Vec::new())
    }

    /// Adds a delta or a message. Returns its visible parts.
    fn add(&mut self, chunk: &JsonObject, member: &str) -> Result<Vec<Value>, AnswerTooLarge> {
        if let Some(usage) = usage_of(chunk) {
            add_usage(&mut self.usage, usage);
        }
        let Some(choice) = chunk.get("choices").and_then(|choices| choices.get(0)) else {
            return Ok(Vec::new());
        };
        // A provider may send a complete message in a stream.
        let delta = [member, "message"]
            .iter()
            .find_map(|name| choice.get(*name));
        let delta = delta.unwrap_or(&Value::Null);
        self.members.add(delta);
        // Remembered: the last chunk often has only the finish reason.
        self.has_refused |= !text(delta, "refusal").is_empty();
        if let Some(reason) = finish_reason(choice) {
            self.finish = Some(match reason {
                "length" | "max_tokens" => "MAX_TOKENS",
                "content_filter" | "refusal" => "SAFETY",
                _ => "STOP",
            });
        }
        let mut parts = Vec::new();
        if let Some(thought) = reasoning(delta).filter(|_| self.shows_reasoning) {
            parts.push(json!({"text": thought, "thought": true}));
        }
        let visible = self.visible_text.read(&text_or_refusal(delta));
        if !visible.is_empty() {
            parts.push(json!({"text": visible}));
        }
        for (n, call) in (0..).zip(list(delta.get("tool_calls"))) {
            // Calls of a complete message have no index.
            self.add_call(call["index"].as_u64().unwrap_or(n), call)?;
        }
        Ok(parts)
    }

    fn add_call(&mut self, index: u64, call: &Value) -> Result<(), AnswerTooLarge> {
        let arguments = arguments_of(&call["function"]);
        let name = text(&call["function"], "name");
        self.bytes = self.bytes.saturating_add(arguments.len() + name.len());
        if self.bytes > ANSWER_BYTES {
            return Err(AnswerTooLarge);
        }
        let buffered = self.calls.entry(index).or_default();
        if buffered.id.is_empty() {
            let id = Some(text(call, "id")).filter(|id| is_id(id));
            id.unwrap_or_default().clone_into(&mut buffered.id);
        }
        // Some providers repeat the name in each chunk.
        if buffered.name.is_empty() {
            name.clone_into(&mut buffered.name);
        }
        buffered.arguments.push_str(&arguments);
        if let Some(more) = of_call(call) {
            merge_provider_members(&mut buffered.members, more);
        }
        Ok(())
    }

    fn last(mut self, mut parts: Vec<Value>) -> Value {
        // The filter may hold back the start of a tag that never came.
        let rest = self.visible_text.finish();
        if !rest.is_empty() {
            parts.push(json!({"text": rest}));
        }
        let calls = std::mem::take(&mut self.calls);
        let mut message = std::mem::take(&mut self.members).members(!calls.is_empty());
        // Clients take a content without parts for an invalid answer.
        if parts.is_empty() && calls.is_empty() {
            parts.push(json!({"text": ""}));
        }
        if calls.is_empty() {
            let signed = SignedMembers {
                message,
                ..SignedMembers::default()
            };
            sign(parts.last_mut(), signed.sign(&self.model));
        } else {
            for (index, call) in calls {
                let signed = SignedMembers {
                    // With the first call only: they belong to the message.
                    message: std::mem::take(&mut message),
                    call: call.members.clone().unwrap_or_default(),
                };
                parts.push(call.into_part(index));
                sign(parts.last_mut(), signed.sign(&self.model));
            }
        }
        let finish = match self.finish {
            None | Some("STOP") if self.has_refused => "SAFETY",
            finish => finish.unwrap_or("STOP"),
        };
        self.answer(&parts, Some(finish))
    }

    fn answer(&self, parts: &[Value], finish: Option<&str>) -> Value {
        let mut candidate = json!({"content": {"parts": parts, "role": "model"}, "index": 0});
        let mut answer = json!({"modelVersion": self.model, "responseId": self.id});
        if let Some(finish) = finish {
            candidate["finishReason"] = json!(finish);
            if let Some(usage) = &self.usage {
                answer["usageMetadata"] = usage_json(usage);
            }
        }
        answer["candidates"] = json!([candidate]);
        answer
    }
}

impl BufferedCall {
    fn into_part(self, index: u64) -> Value {
        // Clients match results by id, so a placeholder gets an id of its own.
        let id = match self.id.as_str() {
            "" => format!("call_{index}"),
            id => id.to_owned(),
        };
        json!({"functionCall": {"id": id, "name": self.name, "args": call_input(&self.arguments)}})
    }
}

fn sign(part: Option<&mut Value>, signature: Option<String>) {
    if let (Some(part), Some(signature)) = (part, signature) {
        part["thoughtSignature"] = json!(signature);
    }
}

/// Token usage in the names of this API, which counts thoughts separately from the candidate.
fn usage_json(usage: &LlmTokenUsage) -> Value {
    let parts = TokenParts::of(Some(usage));
    let (prompt, completion) = (parts.prompt(), parts.completion());
    let mut shown = json!({"promptTokenCount": prompt, "candidatesTokenCount": parts.output,
        "totalTokenCount": prompt.saturating_add(completion)});
    // Absent without such tokens, as Google sends it.
    if parts.cache_read > 0 {
        shown["cachedContentTokenCount"] = json!(parts.cache_read);
    }
    if parts.reasoning > 0 {
        shown["thoughtsTokenCount"] = json!(parts.reasoning);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::super::read_request;
    use super::*;

    fn writer(config: &Value) -> ContentWriter {
        let body = json!({"contents": [{"parts": [{"text": "x"}]}], "generationConfig": config});
        let request = read_request(body.as_object().unwrap(), "m").unwrap();
        ContentWriter::new("r".to_owned(), "m", &request)
    }

    fn object(value: Value) -> JsonObject {
        crate::object(value)
    }

    fn usage() -> Value {
        json!({"prompt_tokens": 10, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 7},
            "completion_tokens_details": {"reasoning_tokens": 2}})
    }

    #[test]
    fn completion_becomes_candidate() {
        let message = json!({"role": "assistant", "content": "<think>x</think>ok", "reasoning_content": "hm",
            "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{\"a\":1}"},
                "extra_content": {"google": {"thought_signature": "S"}}},
                {"id": null, "function": {"name": "g", "arguments": "{\"a\""}}]});
        let completion = object(
            json!({"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": usage()}),
        );
        let shown = json!({"thinkingConfig": {"includeThoughts": true}});
        let mut answer = writer(&shown).complete(&completion).unwrap();
        let parts = answer["candidates"][0]["content"]["parts"]
            .as_array_mut()
            .unwrap();
        let signature = parts[2]
            .as_object_mut()
            .unwrap()
            .remove("thoughtSignature")
            .unwrap();
        let signed = SignedMembers::read(signature.as_str().unwrap()).unwrap();
        assert_eq!(signed.message["reasoning_content"], "hm");
        assert_eq!(
            signed.call["extra_content"]["google"]["thought_signature"],
            "S"
        );
        assert_eq!(
            answer,
            json!({"modelVersion": "m", "responseId": "r", "candidates": [{"index": 0, "finishReason": "STOP",
                "content": {"role": "model", "parts": [{"text": "hm", "thought": true}, {"text": "ok"},
                    {"functionCall": {"id": "c1", "name": "f", "args": {"a": 1}}},
                    {"functionCall": {"id": "call_1", "name": "g", "args": {"invalid_arguments": "{\"a\""}}}]}}],
                "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 4, "totalTokenCount": 16,
                    "cachedContentTokenCount": 7, "thoughtsTokenCount": 2}})
        );
    }

    #[test]
    fn chunks_have_text_and_end_with_calls() {
        let mut writer = writer(&json!(null));
        let mut texts = Vec::new();
        for (delta, reason) in [
            (json!({"role": "assistant", "content": ""}), json!(null)),
            (json!({"reasoning_content": "hidden"}), json!(null)),
            (json!({"content": "Hel"}), json!(null)),
            (json!({"content": "lo"}), json!(null)),
            (
                json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{\"a\""}}]}),
                json!(null),
            ),
            (
                json!({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}),
                json!("stop"),
            ),
        ] {
            let chunk = json!({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]});
            texts.extend(writer.read(&object(chunk)).unwrap());
        }
        assert!(writer.has_finished());
        assert_eq!(
            writer.read(&object(json!({"choices": [], "usage": usage()}))),
            Ok(None)
        );
        let texts: Vec<_> = texts
            .iter()
            .map(|chunk| &chunk["candidates"][0]["content"]["parts"][0]["text"])
            .collect();
        assert_eq!(texts, ["Hel", "lo"]);
        let last = writer.finish();
        let candidate = &last["candidates"][0];
        let call = json!({"id": "c", "name": "f", "args": {"a": 1}});
        assert_eq!(candidate["content"]["parts"][0]["functionCall"], call);
        assert_eq!(candidate["finishReason"], "STOP");
        assert_eq!(last["usageMetadata"]["thoughtsTokenCount"], 2);
    }

    #[test]
    fn maps_every_finish_reason() {
        for (choice, reason) in [
            (
                json!({"delta": {"content": "a"}, "finish_reason": "stop"}),
                "STOP",
            ),
            (
                json!({"delta": {}, "finish_reason": "length"}),
                "MAX_TOKENS",
            ),
            (
                json!({"delta": {}, "finish_reason": "content_filter"}),
                "SAFETY",
            ),
            (
                json!({"delta": {"refusal": "no"}, "finish_reason": "stop"}),
                "SAFETY",
            ),
        ] {
            let mut writer = writer(&json!({}));
            writer.read(&object(json!({"choices": [choice]}))).unwrap();
            let last = writer.finish();
            assert_eq!(last["candidates"][0]["finishReason"], reason, "{choice}");
            assert_eq!(last["candidates"][0]["content"]["parts"][0]["text"], "");
        }
    }

    #[test]
    fn bounds_buffered_calls() {
        let mut writer = writer(&json!({}));
        let call = json!({"index": 0, "function": {"arguments": "x".repeat(ANSWER_BYTES + 1)}});
        let chunk = object(json!({"choices": [{"delta": {"tool_calls": [call]}}]}));
        assert_eq!(writer.read(&chunk), Err(AnswerTooLarge));
    }
}
