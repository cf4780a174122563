//! Lenient reading of unknown fields (`docs/protocol.md`, Version negotiation).
//!
//! The API rejects unknown fields in the parts of a posted event. A runner ignores unknown fields in the same
//! parts of its context, because the gateway may be newer.

use serde::de::value::Error as Captured;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};
use serde_json::Value;

use crate::context::{
    ActorContext, AgentInput, AgentRunContext, DeliveryContext, InputAttachment, SubjectContext,
};
use crate::interaction::{InteractionDeliveryCapabilities, InteractionSubmission};

/// Deserializes a context and ignores unknown fields.
pub(crate) fn context<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<AgentRunContext, D::Error> {
    // A value, since fields must be removed before the strict structures read them.
    let mut context = Value::deserialize(deserializer)?;
    prune::<ActorContext>(&mut context, "/actor");
    prune::<SubjectContext>(&mut context, "/subject");
    prune::<DeliveryContext>(&mut context, "/delivery");
    // Nested structures are pruned separately: `prune` only looks at one object.
    prune::<InteractionDeliveryCapabilities>(&mut context, "/delivery/interactions");
    if let Some(input) = context.get_mut("input") {
        prune_input(input);
    }
    serde_json::from_value(context).map_err(D::Error::custom)
}

/// Deserializes an optional part and ignores unknown fields.
pub(crate) fn optional<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let mut value = Value::deserialize(deserializer)?;
    prune::<T>(&mut value, "");
    serde_json::from_value(value).map_err(D::Error::custom)
}

/// Deserializes an input and ignores unknown fields of it and of its attachments.
pub(crate) fn input<'de, D: Deserializer<'de>>(deserializer: D) -> Result<AgentInput, D::Error> {
    let mut value = Value::deserialize(deserializer)?;
    prune_input(&mut value);
    serde_json::from_value(value).map_err(D::Error::custom)
}

fn prune_input(input: &mut Value) {
    prune::<AgentInput>(input, "");
    prune::<InteractionSubmission>(input, "/interaction");
    if let Some(Value::Array(attachments)) = input.get_mut("attachments") {
        // Each attachment is a strict structure of its own.
        for attachment in attachments {
            prune::<InputAttachment>(attachment, "");
        }
    }
}

/// Removes the fields that `T` does not have from the object at `pointer`.
fn prune<T: DeserializeOwned>(document: &mut Value, pointer: &str) {
    // A type that is no structure has no field names: its value stays as it is.
    if let Some(Value::Object(object)) = document.pointer_mut(pointer)
        && let Some(fields) = fields_of::<T>()
    {
        object.retain(|name, _| fields.contains(&name.as_str()));
    }
}

/// Returns the field names of a structure, captured from its `deserialize_struct` call.
fn fields_of<T: DeserializeOwned>() -> Option<&'static [&'static str]> {
    let mut fields = None;
    // The result is always an error: this deserializer has no data and only captures the names.
    let _ = T::deserialize(FieldNameCapture(&mut fields));
    fields
}

struct FieldNameCapture<'a>(&'a mut Option<&'static [&'static str]>);

impl<'de> Deserializer<'de> for FieldNameCapture<'_> {
    type Error = Captured;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Captured> {
        // Types without named fields end here.
        Err(Captured::custom("nothing to read"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Captured> {
        // Derived implementations pass the names of all fields and their aliases.
        *self.0 = Some(fields);
        Err(Captured::custom("nothing to read"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::event::EventEnvelope;
    use crate::request::AgentRunRequest;

    fn parts() -> Value {
        json!({
            "actor": {"actor_type": "user", "actor_id": "u", "actor_name": "Ada", "metadata": {"a": 1}},
            "subject": {"subject_type": "message", "subject_id": "m", "data": {"b": 2}},
            "input": {
                "text": "hello", "contents": [{"type": "text", "text": "hello"}],
                "attachments": [{"ref": "r", "type": "image", "name": "a.png"}],
            },
            "delivery": {"surface": "api", "supports_streaming": true, "max_message_size": 4},
        })
    }

    fn with_unknown(mut parts: Value) -> Value {
        for pointer in [
            "/actor",
            "/subject",
            "/input",
            "/input/attachments/0",
            "/delivery",
        ] {
            parts.pointer_mut(pointer).unwrap()["new"] = json!({"x": []});
        }
        parts
    }

    fn context(parts: &Value) -> AgentRunContext {
        let mut context = json!({
            "run_id": "r", "trigger": {"type": "a"}, "resources": {}, "runtime": {"trace_id": "t"},
            "event": {"event_id": "e", "event_type": "a", "source": "api"},
        });
        let object = context.as_object_mut().unwrap();
        object.extend(parts.as_object().unwrap().clone());
        let host = json!({"base_url": "u", "token": "t", "token_expires_at": 1});
        let request = json!({
            "runner_id": "plugin:a/b/c", "runner_name": "c", "context": context, "host": host,
        });
        let request: AgentRunRequest = serde_json::from_value(request).unwrap();
        request.context
    }

    #[test]
    fn runners_ignore_unknown_fields_only() {
        let expected = context(&parts());
        assert_eq!(context(&with_unknown(parts())), expected);
        for name in ["actor", "subject", "input"] {
            let read = serde_json::to_value(&expected).unwrap();
            assert_eq!(read[name], parts()[name], "{name}");
        }
        let mut absent = parts();
        absent["actor"] = Value::Null;
        absent.as_object_mut().unwrap().remove("subject");
        let read = context(&absent);
        assert_eq!((read.actor, read.subject), (None, None));
    }

    #[test]
    fn rejects_unknown_fields_of_clients() {
        for name in ["actor", "subject", "input", "delivery"] {
            let mut event = json!({"event_type": "a"});
            event[name] = with_unknown(parts())[name].clone();
            let error = serde_json::from_value::<EventEnvelope>(event).unwrap_err();
            assert!(error.to_string().contains("`new`"), "{name}: {error}");
        }
    }
}
