//! Members that a provider gives with a message that calls tools and wants back with their results: thoughts, and members of
//! calls that this protocol does not know, such as signatures. Both stand in `provider_specific_fields`, with the model
//! that gave them as `model`. They go back to that model alone, and with messages that call tools alone.

use protocol::JsonObject;
use protocol::message::{Message, ToolCall};
use serde_json::{Value, json};

/// Members of a call that the protocol has itself.
const OF_CALL: [&str; 4] = ["index", "id", "type", "function"];
/// Members of a message with thoughts in words.
const TEXTS: [&str; 2] = ["reasoning_content", "reasoning"];
/// Its member with thoughts in parts, some of them signed or encrypted.
const DETAILS: &str = "reasoning_details";
/// The model that gave what is carried.
const MODEL: &str = "model";
/// Thoughts of one message. Longer ones are not carried.
const THOUGHT_BYTES: usize = 256 * 1024;
/// Members of one call. Larger ones are not carried.
const MEMBER_BYTES: usize = 64 * 1024;

/// The members of a provider's call that are carried.
pub(super) fn of_call(call: &Value) -> Option<JsonObject> {
    let is_unknown = |(name, value): &(&String, &Value)| {
        !OF_CALL.contains(&name.as_str()) && name.as_str() != MODEL && !value.is_null()
    };
    let members = call.as_object()?.iter().filter(is_unknown);
    let members: JsonObject = members
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let bytes = members.values().map(|value| value.to_string().len());
    (!members.is_empty() && bytes.sum::<usize>() <= MEMBER_BYTES).then_some(members)
}

/// The thoughts of one message, put together from its deltas.
#[derive(Debug, Default)]
pub(super) struct Thoughts {
    texts: [String; 2],
    details: Vec<Value>,
    bytes: usize,
}

impl Thoughts {
    /// Adds those of a message, or of a delta of one.
    pub(super) fn add(&mut self, said: &Value) {
        for (text, name) in self.texts.iter_mut().zip(TEXTS) {
            let more = said.get(name).and_then(Value::as_str).unwrap_or_default();
            self.bytes = self.bytes.saturating_add(more.len());
            if self.bytes <= THOUGHT_BYTES {
                text.push_str(more);
            }
        }
        for more in said
            .get(DETAILS)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            self.bytes = self.bytes.saturating_add(more.to_string().len());
            if self.bytes <= THOUGHT_BYTES {
                self.details.push(more.clone());
            }
        }
    }

    /// The same as members of a message.
    pub(super) fn members(self) -> JsonObject {
        let mut members = JsonObject::new();
        if self.bytes > THOUGHT_BYTES {
            return members;
        }
        for (text, name) in self.texts.into_iter().zip(TEXTS) {
            if !text.is_empty() {
                members.insert(name.to_owned(), json!(text));
            }
        }
        if !self.details.is_empty() {
            members.insert(DETAILS.to_owned(), Value::Array(self.details));
        }
        members
    }
}

/// Notes in what is carried which model gave it.
pub fn mark_model(fields: Option<&mut JsonObject>, calls: Option<&mut Vec<ToolCall>>, model: &str) {
    let is_thought = |fields: &&mut JsonObject| thoughts_of(fields).next().is_some();
    let of_calls = calls.into_iter().flatten();
    let of_calls = of_calls.filter_map(|call| call.provider_specific_fields.as_mut());
    for fields in fields.filter(is_thought).into_iter().chain(of_calls) {
        fields.insert(MODEL.to_owned(), json!(model));
    }
}

/// The thoughts that go back to this model with a message.
pub(super) fn thoughts_for<'a>(
    message: &'a Message,
    model: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    let calls = message.tool_calls.iter().flatten().count();
    let fields = message.provider_specific_fields.as_ref();
    let fields = fields.filter(|fields| calls > 0 && is_of(fields, model));
    fields.into_iter().flat_map(thoughts_of)
}

/// The members that go back to this model with a call.
pub(super) fn members_for<'a>(
    call: &'a ToolCall,
    model: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    let fields = call.provider_specific_fields.as_ref();
    let fields = fields.filter(|fields| is_of(fields, model));
    let is_carried =
        |(name, _): &(&String, &Value)| !OF_CALL.contains(&name.as_str()) && name.as_str() != MODEL;
    fields.into_iter().flatten().filter(is_carried)
}

/// All texts that go back to a model with this message, whichever model gave them: for counts of tokens.
pub fn carried_texts(message: &Message) -> impl Iterator<Item = String> {
    let fields = message.provider_specific_fields.iter();
    let calls = message.tool_calls.iter().flatten();
    let calls = calls.filter_map(|call| call.provider_specific_fields.as_ref());
    let calls = calls.flatten().map(|(_, value)| value.to_string());
    let thoughts = fields.flat_map(thoughts_of);
    thoughts.map(|(_, value)| value.to_string()).chain(calls)
}

fn thoughts_of(fields: &JsonObject) -> impl Iterator<Item = (&String, &Value)> {
    let is_thought =
        |(name, _): &(&String, &Value)| TEXTS.contains(&name.as_str()) || name.as_str() == DETAILS;
    fields.iter().filter(is_thought)
}

fn is_of(fields: &JsonObject, model: &str) -> bool {
    fields.get(MODEL).and_then(Value::as_str) == Some(model)
}

#[cfg(test)]
mod tests {
    use super::super::{ChunkReader, answer, chat_message};
    use super::*;

    fn deltas() -> [Value; 4] {
        [
            json!({"reasoning_content": "T"}),
            json!({"reasoning_content": "2", "reasoning_details": [{"data": "x"}]}),
            json!({"tool_calls": [{"index": 0, "id": "c", "type": "function",
                "extra_content": {"google": {"thought_signature": "S"}},
                "function": {"name": "f", "arguments": "{}"}}]}),
            json!({}),
        ]
    }

    /// The message that a runner puts together from a stream.
    fn streamed(remove_think: bool) -> Message {
        let mut reader = ChunkReader::new(remove_think).of_model("m");
        let mut message = Message::text("assistant", "");
        for delta in deltas() {
            let chunk = json!({"choices": [{"delta": delta, "finish_reason": "tool_calls"}]});
            let chunk = reader.read(chunk.as_object().unwrap());
            message.tool_calls = chunk
                .and_then(|chunk| chunk.tool_calls)
                .or(message.tool_calls);
        }
        message.provider_specific_fields = reader.finish().0.provider_specific_fields;
        message
    }

    #[test]
    fn thoughts_and_signatures_return_to_their_model() {
        for remove_think in [false, true] {
            let message = streamed(remove_think);
            let back = chat_message(&message, "m");
            assert_eq!(back["reasoning_content"], "T2");
            assert_eq!(back["reasoning_details"], json!([{"data": "x"}]));
            assert_eq!(
                back["tool_calls"][0]["extra_content"]["google"]["thought_signature"],
                "S"
            );
            assert!(back.get("model").is_none() && back["tool_calls"][0].get("model").is_none());
            let other = chat_message(&message, "n");
            assert!(other.get("reasoning_content").is_none());
            assert!(other["tool_calls"][0].get("extra_content").is_none());
        }
    }

    #[test]
    fn whole_answers_carry_the_same() {
        let said = json!({"role": "assistant", "content": "", "reasoning": "T",
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}, "sig": "S"}]});
        let completion = json!({"choices": [{"message": said, "finish_reason": "tool_calls"}]});
        let mut said = answer(completion.as_object().unwrap(), false)
            .unwrap()
            .message;
        mark_model(
            said.provider_specific_fields.as_mut(),
            said.tool_calls.as_mut(),
            "m",
        );
        let back = chat_message(&said, "m");
        assert_eq!(
            (&back["reasoning"], &back["tool_calls"][0]["sig"]),
            (&json!("T"), &json!("S"))
        );
        assert_eq!(back["content"], "", "thoughts are no text");
    }

    #[test]
    fn answers_without_calls_carry_no_thoughts() {
        let said = json!({"role": "assistant", "content": "hi", "reasoning_content": "T"});
        let completion = json!({"choices": [{"message": said}]});
        let said = answer(completion.as_object().unwrap(), true)
            .unwrap()
            .message;
        assert_eq!(said.provider_specific_fields, None);
        let mut forged = Message::text("assistant", "hi");
        let fields = json!({"model": "m", "reasoning_content": "T"});
        forged.provider_specific_fields = fields.as_object().cloned();
        assert!(
            chat_message(&forged, "m")
                .get("reasoning_content")
                .is_none()
        );
    }

    #[test]
    fn large_members_are_not_carried() {
        let large = "x".repeat(MEMBER_BYTES);
        assert_eq!(of_call(&json!({"id": "c", "sig": large})), None);
        assert!(of_call(&json!({"id": "c", "sig": "S"})).is_some());
        let mut thoughts = Thoughts::default();
        thoughts.add(&json!({"reasoning": "x".repeat(THOUGHT_BYTES)}));
        thoughts.add(&json!({"reasoning": "y"}));
        assert!(thoughts.members().is_empty());
    }
}
