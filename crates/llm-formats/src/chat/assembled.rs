//! Assembles a completion from chunks: some providers stream although the request demands a document.

use std::collections::BTreeMap;

use protocol::JsonObject;
use serde_json::{Value, json};

use super::finish_reason;

/// Members of a delta whose texts are concatenated. Lists are concatenated, too; other members keep the last
/// value.
const TEXTS: [&str; 4] = ["content", "reasoning_content", "reasoning", "refusal"];

/// Assembles one completion. [`CallTracker::settle`](super::CallTracker::settle) must have given each call an
/// index of its own.
#[derive(Debug, Default)]
pub struct Assembler {
    members: JsonObject,
    choices: BTreeMap<u64, AssembledChoice>,
}

#[derive(Debug, Default)]
struct AssembledChoice {
    message: JsonObject,
    calls: BTreeMap<u64, Value>,
    reason: Option<String>,
}

impl Assembler {
    pub fn add(&mut self, mut chunk: JsonObject) {
        let choices = chunk.remove("choices");
        for choice in choices.iter().filter_map(Value::as_array).flatten() {
            // A missing index means the only choice.
            let index = choice["index"].as_u64().unwrap_or_default();
            let assembled = self.choices.entry(index).or_default();
            // Providers send null until the last chunk; later nulls must not remove the reason.
            if let Some(reason) = finish_reason(choice) {
                assembled.reason = Some(reason.to_owned());
            }
            for (name, delta) in choice["delta"].as_object().into_iter().flatten() {
                assembled.add(name, delta);
            }
        }
        // Later chunks repeat the members; usage comes only in the last.
        self.members.extend(chunk);
    }

    /// Returns the completion.
    pub fn finish(mut self) -> JsonObject {
        let choices = self.choices.into_iter().map(|(index, mut choice)| {
            let message = &mut choice.message;
            // Completions without text have these members too.
            message.entry("role").or_insert_with(|| json!("assistant"));
            message.entry("content").or_insert(Value::Null);
            if !choice.calls.is_empty() {
                let calls = choice.calls.into_values().map(without_index).collect();
                message.insert("tool_calls".to_owned(), calls);
            }
            json!({"index": index, "message": choice.message, "finish_reason": choice.reason})
        });
        self.members.insert("choices".to_owned(), choices.collect());
        self.members
            .insert("object".to_owned(), json!("chat.completion"));
        self.members
    }
}

impl AssembledChoice {
    fn add(&mut self, name: &str, delta: &Value) {
        if name == "tool_calls" {
            for call in delta.as_array().into_iter().flatten() {
                self.add_call(call);
            }
            return;
        }
        match (self.message.get_mut(name), delta) {
            // Null means no change.
            (_, Value::Null) => {}
            (Some(Value::String(existing)), Value::String(delta)) if TEXTS.contains(&name) => {
                existing.push_str(delta);
            }
            (Some(Value::Array(existing)), Value::Array(delta)) => {
                existing.extend(delta.iter().cloned());
            }
            _ => {
                self.message.insert(name.to_owned(), delta.clone());
            }
        }
    }

    fn add_call(&mut self, delta: &Value) {
        let index = delta["index"].as_u64().unwrap_or_default();
        // The first delta of a call has its id, type and name.
        let Some(call) = self.calls.get_mut(&index) else {
            self.calls.insert(index, delta.clone());
            return;
        };
        let arguments = text_at(call, "arguments") + &text_at(delta, "arguments");
        let name = text_at(call, "name");
        let members = delta.as_object().into_iter().flatten();
        for (member, value) in
            members.filter(|(member, value)| *member != "function" && !value.is_null())
        {
            call[member] = value.clone();
        }
        for (member, value) in delta["function"].as_object().into_iter().flatten() {
            if !value.is_null() {
                call["function"][member] = value.clone();
            }
        }
        // Some servers repeat the name in each delta; concatenation would double it.
        let delta = text_at(delta, "name");
        call["function"]["name"] = json!(if name.is_empty() { delta } else { name });
        call["function"]["arguments"] = json!(arguments);
    }
}

fn text_at(call: &Value, member: &str) -> String {
    call["function"][member]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn without_index(mut call: Value) -> Value {
    // Complete calls have no index.
    if let Some(call) = call.as_object_mut() {
        call.remove("index");
    }
    call
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_add_up_to_a_completion() {
        let mut assembler = Assembler::default();
        for (delta, reason) in [
            (
                json!({"role": "assistant", "content": "a", "reasoning_content": "x"}),
                Value::Null,
            ),
            (
                json!({"content": "b", "reasoning_content": null}),
                Value::Null,
            ),
            (
                json!({"tool_calls": [{"index": 1, "id": "c", "function": {"name": "f", "arguments": "{"}}]}),
                Value::Null,
            ),
            (
                json!({"tool_calls": [{"index": 1, "function": {"arguments": "}"}}]}),
                json!("tool_calls"),
            ),
        ] {
            let chunk = json!({"id": "r", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]});
            assembler.add(chunk.as_object().unwrap().clone());
        }
        let usage = json!({"choices": [], "usage": {"prompt_tokens": 1}});
        assembler.add(usage.as_object().unwrap().clone());
        let call = json!({"id": "c", "function": {"name": "f", "arguments": "{}"}});
        assert_eq!(
            Value::Object(assembler.finish()),
            json!({"id": "r", "object": "chat.completion", "usage": {"prompt_tokens": 1}, "choices": [{"index": 0,
                "finish_reason": "tool_calls", "message": {"role": "assistant", "content": "ab",
                "reasoning_content": "x", "tool_calls": [call]}}]})
        );
    }
}
