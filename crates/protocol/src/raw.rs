//! JSON as text: lists of stored documents forward it without parsing.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// A JSON document as text. A parsed value can take many times the memory of its text.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RawJson(Box<RawValue>);

impl RawJson {
    /// Validates a text as JSON.
    pub fn parse(text: String) -> serde_json::Result<Self> {
        RawValue::from_string(text).map(Self)
    }

    /// Returns the text.
    pub fn get(&self) -> &str {
        self.0.get()
    }

    pub fn is_object(&self) -> bool {
        self.get().starts_with('{')
    }

    /// Parses the text.
    pub fn value(&self) -> Value {
        // The text was validated at its creation, so null never occurs here.
        serde_json::from_str(self.get()).unwrap_or_default()
    }
}

impl From<Value> for RawJson {
    fn from(value: Value) -> Self {
        // A value has no invalid text, so this cannot fail.
        let text = RawValue::from_string(value.to_string());
        Self(text.expect("a value serialises to JSON"))
    }
}

/// Deserializes JSON that must be an object.
pub(crate) fn object<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RawJson, D::Error> {
    let raw = RawJson::deserialize(deserializer)?;
    // The first byte decides: valid JSON that begins with a brace is an object.
    if raw.is_object() {
        Ok(raw)
    } else {
        Err(Error::custom("must be a JSON object"))
    }
}

/// Deserializes JSON that must be an object or null.
pub(crate) fn object_if_any<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<RawJson>, D::Error> {
    let raw = Option::<RawJson>::deserialize(deserializer)?;
    match raw {
        Some(raw) if !raw.is_object() => Err(Error::custom("must be a JSON object or null")),
        raw => Ok(raw),
    }
}

/// Compares parsed values, not texts.
impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        // Equal texts are the common case and need no parsing.
        self.get() == other.get() || self.value() == other.value()
    }
}

impl PartialEq<Value> for RawJson {
    fn eq(&self, other: &Value) -> bool {
        self.value() == *other
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keeps_the_text_it_was_read_from() {
        let text = r#"{"b" : 1,"a":[1e3]}"#;
        let raw: RawJson = serde_json::from_str(text).unwrap();
        assert_eq!(raw.get(), text);
        assert_eq!(serde_json::to_string(&raw).unwrap(), text);
        assert_eq!(raw, json!({"a": [1000.0], "b": 1}));
        let of_value: RawJson = serde_json::from_value(json!({"a": 1})).unwrap();
        assert_eq!(of_value, RawJson::from(json!({"a": 1})));
        assert!(RawJson::parse("{".to_owned()).is_err());
    }
}
