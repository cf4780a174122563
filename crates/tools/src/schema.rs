//! JSON schemas of tool arguments. Schemas and arguments are untrusted, so compilation and validation are
//! bounded.

mod cost_graph;
mod estimate;

use std::sync::Arc;

use domain::json_text::check_json_text;
use jsonschema::{PatternOptions, ValidationError, Validator};
use protocol::JsonObject;
use protocol::admin::{Fault, MAX_FAULTS};
use protocol::peer_text::shown;
use serde_json::Value;
use tokio::sync::Semaphore;

use cost_graph::SchemaGraph;
use estimate::{ValidationCost, estimate};

/// Maximum size of a schema, as JSON text.
pub const SCHEMA_BYTES: usize = 64 * 1024;
/// Backtracking limit of a pattern. Beyond it the pattern does not match.
const BACKTRACKS: usize = 5_000;
/// Maximum size of a compiled pattern, and of its cache.
const PATTERN_BYTES: usize = 128 * 1024;

/// Maximum cost of a check on the calling task: a few milliseconds.
const AT_ONCE: u64 = 20_000;
/// Maximum cost of a check on a blocking thread: a few seconds.
const MAX_COST: u64 = 4_000_000;
/// Maximum number of visits to report all faults, and to report the first. Faults are collected in memory.
const ALL_FAULTS: u64 = 20_000;
const ONE_FAULT: u64 = 200_000;
/// Concurrency limit for long checks.
static LONG_CHECKS: Semaphore = Semaphore::const_new(4);
/// Stack size of the compiler, which recurses into subschemas and references.
const COMPILER_STACK: usize = 16 * 1024 * 1024;

/// A compiled schema. It never fetches references: the library is built without network support.
pub(super) struct Schema(Arc<CompiledSchema>);

struct CompiledSchema {
    validator: Validator,
    cost_graph: SchemaGraph,
}

impl Schema {
    /// Compiles a schema. The error states why it is unusable.
    pub(super) fn compile(schema: &JsonObject) -> Result<Self, String> {
        let schema = Value::Object(schema.clone());
        let text = schema.to_string();
        if text.len() > SCHEMA_BYTES {
            return Err("its schema is larger than 64 KiB".to_owned());
        }
        check_json_text(text.as_bytes()).map_err(|fault| format!("its schema {fault}"))?;
        // The graph has bounds on references and patterns, so it is built before the compiler runs.
        let cost_graph = SchemaGraph::of(&schema).map_err(|why| format!("its schema {why}"))?;
        let validator = if cost_graph.has_references() {
            // References can nest deeper than the stack of a worker thread allows.
            on_a_large_stack(|| build(&schema))?
        } else {
            build(&schema)?
        };
        Ok(Self(Arc::new(CompiledSchema {
            validator,
            cost_graph,
        })))
    }

    /// Number of compiled patterns.
    pub(super) fn patterns(&self) -> usize {
        self.0.cost_graph.patterns()
    }

    /// Validates arguments. Long checks run on a blocking thread.
    pub(super) async fn check(&self, parameters: &JsonObject) -> Result<(), Vec<Fault>> {
        let parameters = Value::Object(parameters.clone());
        if let Some(estimate) = estimate(&self.0.cost_graph, &parameters, AT_ONCE) {
            return self.0.validate(&parameters, estimate);
        }
        // An acquire fails only on a closed semaphore; this one is static. Without a permit the check runs as well.
        let _permit = LONG_CHECKS.acquire().await;
        let compiled = Arc::clone(&self.0);
        let checking = tokio::task::spawn_blocking(move || {
            let estimate = estimate(&compiled.cost_graph, &parameters, MAX_COST);
            estimate.map(|estimate| compiled.validate(&parameters, estimate))
        });
        // A panic of the validator refuses the arguments instead of ending the run.
        let checked = checking.await.unwrap_or_default();
        checked.unwrap_or_else(|| Err(vec![too_much()]))
    }
}

fn build(schema: &Value) -> Result<Validator, String> {
    let patterns = PatternOptions::fancy_regex()
        .backtrack_limit(BACKTRACKS)
        .size_limit(PATTERN_BYTES)
        .dfa_size_limit(PATTERN_BYTES);
    let options = jsonschema::options()
        .with_pattern_options(patterns)
        // The library would compile regular expressions from arguments.
        .with_format("regex", |_: &str| true);
    let built = options.build(schema);
    built.map_err(|error| format!("its schema cannot be used: {}", shown(&error.to_string())))
}

fn on_a_large_stack<T: Send>(
    build: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(COMPILER_STACK);
        let building = thread.spawn_scoped(scope, build);
        let building =
            building.map_err(|_| "there is no thread to compile its schema".to_owned())?;
        let built = building.join();
        // The caller must see the panic of the compiler as its own.
        built.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

impl CompiledSchema {
    fn validate(&self, parameters: &Value, estimate: ValidationCost) -> Result<(), Vec<Fault>> {
        // `is_valid` allocates no error, so most calls pay only for this.
        if self.validator.is_valid(parameters) {
            Ok(())
        } else {
            Err(self.faults(parameters, estimate))
        }
    }

    /// Faults of invalid arguments: all, the first, or a general one, depending on the cost.
    fn faults(&self, parameters: &Value, estimate: ValidationCost) -> Vec<Fault> {
        let faults: Vec<_> = if estimate.visits <= ALL_FAULTS {
            let errors = self.validator.iter_errors(parameters).take(MAX_FAULTS);
            errors.map(|error| fault(&error)).collect()
        } else if estimate.visits <= ONE_FAULT {
            let error = self.validator.validate(parameters).err();
            error.iter().map(fault).collect()
        } else {
            Vec::new()
        };
        if faults.is_empty() {
            let message = "do not fit the tool's schema, and are too many to say where";
            return vec![Fault::new("/parameters", message)];
        }
        faults
    }
}

fn fault(error: &ValidationError<'_>) -> Fault {
    let pointer = format!("/parameters{}", error.instance_path().as_str());
    // `masked` keeps argument values, which may be secret, out of errors and logs.
    Fault::new(pointer, shown(&error.masked().to_string()))
}

fn too_much() -> Fault {
    let message =
        "take too long to validate against the tool's schema; send fewer and shorter values";
    Fault::new("/parameters", message)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::*;

    fn object(value: &Value) -> JsonObject {
        value.as_object().unwrap().clone()
    }

    async fn pointers(schema: &Value, parameters: &Value) -> Vec<String> {
        let schema = Schema::compile(&object(schema)).unwrap();
        let faults = schema.check(&object(parameters)).await.err();
        let faults = faults.unwrap_or_default().into_iter();
        faults.map(|fault| fault.pointer).collect()
    }

    #[tokio::test]
    async fn faults_point_to_parameters() {
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
            assert_eq!(
                pointers(&schema, &parameters).await,
                expected,
                "{parameters}"
            );
        }
    }

    #[tokio::test]
    async fn large_parameters_report_the_first_fault() {
        let schema =
            json!({"properties": {"b": {"items": {"type": "string", "pattern": "^[a-z]*$"}}}});
        let mut items = vec![json!("x"); 20_000];
        assert!(pointers(&schema, &json!({"b": items})).await.is_empty());
        items.truncate(2_000);
        items.push(json!(1));
        let expected = ["/parameters/b/2000"];
        assert_eq!(pointers(&schema, &json!({"b": items})).await, expected);
    }

    #[tokio::test]
    async fn faults_do_not_repeat_values() {
        let schema = Schema::compile(&object(&json!({"properties": {"a": {"type": "integer"}}})));
        let faults = schema
            .unwrap()
            .check(&object(&json!({"a": "hunter2"})))
            .await;
        let message = faults.unwrap_err()[0].message.clone();
        assert!(!message.contains("hunter2"), "{message}");
    }

    #[test]
    fn schemas_never_trigger_requests() {
        for reference in [
            "http://127.0.0.1:1/a.json",
            "file:///etc/passwd",
            "https://a.example/x",
        ] {
            let schema = object(&json!({"properties": {"a": {"$ref": reference}}}));
            assert!(Schema::compile(&schema).is_err(), "{reference}");
        }
    }

    #[tokio::test]
    async fn aborts_catastrophic_patterns() {
        let schema =
            json!({"properties": {"a": {"type": "string", "pattern": "^(?=(a+)+$)(a|a)*b$"}}});
        for (length, pointer) in [(4_000, "/parameters/a"), (50_000, "/parameters")] {
            let parameters = json!({"a": format!("{}!", "a".repeat(length))});
            assert_eq!(pointers(&schema, &parameters).await, [pointer]);
        }
    }

    #[test]
    fn refuses_oversized_and_invalid_schemas() {
        let large = json!({"description": "x".repeat(SCHEMA_BYTES)});
        assert!(Schema::compile(&object(&large)).is_err());
        assert!(Schema::compile(&object(&json!({"type": "no-type"}))).is_err());
        assert!(Schema::compile(&object(&json!({"title": "\u{0}"}))).is_err());
    }

    /// Each definition refers twice to the next one.
    fn doubling(levels: usize, combine: &str) -> Value {
        let mut definitions = serde_json::Map::new();
        for level in 0..levels {
            let next = json!({"$ref": format!("#/$defs/a{}", level + 1)});
            definitions.insert(format!("a{level}"), json!({combine: [next, next]}));
        }
        definitions.insert(
            format!("a{levels}"),
            json!({"type": "object", "maxProperties": 0}),
        );
        json!({"$ref": "#/$defs/a0", "$defs": definitions})
    }

    #[tokio::test]
    async fn aborts_exponential_schemas() {
        let begun = Instant::now();
        let twice = json!({"properties": {"a": {"$ref": "#"}}});
        let recursive = json!({"allOf": [twice, twice]});
        let mut nested = json!({});
        for _ in 0..60 {
            nested = json!({"a": nested});
        }
        let mut unevaluated = doubling(40, "allOf");
        unevaluated["unevaluatedProperties"] = json!(false);
        assert!(Schema::compile(&object(&unevaluated)).is_err());
        for (schema, parameters) in [
            (doubling(40, "allOf"), &json!({})),
            (doubling(40, "oneOf"), &json!({})),
            (doubling(40, "anyOf"), &json!({"a": 1})),
            (recursive, &nested),
        ] {
            // The result may be known after fewer visits.
            let pointers = pointers(&schema, parameters).await;
            assert!(
                pointers.iter().all(|pointer| pointer == "/parameters"),
                "{pointers:?}"
            );
        }
        assert!(begun.elapsed() < Duration::from_mins(1));
    }

    #[tokio::test]
    async fn deep_schemas_do_not_overflow_the_stack() {
        for draft in [
            "https://json-schema.org/draft/2020-12/schema",
            "http://json-schema.org/draft-07/schema#",
        ] {
            for (length, levels, expected) in [
                (100, 0, vec![]),
                (100, 60, vec!["/parameters"]),
                (500, 0, vec!["/parameters"]),
            ] {
                let mut definitions = serde_json::Map::new();
                for level in 0..length {
                    let next = json!({"$ref": format!("#/definitions/a{}", level + 1)});
                    definitions.insert(format!("a{level}"), next);
                }
                let last = json!({"properties": {"a": {"$ref": "#/definitions/a0"}}});
                definitions.insert(format!("a{length}"), last);
                let schema = json!({"$schema": draft, "allOf": [{"$ref": "#/definitions/a0"}], "definitions": definitions});
                let mut parameters = json!({});
                for _ in 0..levels {
                    parameters = json!({"a": parameters});
                }
                assert_eq!(pointers(&schema, &parameters).await, expected);
            }
        }
    }

    #[tokio::test]
    async fn recursive_schemas_validate_nested_values() {
        let either = |name: &str| json!({"type": "object", "required": [name], "properties": {name: {"items": {"$ref": "#/$defs/filter"}}}});
        let schema = json!({"$ref": "#/$defs/filter", "$defs": {"filter": {
            "anyOf": [either("and"), either("or"), {"type": "object", "required": ["is"], "properties": {"is": {"type": "string"}}}]}}});
        for (leaf, expected) in [
            (json!({"is": "x"}), vec![]),
            (json!({"is": 1}), vec!["/parameters"]),
        ] {
            let mut filter = leaf;
            for _ in 0..10 {
                filter = json!({"and": [{"or": [filter, {"is": "y"}]}]});
            }
            assert_eq!(pointers(&schema, &filter).await, expected);
        }
    }

    #[test]
    fn nested_references_compile_or_are_refused() {
        let mut text = String::from(r##"{"$ref":"#/$defs/a0","$defs":{"##);
        for level in 0..40 {
            let (open, close) = (r#"{"not":"#.repeat(55), "}".repeat(55));
            let next = level + 1;
            write!(
                text,
                r##""a{level}":{open}{{"$ref":"#/$defs/a{next}"}}{close},"##
            )
            .unwrap();
        }
        text.push_str(r#""a40":{}}}"#);
        let schema: Value = serde_json::from_str(&text).unwrap();
        let _ = Schema::compile(&object(&schema));
    }

    #[tokio::test]
    async fn limits_number_and_size_of_patterns() {
        let begun = Instant::now();
        let patterns = |count: usize, pattern: &str| {
            let properties = (0..count).map(|at| {
                (
                    format!("p{at}"),
                    json!({"pattern": pattern.replace('@', &at.to_string())}),
                )
            });
            json!({"properties": properties.collect::<serde_json::Map<_, _>>()})
        };
        for refused in [
            patterns(65, "^x@$"),
            patterns(1, r"\p{L}{90}x1"),
            patterns(64, r"\p{L}{90}x@"),
            patterns(2_000, r"\p{L}{90}x@"),
            patterns(30, r"(?=a)(?=b)(?=@)"),
        ] {
            assert!(Schema::compile(&object(&refused)).is_err());
        }
        for taken in [
            patterns(64, r"^[a-zA-Z0-9_-]{1,64}$"),
            patterns(16, r"^(?!.*secret).{1,80}@$"),
            patterns(1, r"^\p{L}[\p{L}\p{N} ]*$"),
            patterns(
                1,
                r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
            ),
        ] {
            let compiled = Schema::compile(&object(&taken));
            assert!(compiled.is_ok(), "{:?}", compiled.err());
        }
        assert!(begun.elapsed() < Duration::from_mins(1));
    }
}
