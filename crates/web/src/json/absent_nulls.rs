//! Null for an unset member: clients of languages without "undefined" send it. Null counts as absent wherever the
//! member's type has no null.
//!
//! The parser runs again without the nulls that it refused, so valid bodies cost nothing.

use std::fmt;

use protocol::JsonObject;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};
use serde_path_to_error::Segment;

/// Maximum number of members, by path, that may be null where their type has no null.
const MEMBERS: usize = 64;

/// Parses a document without the nulls that its types refuse, or returns its next fault. `None`: it has no nulls, or
/// it is not well formed.
pub(crate) fn parse<T: DeserializeOwned>(
    bytes: &[u8],
) -> Option<Result<T, serde_path_to_error::Error<serde_json::Error>>> {
    // A search of the bytes is cheaper than the second parse.
    if !bytes.windows(4).any(|word| word == b"null") {
        return None;
    }
    let UniqueMembers(mut value) = serde_json::from_slice(bytes).ok()?;
    for _ in 0..MEMBERS {
        let parsed = serde_path_to_error::deserialize(&value);
        let Err(fault) = &parsed else {
            return Some(parsed);
        };
        let path: Vec<_> = fault.path().iter().collect();
        if !remove_nulls(&mut value, &path) {
            return Some(parsed);
        }
    }
    None
}

/// Removes the null to which the path leads, or all nulls below the path: the parser does not locate faults within
/// alternatives. An index applies to all items of its list, which have the same type. Returns true if there was one.
fn remove_nulls(value: &mut Value, path: &[&Segment]) -> bool {
    match (path, value) {
        ([Segment::Seq { .. }, rest @ ..], Value::Array(items)) => {
            let removed = items.iter_mut().map(|item| remove_nulls(item, rest));
            removed.fold(false, |any, removed| any | removed)
        }
        ([Segment::Map { key }, rest @ ..], Value::Object(members)) => {
            if rest.is_empty() && members.get(key).is_some_and(Value::is_null) {
                return members.remove(key).is_some();
            }
            let member = members.get_mut(key);
            member.is_some_and(|member| remove_nulls(member, rest))
        }
        ([Segment::Enum { .. } | Segment::Unknown, rest @ ..], value) => remove_nulls(value, rest),
        ([], value) => remove_all_nulls(value),
        _ => false,
    }
}

fn remove_all_nulls(value: &mut Value) -> bool {
    match value {
        Value::Array(items) => {
            let removed = items.iter_mut().map(remove_all_nulls);
            removed.fold(false, |any, removed| any | removed)
        }
        Value::Object(members) => {
            let before = members.len();
            members.retain(|_, member| !member.is_null());
            let has_removed = members.len() < before;
            let removed = members.values_mut().map(remove_all_nulls);
            removed.fold(has_removed, |any, removed| any | removed)
        }
        _ => false,
    }
}

/// A value whose objects name each member once. Parsers of typed bodies reject a second one, and so does this.
struct UniqueMembers(Value);

impl<'de> Deserialize<'de> for UniqueMembers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Self)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(UniqueMembers(value)) = items.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut values = JsonObject::new();
        while let Some((name, UniqueMembers(value))) = members.next_entry::<String, _>()? {
            if values.insert(name, value).is_some() {
                return Err(A::Error::custom("a member occurs twice"));
            }
        }
        Ok(Value::Object(values))
    }
}

#[cfg(test)]
mod tests;
