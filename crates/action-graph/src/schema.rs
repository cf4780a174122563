//! Argument checks against the common part of JSON Schema. Bindings count as values of any type.
//!
//! Unknown keywords pass: the host checks bound arguments with its full validator before it calls a tool.

use serde_json::{Map, Value};

use crate::bind::is_binding;
use crate::json::{canonical, join, type_name};

/// Violations that are reported of one value.
const REPORTED: usize = 8;
/// Nesting of schemas that is followed.
const DEPTH: usize = 32;
/// Schema nodes that one check visits.
const VISITS: usize = 10_000;

/// A value that does not fit its schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Place in the value.
    pub pointer: String,
    /// Description of the fault.
    pub message: String,
}

/// Checks `value` against `schema`.
pub fn check(schema: &Value, value: &Value) -> Vec<Violation> {
    violations(schema, value, false)
}

/// Like `check`, but bindings such as `{"$ref": …}` fit everything.
pub fn check_with_bindings(schema: &Value, value: &Value) -> Vec<Violation> {
    violations(schema, value, true)
}

fn violations(schema: &Value, value: &Value, bindings: bool) -> Vec<Violation> {
    let mut check = SchemaCheck {
        root: schema,
        bindings,
        visits: 0,
        found: Vec::new(),
    };
    check.value(schema, value, "", 0);
    check.found
}

/// Test for a number that violates a bound.
type IsOutside = fn(f64, f64) -> bool;

struct SchemaCheck<'a> {
    root: &'a Value,
    bindings: bool,
    visits: usize,
    found: Vec<Violation>,
}

impl<'a> SchemaCheck<'a> {
    fn add(&mut self, pointer: &str, message: String) {
        if self.found.len() < REPORTED {
            self.found.push(Violation {
                pointer: pointer.to_owned(),
                message,
            });
        }
    }

    fn value(&mut self, schema: &'a Value, value: &Value, at: &str, depth: usize) {
        self.visits += 1;
        let Some(schema) = schema.as_object() else {
            // `true` and other values allow everything; the host has the full validator.
            if schema == &Value::Bool(false) {
                self.add(at, "no value is allowed here".to_owned());
            }
            return;
        };
        let is_free = self.bindings && is_binding(value);
        // Bounded: a schema may refer to itself.
        if depth > DEPTH || self.visits > VISITS || is_free {
            return;
        }
        // Local references only; others are left to the host's validator.
        if let Some(target) = schema.get("$ref").and_then(Value::as_str)
            && let Some(target) = target
                .strip_prefix('#')
                .and_then(|at| self.root.pointer(at))
        {
            self.value(target, value, at, depth + 1);
        }
        self.types(schema, value, at);
        self.constants(schema, value, at);
        self.combined(schema, value, at, depth);
        match value {
            Value::Object(object) => self.object(schema, object, at, depth),
            Value::Array(list) => self.array(schema, list, at, depth),
            Value::String(text) => {
                self.length(schema, ["minLength", "maxLength"], text.chars().count(), at);
            }
            Value::Number(number) => self.number(schema, number.as_f64(), at),
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn types(&mut self, schema: &Map<String, Value>, value: &Value, at: &str) {
        let names: Vec<&str> = match schema.get("type") {
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ => return,
        };
        let fits = |name: &&str| match *name {
            // `1.0` is an integer in JSON Schema.
            "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
            name => name == type_name(value),
        };
        if !names.iter().any(fits) {
            let found = type_name(value);
            self.add(
                at,
                format!("expected {}, found {found}", names.join(" or ")),
            );
        }
    }

    fn constants(&mut self, schema: &Map<String, Value>, value: &Value, at: &str) {
        if let Some(Value::Array(allowed)) = schema.get("enum")
            && !allowed.contains(value)
        {
            let allowed: Vec<_> = allowed.iter().take(12).map(canonical).collect();
            self.add(at, format!("expected one of {}", allowed.join(", ")));
        }
        if let Some(only) = schema.get("const")
            && only != value
        {
            self.add(at, format!("expected {}", canonical(only)));
        }
    }

    fn combined(&mut self, schema: &'a Map<String, Value>, value: &Value, at: &str, depth: usize) {
        let list = |name| schema.get(name).and_then(Value::as_array);
        for inner in list("allOf").into_iter().flatten() {
            self.value(inner, value, at, depth + 1);
        }
        for name in ["anyOf", "oneOf"] {
            let Some(choices) = list(name) else { continue };
            // Violations of one alternative say nothing while another fits.
            let before = self.found.len();
            let fits = choices.iter().any(|choice| {
                self.value(choice, value, at, depth + 1);
                let fits = self.found.len() == before;
                self.found.truncate(before);
                fits
            });
            if !fits && !choices.is_empty() {
                self.add(at, format!("fits none of the {} forms", choices.len()));
            }
        }
    }

    fn object(
        &mut self,
        schema: &'a Map<String, Value>,
        object: &Map<String, Value>,
        at: &str,
        depth: usize,
    ) {
        let required = schema.get("required").and_then(Value::as_array);
        for name in required.into_iter().flatten().filter_map(Value::as_str) {
            if !object.contains_key(name) {
                self.add(&join(at, name), format!("`{name}` is missing"));
            }
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        let others = schema.get("additionalProperties");
        for (name, value) in object {
            let at = join(at, name);
            // Own properties take precedence over `additionalProperties`.
            let own = properties.and_then(|properties| properties.get(name));
            match own.or(others) {
                Some(Value::Bool(false)) if own.is_none() => {
                    self.add(&at, format!("`{name}` is no argument"));
                }
                Some(inner) => self.value(inner, value, &at, depth + 1),
                None => {}
            }
        }
        self.length(schema, ["minProperties", "maxProperties"], object.len(), at);
    }

    fn array(&mut self, schema: &'a Map<String, Value>, list: &[Value], at: &str, depth: usize) {
        if let Some(items) = schema.get("items").filter(|items| !items.is_array()) {
            for (index, value) in list.iter().enumerate() {
                self.value(items, value, &format!("{at}/{index}"), depth + 1);
            }
        }
        self.length(schema, ["minItems", "maxItems"], list.len(), at);
    }

    fn length(&mut self, schema: &Map<String, Value>, names: [&str; 2], length: usize, at: &str) {
        let bound = |name| schema.get(name).and_then(Value::as_u64);
        let length = length as u64;
        if let Some(min) = bound(names[0]).filter(|min| length < *min) {
            self.add(at, format!("has {length}, needs at least {min}"));
        }
        if let Some(max) = bound(names[1]).filter(|max| length > *max) {
            self.add(at, format!("has {length}, takes at most {max}"));
        }
    }

    fn number(&mut self, schema: &Map<String, Value>, number: Option<f64>, at: &str) {
        let Some(number) = number else { return };
        let bound = |name| schema.get(name).and_then(Value::as_f64);
        let tests: [(&str, IsOutside, &str); 4] = [
            ("minimum", |a, b| a < b, "at least"),
            ("maximum", |a, b| a > b, "at most"),
            ("exclusiveMinimum", |a, b| a <= b, "more than"),
            ("exclusiveMaximum", |a, b| a >= b, "less than"),
        ];
        for (name, is_outside, word) in tests {
            if let Some(limit) = bound(name).filter(|limit| is_outside(number, *limit)) {
                self.add(at, format!("{number} must be {word} {limit}"));
            }
        }
    }
}

/// The signature of a schema in a line: `path: string, depth?: integer`.
pub fn signature(schema: &Value) -> String {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return String::new();
    };
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = |name: &str| {
        let mut names = required.into_iter().flatten().filter_map(Value::as_str);
        names.any(|one| one == name)
    };
    let mut names: Vec<_> = properties.iter().collect();
    // Required names first, then by name: the signature is stable.
    names.sort_by_key(|(name, _)| (!is_required(name), *name));
    let parts = names.into_iter().map(|(name, inner)| {
        let mark = if is_required(name) { "" } else { "?" };
        format!("{name}{mark}: {}", type_word(inner))
    });
    parts.collect::<Vec<_>>().join(", ")
}

fn type_word(schema: &Value) -> String {
    if let Some(Value::Array(allowed)) = schema.get("enum") {
        let words: Vec<_> = allowed.iter().take(12).map(canonical).collect();
        return words.join("|");
    }
    match schema.get("type") {
        Some(Value::String(name)) if name == "array" => {
            let items = schema.get("items").map_or("any".to_owned(), type_word);
            format!("[{items}]")
        }
        Some(Value::String(name)) => name.clone(),
        Some(Value::Array(names)) => {
            let names: Vec<_> = names.iter().filter_map(Value::as_str).collect();
            names.join("|")
        }
        _ => "any".to_owned(),
    }
}

/// True if a signature hides structure: objects or lists of objects inside.
pub fn is_nested(schema: &Value) -> bool {
    let properties = schema.get("properties").and_then(Value::as_object);
    properties.into_iter().flatten().any(|(_, inner)| {
        inner.get("properties").is_some()
            || inner
                .get("items")
                .is_some_and(|items| items.get("properties").is_some())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds_each_kind_of_violation() {
        let schema = json!({"type": "object", "required": ["path"], "additionalProperties": false, "properties": {
            "path": {"type": "string", "minLength": 2}, "n": {"type": "integer", "maximum": 5},
            "kind": {"enum": ["a", "b"]}, "list": {"type": "array", "items": {"$ref": "#/$defs/one"}, "maxItems": 2},
            "or": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
            "$defs": {"one": {"type": "number"}}});
        for (value, pointers) in [
            (
                json!({"path": "ab", "n": 5, "kind": "a", "list": [1], "or": null}),
                vec![],
            ),
            (json!({}), vec!["/path"]),
            (json!({"path": 1}), vec!["/path"]),
            (json!({"path": "a"}), vec!["/path"]),
            (json!({"path": "ab", "n": 5.5}), vec!["/n", "/n"]),
            (json!({"path": "ab", "kind": "c"}), vec!["/kind"]),
            (
                json!({"path": "ab", "list": [1, "x", 2]}),
                vec!["/list/1", "/list"],
            ),
            (json!({"path": "ab", "or": 1}), vec!["/or"]),
            (json!({"path": "ab", "extra": 1}), vec!["/extra"]),
            (json!([]), vec![""]),
        ] {
            let found = check_with_bindings(&schema, &value);
            let found: Vec<_> = found.iter().map(|one| one.pointer.as_str()).collect();
            assert_eq!(found, pointers, "{value}");
        }
    }

    #[test]
    fn bindings_fit_every_type_until_bound() {
        let schema = json!({"properties": {"path": {"type": "string"}}});
        let value = json!({"path": {"$ref": "action:a.output"}});
        assert!(check_with_bindings(&schema, &value).is_empty());
        assert_eq!(check(&schema, &value).len(), 1);
    }

    #[test]
    fn recursive_schemas_end() {
        let schema = json!({"$ref": "#"});
        assert!(check(&schema, &json!({"a": 1})).is_empty());
        let wide = json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]});
        check(&wide, &json!(1));
    }

    #[test]
    fn signature_lists_required_arguments_first() {
        let schema = json!({"properties": {"a": {"type": "integer"}, "z": {"type": "array", "items": {"type": "string"}}}, "required": ["z"]});
        assert_eq!(signature(&schema), "z: [string], a?: integer");
    }
}
