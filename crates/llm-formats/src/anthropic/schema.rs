//! Schemas of answers. The API accepts a subset of JSON Schema and rejects the rest, so other rules become words.

use protocol::JsonObject;
use serde_json::{Value, json};

/// Rules that the API rejects.
const UNSUPPORTED: [&str; 13] = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minProperties",
    "maxProperties",
    "patternProperties",
];
/// Members with one schema.
const SCHEMAS: [&str; 1] = ["items"];
/// Members with a list of schemas. `oneOf` becomes `anyOf`.
const LISTS: [&str; 3] = ["anyOf", "oneOf", "allOf"];
/// Members with schemas by name.
const MAPS: [&str; 3] = ["properties", "$defs", "definitions"];

/// The schema with supported rules. Objects are closed, and other rules are in the descriptions.
pub(super) fn supported(schema: &Value) -> Value {
    let Some(members) = schema.as_object() else {
        return schema.clone();
    };
    let (mut accepted, mut rules) = (JsonObject::new(), Vec::new());
    for (name, value) in members {
        let name = name.as_str();
        if UNSUPPORTED.contains(&name) {
            // At most one item may be required.
            if name == "minItems" && (value == 0 || value == 1) {
                accepted.insert(name.to_owned(), value.clone());
            } else {
                rules.push(format!("{name}: {value}"));
            }
            continue;
        }
        let value = match value {
            Value::Array(list) if LISTS.contains(&name) => list.iter().map(supported).collect(),
            Value::Object(map) if MAPS.contains(&name) => {
                let each = map
                    .iter()
                    .map(|(key, value)| (key.clone(), supported(value)));
                Value::Object(each.collect())
            }
            value if SCHEMAS.contains(&name) => supported(value),
            value => value.clone(),
        };
        let name = if name == "oneOf" { "anyOf" } else { name };
        accepted.insert(name.to_owned(), value);
    }
    // The API requires closed objects.
    if accepted.get("type").is_some_and(is_object) || accepted.contains_key("properties") {
        accepted.insert("additionalProperties".to_owned(), json!(false));
    }
    if !rules.is_empty() {
        let description = accepted.get("description").and_then(Value::as_str);
        let description = description.map(|description| format!("{description} "));
        let described = format!("{}({})", description.unwrap_or_default(), rules.join(", "));
        accepted.insert("description".to_owned(), json!(described));
    }
    Value::Object(accepted)
}

fn is_object(kind: &Value) -> bool {
    let kinds = kind.as_array().map(Vec::as_slice);
    kind == "object" || kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind == "object"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_unsupported_rules_to_descriptions() {
        for (schema, expected) in [
            (
                json!({"type": "object", "properties": {"minimum": {"type": "integer", "minimum": 1, "description": "Age."}},
                    "required": ["minimum"]}),
                json!({"type": "object", "properties": {"minimum": {"type": "integer", "description": "Age. (minimum: 1)"}},
                    "required": ["minimum"], "additionalProperties": false}),
            ),
            (
                json!({"type": "array", "minItems": 1, "maxItems": 3, "items": {"$ref": "#/$defs/a"},
                    "$defs": {"a": {"type": ["object", "null"], "additionalProperties": true}}}),
                json!({"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/a"}, "description": "(maxItems: 3)",
                    "$defs": {"a": {"type": ["object", "null"], "additionalProperties": false}}}),
            ),
            (
                json!({"oneOf": [{"type": "string", "maxLength": 2}, {"const": 1}]}),
                json!({"anyOf": [{"type": "string", "description": "(maxLength: 2)"}, {"const": 1}]}),
            ),
            (json!(true), json!(true)),
        ] {
            assert_eq!(supported(&schema), expected, "{schema}");
        }
    }
}
