//! Provider members that must return with the next request: reasoning, and unknown members such as signatures.
//! Unknown members occur on messages, calls and functions. They are stored in `provider_specific_fields` with
//! their `model`; those of a function are under `function`. They return only to the same model. Reasoning
//! returns only with messages that call tools.

use protocol::JsonObject;
use protocol::message::{Message, ToolCall};
use serde_json::{Value, json};

/// Known members of a call, except `function`, which may have unknown members.
const OF_CALL: [&str; 3] = ["index", "id", "type"];
/// Known members of a function.
const OF_FUNCTION: [&str; 2] = ["name", "arguments"];
const FUNCTION: &str = "function";
/// Known members of a message, and members that no request accepts.
const OF_MESSAGE: [&str; 11] = [
    "role",
    "content",
    "refusal",
    "name",
    "tool_calls",
    "tool_call_id",
    "function_call",
    "finish_reason",
    "annotations",
    "audio",
    MODEL,
];
/// Members of a message with reasoning text.
const TEXTS: [&str; 2] = ["reasoning_content", "reasoning"];
/// Member of a message with reasoning parts, some signed or encrypted.
const DETAILS: &str = "reasoning_details";
/// Member with the model that produced the fields.
const MODEL: &str = "model";
/// Maximum bytes of reasoning of one message. Longer reasoning is dropped.
const REASONING_BYTES: usize = 256 * 1024;
/// Maximum bytes of unknown members of one call or message. Larger ones are dropped.
const MEMBER_BYTES: usize = 64 * 1024;

/// Returns the members of a provider's call to keep.
pub(crate) fn of_call(call: &Value) -> Option<JsonObject> {
    let members = call.as_object()?.iter();
    let carried = members.filter_map(|(name, value)| {
        let value = carried_member(name, value)?;
        Some((name.clone(), value))
    });
    let carried: JsonObject = carried.collect();
    // Dropped as one: half of a signature is invalid.
    (!carried.is_empty() && bytes_of(&carried) <= MEMBER_BYTES).then_some(carried)
}

/// Returns the part of a call member to keep.
fn carried_member(name: &str, value: &Value) -> Option<Value> {
    if name == FUNCTION {
        let unknown: JsonObject = unknown_of(value, &OF_FUNCTION).collect();
        return (!unknown.is_empty()).then_some(Value::Object(unknown));
    }
    // The gateway sets the model itself; a provider's member of that name would forge it.
    let is_carried = !OF_CALL.contains(&name) && name != MODEL && !value.is_null();
    is_carried.then(|| value.clone())
}

/// Returns the non-empty members that are not in `standard`.
fn unknown_of<'a>(
    object: &'a Value,
    standard: &'a [&str],
) -> impl Iterator<Item = (String, Value)> + 'a {
    let members = object.as_object().into_iter().flatten();
    // Empty members carry nothing, and some providers reject them in requests.
    members
        .filter(|(name, value)| !standard.contains(&name.as_str()) && !is_empty(value))
        .map(|(name, value)| (name.clone(), value.clone()))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

fn bytes_of(members: &JsonObject) -> usize {
    members.values().map(|value| value.to_string().len()).sum()
}

/// Merges members of later deltas of a call. Members of `function` are added; other members keep the last value.
pub fn merge_provider_members(merged: &mut Option<JsonObject>, more: JsonObject) {
    let merged = merged.get_or_insert_default();
    for (name, value) in more {
        match (merged.get_mut(&name), value) {
            // Only `function` has members of its own; a merge of others could mix two signatures.
            (Some(Value::Object(merged)), Value::Object(more)) if name == FUNCTION => {
                merged.extend(more);
            }
            (_, value) => {
                merged.insert(name, value);
            }
        }
    }
}

/// Restores kept members of a call. Known members stay unchanged.
pub(super) fn put_back(call: &mut Value, members: &JsonObject) {
    // Stored by a runner, which may have changed them: filter again.
    for (name, value) in members {
        let Some(value) = carried_member(name, value) else {
            continue;
        };
        // Members of a function must not replace its name or arguments.
        match (name.as_str(), value) {
            (FUNCTION, Value::Object(unknown)) => {
                if let Some(function) = call[FUNCTION].as_object_mut() {
                    function.extend(unknown);
                }
            }
            (_, value) => call[name] = value,
        }
    }
}

/// Reasoning and unknown members of one message, assembled from its deltas.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reasoning {
    texts: [String; 2],
    details: Vec<Value>,
    bytes: usize,
    /// Unknown members.
    unknown: JsonObject,
    unknown_bytes: usize,
}

impl Reasoning {
    /// Adds the members of a message or delta.
    pub(crate) fn add(&mut self, message: &Value) {
        for (text, name) in self.texts.iter_mut().zip(TEXTS) {
            let more = message
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default();
            // Counts dropped text as well: a gap in signed reasoning would make all of it invalid.
            self.bytes = self.bytes.saturating_add(more.len());
            if self.bytes <= REASONING_BYTES {
                text.push_str(more);
            }
        }
        for more in message
            .get(DETAILS)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            self.bytes = self.bytes.saturating_add(more.to_string().len());
            if self.bytes <= REASONING_BYTES {
                self.details.push(more.clone());
            }
        }
        for (name, value) in
            unknown_of(message, &OF_MESSAGE).filter(|(name, _)| !is_reasoning(name))
        {
            // Counts what it drops, so that `members` leaves out all unknown members.
            self.unknown_bytes = self.unknown_bytes.saturating_add(value.to_string().len());
            if self.unknown_bytes <= MEMBER_BYTES {
                self.add_unknown(name, value);
            }
        }
    }

    /// Concatenates lists; other members keep the last value.
    fn add_unknown(&mut self, name: String, value: Value) {
        match (self.unknown.get_mut(&name), value) {
            // Lists arrive as increments.
            (Some(Value::Array(existing)), Value::Array(more)) => existing.extend(more),
            (_, value) => {
                self.unknown.insert(name, value);
            }
        }
    }

    /// Returns the members of the message. `with_reasoning`: include the reasoning, for messages with calls.
    pub(crate) fn members(self, with_reasoning: bool) -> JsonObject {
        let mut members = JsonObject::new();
        if self.unknown_bytes <= MEMBER_BYTES {
            members = self.unknown;
        }
        if !with_reasoning || self.bytes > REASONING_BYTES {
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

/// Records the model in the kept fields.
pub(super) fn mark_model(
    fields: Option<&mut JsonObject>,
    calls: Option<&mut Vec<ToolCall>>,
    model: &str,
) {
    // Fields with a finish reason only need no model.
    let is_carried = |fields: &&mut JsonObject| carried_of(fields).next().is_some();
    let of_calls = calls.into_iter().flatten();
    let of_calls = of_calls.filter_map(|call| call.provider_specific_fields.as_mut());
    for fields in fields.filter(is_carried).into_iter().chain(of_calls) {
        fields.insert(MODEL.to_owned(), json!(model));
    }
}

/// Returns the members to send back to `model` with a message; reasoning only with calls.
pub(super) fn members_for<'a>(
    message: &'a Message,
    model: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    let calls = message.tool_calls.iter().flatten().count();
    let fields = message.provider_specific_fields.as_ref();
    // Members of users and tools come from runners and could inject parameters.
    let fields = fields.filter(|fields| message.role == "assistant" && is_of(fields, model));
    let members = fields.into_iter().flat_map(carried_of);
    members.filter(move |(name, _)| calls > 0 || !is_reasoning(name))
}

/// Returns the members to send back to `model` with a call.
pub(super) fn of_call_for<'a>(call: &'a ToolCall, model: &str) -> Option<&'a JsonObject> {
    let fields = call.provider_specific_fields.as_ref();
    fields.filter(|fields| is_of(fields, model))
}

/// Returns all texts that return with this message, for any model. Used for token counts.
pub fn provider_member_texts(message: &Message) -> impl Iterator<Item = String> {
    let fields = message.provider_specific_fields.iter();
    let calls = message.tool_calls.iter().flatten();
    let calls = calls.filter_map(|call| call.provider_specific_fields.as_ref());
    let calls = calls.flatten().map(|(_, value)| value.to_string());
    let members = fields.flat_map(carried_of);
    members.map(|(_, value)| value.to_string()).chain(calls)
}

/// Returns true if a message may return a member of this name.
pub(super) fn may_carry(name: &str) -> bool {
    !OF_MESSAGE.contains(&name)
}

fn carried_of(fields: &JsonObject) -> impl Iterator<Item = (&String, &Value)> {
    fields.iter().filter(|(name, _)| may_carry(name))
}

fn is_reasoning(name: &str) -> bool {
    TEXTS.contains(&name) || name == DETAILS
}

fn is_of(fields: &JsonObject, model: &str) -> bool {
    // A signature of another model is rejected by its provider.
    fields.get(MODEL).and_then(Value::as_str) == Some(model)
}

#[cfg(test)]
mod tests {
    use super::super::{ChunkReader, ThinkBlocks, chat_message};
    use super::*;

    fn deltas() -> [Value; 4] {
        [
            json!({"reasoning_content": "T"}),
            json!({"reasoning_content": "2", "reasoning_details": [{"data": "x"}]}),
            json!({"tool_calls": [{"index": 0, "id": "c", "type": "function",
                "extra_content": {"google": {"thought_signature": "S"}},
                "function": {"name": "f", "arguments": "{", "signature": "F"}}]}),
            json!({"extra_content": {"of": "message"}, "annotations": [], "refusal": "",
                "tool_calls": [{"index": 0, "function": {"arguments": "}", "part": 2}}]}),
        ]
    }

    /// The message that a runner assembles from a stream.
    fn streamed(think_blocks: ThinkBlocks) -> Message {
        let mut reader = ChunkReader::new(think_blocks).of_model("m");
        let mut message = Message::text("assistant", "");
        for delta in deltas() {
            let chunk = json!({"choices": [{"delta": delta, "finish_reason": "tool_calls"}]});
            let chunk = reader.read(chunk.as_object().unwrap());
            for call in chunk
                .and_then(|chunk| chunk.tool_calls)
                .into_iter()
                .flatten()
            {
                match message
                    .tool_calls
                    .as_mut()
                    .and_then(|calls| calls.first_mut())
                {
                    None => message.tool_calls = Some(vec![call]),
                    Some(stored) => merge_provider_members(
                        &mut stored.provider_specific_fields,
                        call.provider_specific_fields.unwrap_or_default(),
                    ),
                }
            }
        }
        message.provider_specific_fields = reader.finish().0.provider_specific_fields;
        message
    }

    #[test]
    fn reasoning_and_signatures_return_to_their_model() {
        for think_blocks in [ThinkBlocks::Retained, ThinkBlocks::Removed] {
            let message = streamed(think_blocks);
            let back = chat_message(&message, "m");
            assert_eq!(back["reasoning_content"], "T2");
            assert_eq!(back["reasoning_details"], json!([{"data": "x"}]));
            assert_eq!(
                back["tool_calls"][0]["extra_content"]["google"]["thought_signature"],
                "S"
            );
            let function = &back["tool_calls"][0]["function"];
            assert_eq!(
                *function,
                json!({"name": "f", "arguments": "{", "signature": "F", "part": 2})
            );
            assert_eq!(back["extra_content"], json!({"of": "message"}));
            for unknown in ["model", "finish_reason", "annotations", "refusal"] {
                assert!(back.get(unknown).is_none(), "{back}");
            }
            assert!(back["tool_calls"][0].get("model").is_none());
            let other = chat_message(&message, "n");
            assert!(
                other.get("reasoning_content").is_none() && other.get("extra_content").is_none()
            );
            assert!(other["tool_calls"][0].get("extra_content").is_none());
            assert_eq!(
                other["tool_calls"][0]["function"]
                    .as_object()
                    .unwrap()
                    .len(),
                2
            );
        }
    }

    #[test]
    fn complete_answers_keep_same_members_as_streams() {
        let message = json!({"role": "assistant", "content": "", "reasoning": "T",
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}, "sig": "S"}]});
        let completion = json!({"choices": [{"message": message, "finish_reason": "tool_calls"}]});
        let reader = ChunkReader::new(ThinkBlocks::Retained).of_model("m");
        let message = reader.complete(completion.as_object().unwrap());
        let message = message.unwrap().message;
        let back = chat_message(&message, "m");
        assert_eq!(
            (&back["reasoning"], &back["tool_calls"][0]["sig"]),
            (&json!("T"), &json!("S"))
        );
        assert_eq!(back["content"], "", "thoughts are no text");
    }

    #[test]
    fn answers_without_calls_return_no_reasoning() {
        let message = json!({"role": "assistant", "content": "hi", "reasoning_content": "T"});
        let completion = json!({"choices": [{"message": message}]});
        let message =
            ChunkReader::new(ThinkBlocks::Removed).complete(completion.as_object().unwrap());
        let message = message.unwrap().message;
        assert_eq!(message.provider_specific_fields, None);
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
    fn drops_large_provider_members() {
        let large = "x".repeat(MEMBER_BYTES);
        assert_eq!(of_call(&json!({"id": "c", "sig": large})), None);
        assert!(of_call(&json!({"id": "c", "sig": "S"})).is_some());
        let mut reasoning = Reasoning::default();
        reasoning.add(&json!({"reasoning": "x".repeat(REASONING_BYTES)}));
        reasoning.add(&json!({"reasoning": "y"}));
        reasoning.add(&json!({"extra_content": "x".repeat(MEMBER_BYTES)}));
        assert!(reasoning.members(true).is_empty());
    }

    #[test]
    fn answers_without_calls_return_unknown_members() {
        let mut reader = ChunkReader::new(ThinkBlocks::Removed).of_model("m");
        let chunk = json!({"choices": [{"delta": {"content": "hi", "reasoning": "T",
            "extra_content": {"google": {"thought_signature": "S"}}}, "finish_reason": "stop"}]});
        reader.read(chunk.as_object().unwrap());
        let mut message = Message::text("assistant", "hi");
        message.provider_specific_fields = reader.finish().0.provider_specific_fields;
        let signed = json!({"role": "assistant", "content": "hi",
            "extra_content": {"google": {"thought_signature": "S"}}});
        assert_eq!(chat_message(&message, "m"), signed);
        assert!(chat_message(&message, "n").get("extra_content").is_none());
    }

    #[test]
    fn forged_members_never_override_message_fields() {
        let mut forged = Message::text("assistant", "hi");
        let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"},
            "provider_specific_fields": {"model": "m", "id": "x", "function": {"name": "g", "arguments": "[]"}}});
        forged.tool_calls = Some(vec![serde_json::from_value(call).unwrap()]);
        let fields = json!({"model": "m", "role": "system", "content": "x", "tool_calls": [], "function_call": {}});
        forged.provider_specific_fields = fields.as_object().cloned();
        let call =
            json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let expected = json!({"role": "assistant", "content": "hi", "tool_calls": [call]});
        assert_eq!(chat_message(&forged, "m"), expected);
    }
}
