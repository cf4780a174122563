//! The schema of a tool's parameters, ready to judge them.

use domain::json_text::check_json_text;
use jsonschema::{PatternOptions, Validator};
use protocol::JsonObject;
use protocol::admin::Fault;
use serde_json::Value;

/// The largest schema of a tool, as JSON text.
pub const SCHEMA_BYTES: usize = 64 * 1024;
/// Faults that are named at once.
const MOST_FAULTS: usize = 8;
const MESSAGE_CHARS: usize = 300;
/// A pattern that wants more steps than this matches nothing.
const BACKTRACKS: usize = 100_000;

/// A schema that was compiled. It never fetches anything: the library is built without.
pub(super) struct Schema(Validator);

impl Schema {
    /// Compiles a schema; says why it cannot be used.
    pub(super) fn compile(schema: &JsonObject) -> Result<Self, String> {
        let schema = Value::Object(schema.clone());
        let text = schema.to_string();
        if text.len() > SCHEMA_BYTES {
            return Err("its schema is larger than 64 KiB".to_owned());
        }
        check_json_text(text.as_bytes()).map_err(|fault| format!("its schema {fault}"))?;
        let patterns = PatternOptions::fancy_regex().backtrack_limit(BACKTRACKS);
        let options = jsonschema::options().with_pattern_options(patterns);
        let compiled = options.build(&schema);
        let fault = |error: jsonschema::ValidationError<'_>| {
            format!("its schema cannot be used: {}", cut(&error.to_string()))
        };
        compiled.map(Self).map_err(fault)
    }

    /// Judges parameters; pointers begin at them.
    pub(super) fn check(&self, parameters: &JsonObject) -> Result<(), Vec<Fault>> {
        let parameters = Value::Object(parameters.clone());
        let faults: Vec<_> = self
            .0
            .iter_errors(&parameters)
            .take(MOST_FAULTS)
            .map(|error| {
                let pointer = format!("/parameters{}", error.instance_path().as_str());
                Fault::new(pointer, cut(&error.masked().to_string()))
            })
            .collect();
        if faults.is_empty() {
            Ok(())
        } else {
            Err(faults)
        }
    }
}

fn cut(text: &str) -> String {
    text.chars().take(MESSAGE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: &Value) -> JsonObject {
        value.as_object().unwrap().clone()
    }

    fn pointers(schema: &Value, parameters: &Value) -> Vec<String> {
        let schema = Schema::compile(&object(schema)).unwrap();
        let faults = schema.check(&object(parameters)).err().unwrap_or_default();
        faults.into_iter().map(|fault| fault.pointer).collect()
    }

    #[test]
    fn faults_are_named_by_the_pointer_of_the_parameter() {
        let schema = json!({"type": "object", "required": ["a"], "additionalProperties": false, "properties": {
            "a": {"type": "integer", "minimum": 1}, "b": {"type": "array", "items": {"type": "string"}}}});
        for (parameters, expected) in [
            (json!({"a": 1}), vec![]),
            (json!({"a": 1, "b": ["x"]}), vec![]),
            (json!({}), vec!["/parameters"]),
            (json!({"a": 0}), vec!["/parameters/a"]),
            (json!({"a": 1, "b": ["x", 2]}), vec!["/parameters/b/1"]),
            (json!({"a": 1, "c": 1}), vec!["/parameters"]),
        ] {
            assert_eq!(pointers(&schema, &parameters), expected, "{parameters}");
        }
    }

    #[test]
    fn a_fault_does_not_repeat_what_was_sent() {
        let schema = Schema::compile(&object(&json!({"properties": {"a": {"type": "integer"}}})));
        let faults = schema.unwrap().check(&object(&json!({"a": "hunter2"})));
        let message = faults.unwrap_err()[0].message.clone();
        assert!(!message.contains("hunter2"), "{message}");
    }

    #[test]
    fn no_schema_makes_the_gateway_fetch_anything() {
        for reference in [
            "http://127.0.0.1:1/a.json",
            "file:///etc/passwd",
            "https://a.example/x",
        ] {
            let schema = object(&json!({"properties": {"a": {"$ref": reference}}}));
            assert!(Schema::compile(&schema).is_err(), "{reference}");
        }
    }

    #[test]
    fn a_pattern_that_takes_for_ever_is_given_up() {
        let schema =
            json!({"properties": {"a": {"type": "string", "pattern": "^(?=(a+)+$)(a|a)*b$"}}});
        let parameters = json!({"a": format!("{}!", "a".repeat(50_000))});
        assert_eq!(pointers(&schema, &parameters), ["/parameters/a"]);
    }

    #[test]
    fn a_schema_is_bounded_and_sound() {
        let large = json!({"description": "x".repeat(SCHEMA_BYTES)});
        assert!(Schema::compile(&object(&large)).is_err());
        assert!(Schema::compile(&object(&json!({"type": "no-type"}))).is_err());
        assert!(Schema::compile(&object(&json!({"title": "\u{0}"}))).is_err());
    }
}
