//! Strict JSON: bounded depth, unique keys, no NUL; canonical text that does not depend on the order of keys.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::code::Code;

/// A JSON text that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct JsonFault {
    /// `bad_json`, `duplicate_key` or `too_deep`.
    pub code: Code,
    /// Position of the fault; empty when the text is no JSON at all.
    pub pointer: String,
    /// Description of the fault.
    pub message: String,
}

/// Parses one value. Keys are unique, nesting is at most `depth`, texts hold no NUL.
pub fn parse(text: &str, depth: usize) -> Result<Value, JsonFault> {
    // serde's error type has no field for a pointer, so the fault is passed in a cell.
    let fault = RefCell::new(None);
    let strict = Strict {
        depth,
        at: &PointerPath::Root,
        fault: &fault,
    };
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let parsed = strict
        // Trailing data is a fault: the model may have written a second declaration.
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value));
    parsed.map_err(|error| {
        // Without a fault of ours it is a syntax error of serde.
        fault.borrow_mut().take().unwrap_or_else(|| JsonFault {
            code: Code::BadJson,
            pointer: String::new(),
            message: format!("no JSON: {error}"),
        })
    })
}

/// The way from a value to the root; made into a pointer only for faults.
enum PointerPath<'a> {
    Root,
    Key(&'a PointerPath<'a>, &'a str),
    Index(&'a PointerPath<'a>, usize),
}

impl PointerPath<'_> {
    fn pointer(&self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Key(parent, key) => join(&parent.pointer(), key),
            Self::Index(parent, index) => format!("{}/{index}", parent.pointer()),
        }
    }
}

#[derive(Clone, Copy)]
struct Strict<'a> {
    depth: usize,
    at: &'a PointerPath<'a>,
    fault: &'a RefCell<Option<JsonFault>>,
}

impl Strict<'_> {
    fn fail<E: serde::de::Error>(&self, code: Code, message: &str) -> E {
        let fault = JsonFault {
            code,
            pointer: self.at.pointer(),
            message: message.to_owned(),
        };
        // The first fault wins: outer values fail again while the error travels up.
        self.fault.borrow_mut().get_or_insert(fault);
        E::custom(message)
    }

    fn inside<E: serde::de::Error>(&self) -> Result<usize, E> {
        // Counted down, so that recursion is bounded before the stack is.
        match self.depth.checked_sub(1) {
            Some(left) => Ok(left),
            None => Err(self.fail(Code::TooDeep, "the JSON is nested too deeply")),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        // JSON has neither infinity nor NaN.
        let number = serde_json::Number::from_f64(value);
        number
            .map(Value::Number)
            .ok_or_else(|| self.fail(Code::BadJson, "a number is not finite"))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        // PostgreSQL stores no NUL in text and `jsonb`.
        if value.contains('\0') {
            return Err(self.fail(Code::BadJson, "a text holds a NUL"));
        }
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let depth = self.inside()?;
        let mut list = Vec::new();
        loop {
            // A chain on the stack: pointers are built for faults only.
            let at = PointerPath::Index(self.at, list.len());
            let inner = Strict {
                depth,
                at: &at,
                fault: self.fault,
            };
            match seq.next_element_seed(inner)? {
                Some(value) => list.push(value),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let depth = self.inside()?;
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let at = PointerPath::Key(self.at, &key);
            let inner = Strict {
                depth,
                at: &at,
                fault: self.fault,
            };
            if key.contains('\0') {
                return Err(self.fail(Code::BadJson, "a key holds a NUL"));
            }
            // serde would keep the last value: two readers could see different arguments.
            if object.contains_key(&key) {
                return Err(inner.fail(Code::DuplicateKey, "the key occurs twice"));
            }
            let value = map.next_value_seed(inner)?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

/// `pointer` with one more token, escaped.
pub fn join(pointer: &str, token: &str) -> String {
    // RFC 6901: `~` first, or the escape of `/` would be escaped again.
    let token = token.replace('~', "~0").replace('/', "~1");
    format!("{pointer}/{token}")
}

/// The scalars and empty containers of a value with their pointers. An empty root object has none.
pub fn leaves(value: &Value) -> Vec<(String, &Value)> {
    let mut leaves = Vec::new();
    let mut open = vec![(String::new(), value)];
    while let Some((at, value)) = open.pop() {
        match value {
            Value::Object(members) if at.is_empty() || !members.is_empty() => {
                open.extend(members.iter().map(|(name, value)| (join(&at, name), value)));
            }
            Value::Array(items) if !items.is_empty() => {
                let items = items.iter().enumerate();
                open.extend(items.map(|(index, value)| (format!("{at}/{index}"), value)));
            }
            leaf => leaves.push((at, leaf)),
        }
    }
    leaves
}

/// Canonical text: keys sorted, no blanks.
pub fn canonical(value: &Value) -> String {
    sorted(value).to_string()
}

/// Text for reading: keys sorted, two blanks of indentation.
pub fn pretty(value: &Value) -> String {
    format!("{:#}", sorted(value))
}

/// The value with sorted keys: texts and hashes must not depend on the order of insertion.
fn sorted(value: &Value) -> Value {
    let mut value = value.clone();
    value.sort_all_objects();
    value
}

/// Length of the canonical text in bytes, without escapes.
pub(crate) fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(list) => 2 + list.iter().map(|one| size(one) + 1).sum::<usize>(),
        Value::Object(object) => size_of(object),
        Value::Null | Value::Bool(_) => 5,
        Value::Number(_) => 8,
    }
}

/// The same for an object.
pub(crate) fn size_of(object: &Map<String, Value>) -> usize {
    2 + object
        .iter()
        .map(|(key, one)| key.len() + 4 + size(one))
        .sum::<usize>()
}

/// The JSON word for the type of a value.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> (Code, String) {
        let fault = parse(text, 4).expect_err("it is refused");
        (fault.code, fault.pointer)
    }

    #[test]
    fn refuses_duplicates_depth_nul_and_garbage() {
        assert_eq!(
            fault(r#"{"a":[{"b":1,"b":2}]}"#),
            (Code::DuplicateKey, "/a/0/b".into())
        );
        assert_eq!(fault("[[[[[1]]]]]").0, Code::TooDeep);
        for text in [
            r#"{"a":"\u0000"}"#,
            "{",
            "NaN",
            "{'a':1}",
            "[1,]",
            r#""\ud800""#,
            "1 2",
            "1e999",
        ] {
            assert_eq!(fault(text).0, Code::BadJson, "{text}");
        }
    }

    #[test]
    fn canonical_text_ignores_key_order() {
        let left = parse(r#"{"b":[1,{"d":2,"c":"x"}],"a":{}}"#, 8).expect("JSON");
        let right = parse(r#"{"a":{},"b":[1,{"c":"x","d":2}]}"#, 8).expect("JSON");
        assert_eq!(canonical(&left), r#"{"a":{},"b":[1,{"c":"x","d":2}]}"#);
        assert_eq!(canonical(&left), canonical(&right));
        assert_eq!(parse(&pretty(&left), 8).expect("JSON"), right);
    }
}
