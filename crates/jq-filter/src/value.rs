//! Conversion between JSON and values of filters.

use jaq_core::ValT as _;
use jaq_json::Val;
use serde_json::{Map, Number, Value};

/// The filter value of a JSON value.
pub(crate) fn of(value: &Value) -> Val {
    match value {
        Value::Null => Val::Null,
        Value::Bool(flag) => Val::from(*flag),
        Value::Number(number) => {
            let integer = number
                .as_i64()
                .and_then(|number| isize::try_from(number).ok());
            match integer {
                Some(number) => Val::from(number),
                None => Val::from(number.as_f64().unwrap_or_default()),
            }
        }
        Value::String(text) => Val::from(text.clone()),
        Value::Array(items) => items.iter().map(of).collect(),
        Value::Object(members) => {
            let members = members.iter();
            let members = members.map(|(key, value)| (Val::from(key.clone()), of(value)));
            Val::from_map(members).unwrap_or_default()
        }
    }
}

/// The JSON of a filter value. Keys that are not texts are converted; `NaN` and infinities become `null`.
pub(crate) fn from(value: &Val) -> Value {
    match value {
        Val::Null => Value::Null,
        Val::Bool(flag) => Value::Bool(*flag),
        Val::Num(number) => {
            let number: Option<Number> = serde_json::from_str(&number.to_string()).ok();
            number.map_or(Value::Null, Value::Number)
        }
        Val::BStr(text) | Val::TStr(text) => {
            Value::String(String::from_utf8_lossy(text).into_owned())
        }
        Val::Arr(items) => items.iter().map(from).collect(),
        Val::Obj(members) => {
            let members = members.iter().map(|(key, member)| {
                let key = match from(key) {
                    Value::String(key) => key,
                    other => other.to_string(),
                };
                (key, from(member))
            });
            Value::Object(members.collect::<Map<_, _>>())
        }
    }
}

/// Size of a value in units, with `bytes` bytes of text per unit.
pub(crate) fn units(value: &Value, bytes: usize) -> usize {
    1 + match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len() / bytes,
        Value::Array(items) => items.iter().map(|item| units(item, bytes)).sum(),
        Value::Object(members) => {
            let units =
                |(key, member): (&String, &Value)| 1 + key.len() / bytes + units(member, bytes);
            members.iter().map(units).sum()
        }
    }
}
