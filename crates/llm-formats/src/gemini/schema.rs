//! Google's schemas: JSON schemas with types in capitals and numbers as texts.

use serde_json::{Map, Value, json};

/// Members with a number, which may be a text.
const NUMBERS: [&str; 8] = [
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "minProperties",
    "maxProperties",
    "minimum",
    "maximum",
];
/// Members that other models do not read.
const UNREAD: [&str; 4] = [
    "nullable",
    "propertyOrdering",
    "property_ordering",
    "example",
];

/// Converts one of Google's schemas to a JSON schema. A JSON schema stays one.
pub(super) fn json_schema(schema: &Value) -> Value {
    let Some(members) = schema.as_object() else {
        return schema.clone();
    };
    let is_nullable = members.get("nullable") == Some(&Value::Bool(true));
    let mut converted = Map::new();
    for (name, value) in members {
        if UNREAD.contains(&name.as_str()) {
            continue;
        }
        let name = camel(name);
        let value = match (name.as_str(), value) {
            ("type", Value::String(kind)) => type_of(kind, is_nullable),
            // Keys of these are names of properties, not members of a schema.
            ("properties" | "$defs" | "defs", Value::Object(schemas)) => schemas
                .iter()
                .map(|(name, schema)| (name.clone(), json_schema(schema)))
                .collect(),
            ("items" | "additionalProperties", schema) => json_schema(schema),
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(schemas)) => {
                schemas.iter().map(json_schema).collect()
            }
            (name, Value::String(number)) if NUMBERS.contains(&name) => number
                .parse::<serde_json::Number>()
                .map_or_else(|_| json!(number), Value::Number),
            (_, value) => value.clone(),
        };
        converted.insert(name, value);
    }
    Value::Object(converted)
}

/// A type is in capitals; unspecified ones are absent.
fn type_of(kind: &str, is_nullable: bool) -> Value {
    let kind = kind.to_ascii_lowercase();
    if is_nullable && kind != "null" {
        return json!([kind, "null"]);
    }
    json!(kind)
}

/// The spelling of JSON schemas for a member in snake case. Others stay.
fn camel(name: &str) -> String {
    const SNAKE: [(&str, &str); 12] = [
        ("any_of", "anyOf"),
        ("min_items", "minItems"),
        ("max_items", "maxItems"),
        ("min_length", "minLength"),
        ("max_length", "maxLength"),
        ("min_properties", "minProperties"),
        ("max_properties", "maxProperties"),
        ("additional_properties", "additionalProperties"),
        ("prefix_items", "prefixItems"),
        ("one_of", "oneOf"),
        ("defs", "$defs"),
        ("ref", "$ref"),
    ];
    let found = SNAKE.iter().find(|(snake, _)| *snake == name);
    found.map_or(name, |(_, camel)| *camel).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_types_and_numbers() {
        let google = json!({"type": "OBJECT", "propertyOrdering": ["type"], "required": ["type"], "properties": {
            "type": {"type": "STRING", "nullable": true, "enum": ["A"], "example": "A"},
            "nullable": {"type": "ARRAY", "minItems": "1", "max_items": "2", "items": {"type": "INTEGER"}},
            "any": {"any_of": [{"type": "NUMBER", "minimum": 0.5}, {"type": "NULL"}]}}});
        let converted = json!({"type": "object", "required": ["type"], "properties": {
            "type": {"type": ["string", "null"], "enum": ["A"]},
            "nullable": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "integer"}},
            "any": {"anyOf": [{"type": "number", "minimum": 0.5}, {"type": "null"}]}}});
        assert_eq!(json_schema(&google), converted);
        assert_eq!(json_schema(&converted), converted);
    }
}
