//! Bindings: `{"$ref": …}` objects in an input, found at validation and replaced before execution.

use serde_json::{Map, Value};

use crate::json::join;
use crate::reference::Reference;

const REF: &str = "$ref";
const DEFAULT: &str = "default";

/// True for an object that has only `$ref` and possibly `default`.
pub fn is_binding(value: &Value) -> bool {
    let Some(object) = value.as_object() else {
        return false;
    };
    object.get(REF).is_some_and(Value::is_string)
        && object.keys().all(|key| key == REF || key == DEFAULT)
}

/// Something in an input that is, or looks like, a binding.
#[derive(Debug)]
pub(crate) enum BindingToken<'a> {
    /// A binding whose reference parses.
    Binding(Reference),
    /// An object with `$ref` that is no binding.
    Malformed(&'a str),
    /// A text with a reference inside.
    Interpolated,
}

/// Visits all bindings of an input with their JSON pointers.
pub(crate) fn visit_input(
    input: &Map<String, Value>,
    at: &str,
    found: &mut impl FnMut(&str, BindingToken<'_>),
) {
    for (key, value) in input {
        // Scalars are skipped before the pointer is built: most inputs have no bindings.
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
            Value::String(text) if !is_interpolation(text) => {}
            value => visit(value, &join(at, key), found),
        }
    }
}

fn visit(value: &Value, at: &str, found: &mut impl FnMut(&str, BindingToken<'_>)) {
    match value {
        Value::Object(object) => {
            let Some(reference) = object.get(REF) else {
                // Members of a binding are not visited: a default is data, not a reference.
                for (key, value) in object {
                    visit(value, &join(at, key), found);
                }
                return;
            };
            let text = reference.as_str().unwrap_or_default();
            match text.parse() {
                // A malformed binding is reported, or it would reach the tool as plain data.
                Ok(reference) if is_binding(value) => found(at, BindingToken::Binding(reference)),
                _ => found(at, BindingToken::Malformed(text)),
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                visit(value, &format!("{at}/{index}"), found);
            }
        }
        Value::String(text) if is_interpolation(text) => found(at, BindingToken::Interpolated),
        _ => {}
    }
}

/// Marks of a reference inside a longer text: `{"$ref": …}`, `{{action:…}}`, `${action:…}`, `$ref:…`.
fn is_interpolation(text: &str) -> bool {
    // Cheap test first: nearly all texts have neither mark.
    if !text.contains(['$', '{']) {
        return false;
    }
    // Models put blanks anywhere inside such marks.
    let squeezed: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let kinds = [
        "action:",
        "md:",
        "input:",
        "runtime://",
        "artifact:",
        "item#",
    ];
    let opened = ["{{", "${", "$ref:", "{\"$ref\":\"", "{'$ref':'"];
    opened.iter().any(|open| {
        squeezed.match_indices(open).any(|(at, _)| {
            kinds
                .iter()
                .any(|kind| squeezed[at + open.len()..].starts_with(kind))
        })
    })
}

/// Replaces every binding by its value, keeping JSON types. Fails with the first reference without value and default.
pub fn bind(
    input: &Map<String, Value>,
    resolve: &mut impl FnMut(&Reference) -> Option<Value>,
) -> Result<Value, Reference> {
    let mut bound = Map::new();
    for (key, value) in input {
        bound.insert(key.clone(), bind_value(value, resolve)?);
    }
    Ok(Value::Object(bound))
}

fn bind_value(
    value: &Value,
    resolve: &mut impl FnMut(&Reference) -> Option<Value>,
) -> Result<Value, Reference> {
    match value {
        Value::Object(object) if is_binding(value) => {
            let text = object.get(REF).and_then(Value::as_str).unwrap_or_default();
            // Unreachable for accepted actions: validation refuses such texts.
            let Ok(reference) = text.parse::<Reference>() else {
                return Ok(value.clone());
            };
            // A default also serves a value that does not exist.
            let bound = resolve(&reference).or_else(|| object.get(DEFAULT).cloned());
            bound.ok_or(reference)
        }
        Value::Object(object) => bind(object, resolve),
        Value::Array(list) => {
            let bound: Result<Vec<_>, _> = list
                .iter()
                .map(|value| bind_value(value, resolve))
                .collect();
            bound.map(Value::Array)
        }
        scalar => Ok(scalar.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn input(value: &Value) -> Map<String, Value> {
        value.as_object().expect("an object").clone()
    }

    #[test]
    fn bindings_keep_json_types() {
        let given =
            input(&json!({"a": {"$ref": "action:x.output#/n"}, "b": [{"$ref": "item"}], "c": "t"}));
        let bound = bind(&given, &mut |reference| match reference {
            Reference::Item(_) => Some(json!({"k": true})),
            _ => Some(json!(3)),
        });
        assert_eq!(bound, Ok(json!({"a": 3, "b": [{"k": true}], "c": "t"})));
    }

    #[test]
    fn missing_values_use_default_or_fail() {
        let with = input(&json!({"a": {"$ref": "item", "default": null}}));
        assert_eq!(bind(&with, &mut |_| None), Ok(json!({"a": null})));
        let without = input(&json!({"a": {"$ref": "item"}}));
        assert_eq!(
            bind(&without, &mut |_| None),
            Err(Reference::Item(String::new()))
        );
    }

    #[test]
    fn finds_references_inside_texts() {
        for (text, is_found) in [
            ("see {{ action:a.output }}", true),
            ("x ${action:a.output}", true),
            (r#"pre {"$ref": "action:a.output"} post"#, true),
            ("costs ${price}", false),
            ("action:a.output", false),
            ("{{name}}", false),
        ] {
            let mut found = false;
            visit(&json!({"t": text}), "", &mut |_, _| found = true);
            assert_eq!(found, is_found, "{text}");
        }
    }
}
