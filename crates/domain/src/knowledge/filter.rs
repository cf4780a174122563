//! Document metadata and query filters.

use protocol::JsonObject;
use protocol::admin::Fault;
use serde_json::Value;

use crate::form::escape_pointer;

/// Maximum names in a document's metadata or in a filter.
const MAX_NAMES: usize = 32;
/// Maximum values of one name.
const MAX_VALUES: usize = 64;
const MAX_NAME_BYTES: usize = 128;
const MAX_VALUE_BYTES: usize = 1024;
/// Maximum bytes of a document's metadata, as JSON.
const MAX_METADATA_BYTES: usize = 16 * 1024;

/// Metadata names that the gateway sets for each passage.
pub const OWN_NAMES: [&str; 7] = [
    "document_id",
    "name",
    "mime_type",
    "start",
    "end",
    "heading",
    "chunk",
];
/// Gateway names that a filter may use.
pub const FILTERED_NAMES: [&str; 3] = ["document_id", "name", "mime_type"];

/// Filters, which must all match. A filter matches if one of its values matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filters(pub Vec<(String, Vec<Value>)>);

/// Parses filters: `{"name": value}`, `{"name": [value, …]}`, or the equivalents `{"$eq": …}` and `{"$in": …}`.
pub fn check_filters(filters: &JsonObject) -> Result<Filters, Vec<Fault>> {
    let mut faults = Vec::new();
    // Checked first, so that a huge object gives one error, not one per name.
    if filters.len() > MAX_NAMES {
        let message = format!("must have at most {MAX_NAMES} names");
        return Err(vec![Fault::new("/filters", message)]);
    }
    let mut checked = Vec::new();
    for (name, wanted) in filters {
        let pointer = format!("/filters/{}", escape_pointer(name));
        match check_name(name).and_then(|()| values_of(wanted)) {
            Ok(values) => checked.push((name.clone(), values)),
            Err(message) => faults.push(Fault::new(pointer, message)),
        }
    }
    if faults.is_empty() {
        Ok(Filters(checked))
    } else {
        Err(faults)
    }
}

/// Validates the metadata of a document.
pub fn check_metadata(metadata: &JsonObject) -> Result<(), Vec<Fault>> {
    let mut faults = Vec::new();
    if metadata.len() > MAX_NAMES {
        let message = format!("must have at most {MAX_NAMES} names");
        faults.push(Fault::new("/metadata", message));
    }
    if serde_json::to_string(metadata).map_or(0, |text| text.len()) > MAX_METADATA_BYTES {
        let message = format!("must have at most {MAX_METADATA_BYTES} bytes");
        faults.push(Fault::new("/metadata", message));
    }
    for (name, value) in metadata {
        let pointer = format!("/metadata/{}", escape_pointer(name));
        let is_own = OWN_NAMES.contains(&name.as_str());
        let own = || Err("is set by the gateway itself; take another name");
        let checked = check_name(name).and_then(|()| if is_own { own() } else { Ok(()) });
        if let Err(message) = checked.and_then(|()| values_of_metadata(value).map(drop)) {
            faults.push(Fault::new(pointer, message));
        }
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(faults)
    }
}

/// Returns the filter index entries of a document: each name with each of its values as JSON, sorted and unique.
pub fn entries(metadata: &JsonObject) -> Vec<(String, String)> {
    let mut entries = Vec::new();
    for (name, value) in metadata {
        // `check_metadata` rejected other values before.
        for value in values_of_metadata(value).unwrap_or_default() {
            entries.push((name.clone(), value.to_string()));
        }
    }
    // A list may repeat a value; the index has each once.
    entries.sort_unstable();
    entries.dedup();
    entries
}

fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        return Err("must be named by 1 to 128 bytes without control characters");
    }
    // Operators such as `$or` are not supported; an error avoids a filter that matches nothing.
    if name.starts_with('$') {
        return Err("is not a name; filters compare by name, and all of them must match");
    }
    Ok(())
}

fn values_of(wanted: &Value) -> Result<Vec<Value>, &'static str> {
    const SHAPE: &str =
        "must be a value, a list of values, {\"$eq\": value} or {\"$in\": [value, …]}";
    let Value::Object(operator) = wanted else {
        return some_values(wanted).ok_or(SHAPE);
    };
    // Exactly one operator: with two it would be unclear whether both must match.
    let mut operators = operator.iter();
    match (operators.next(), operators.next()) {
        (Some((name, value)), None) if name == "$in" && value.is_array() => {
            some_values(value).ok_or(SHAPE)
        }
        (Some((name, value)), None) if name == "$eq" && !value.is_array() => {
            some_values(value).ok_or(SHAPE)
        }
        _ => Err(SHAPE),
    }
}

fn values_of_metadata(value: &Value) -> Result<Vec<Value>, &'static str> {
    let message = "must be text, a number, true or false, or a list of at most 64 of them; text has at most 1024 bytes as JSON";
    match value {
        // An empty list has no index entries, but is valid metadata. A filter with none could never match.
        Value::Array(values) if values.is_empty() => Ok(Vec::new()),
        value => some_values(value).ok_or(message),
    }
}

/// Returns a value or a list of values. `None`: neither.
fn some_values(value: &Value) -> Option<Vec<Value>> {
    let one = std::slice::from_ref(value);
    let values = match value {
        Value::Array(values) => values.as_slice(),
        _ => one,
    };
    let is_value = |value: &Value| match value {
        // The length as stored, because an index of PostgreSQL rejects longer values.
        Value::String(text) => value.to_string().len() <= MAX_VALUE_BYTES && !text.contains('\0'),
        Value::Number(_) | Value::Bool(_) => true,
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    };
    let is_valid = (1..=MAX_VALUES).contains(&values.len()) && values.iter().all(is_value);
    is_valid.then(|| values.to_vec())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> JsonObject {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn accepts_value_and_list_filters_only() {
        let valid =
            object(json!({"a": 1, "b": ["x", true], "c": {"$eq": "y"}, "d": {"$in": [1, 2]}}));
        let Filters(filters) = check_filters(&valid).unwrap();
        assert_eq!(
            filters,
            [
                ("a".to_owned(), vec![json!(1)]),
                ("b".to_owned(), vec![json!("x"), json!(true)]),
                ("c".to_owned(), vec![json!("y")]),
                ("d".to_owned(), vec![json!(1), json!(2)]),
            ]
        );
        for (filters, pointer) in [
            (json!({"a": null}), "/filters/a"),
            (json!({"a": []}), "/filters/a"),
            (json!({"a": [[1]]}), "/filters/a"),
            (json!({"a/b": {"$gt": 1}}), "/filters/a~1b"),
            (json!({"a": {"$eq": [1]}}), "/filters/a"),
            (json!({"a": {"$in": 1}}), "/filters/a"),
            (json!({"$and": [1]}), "/filters/$and"),
            (json!({"": 1}), "/filters/"),
            (json!({"a": "x".repeat(1025)}), "/filters/a"),
        ] {
            let faults = check_filters(&object(filters)).unwrap_err();
            assert_eq!(faults[0].pointer, pointer);
        }
    }

    #[test]
    fn rejects_nested_large_and_reserved_metadata() {
        let valid = object(json!({"year": 2026, "tags": ["b", "a", "b"], "none": []}));
        check_metadata(&valid).unwrap();
        let expected = [("tags", "\"a\""), ("tags", "\"b\""), ("year", "2026")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(entries(&valid), expected);
        for (metadata, pointer) in [
            (json!({"document_id": "x"}), "/metadata/document_id"),
            (json!({"deep": {"er": 1}}), "/metadata/deep"),
            (json!({"a": null}), "/metadata/a"),
            (json!({"a": "\u{1}".repeat(200)}), "/metadata/a"),
        ] {
            let faults = check_metadata(&object(metadata)).unwrap_err();
            assert_eq!(faults[0].pointer, pointer);
        }
    }
}
