//! The committed OpenAPI documents match the output of the binary.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use protocol::result::{GATEWAY_TYPES, ResultType};
use serde_json::{Value, json};

#[track_caller]
fn check(document: &str) {
    let printed = Command::new(env!("CARGO_BIN_EXE_runnel"))
        .args(["openapi", document])
        .output()
        .expect("the binary starts");
    let stderr = String::from_utf8_lossy(&printed.stderr);
    assert!(printed.status.success(), "{}: {stderr}", printed.status);
    let printed = String::from_utf8(printed.stdout).expect("JSON is UTF-8");

    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../openapi")
        .join(format!("{document}.json"));
    let committed = std::fs::read_to_string(file).unwrap_or_default();
    if committed == printed {
        return;
    }
    let same = committed.lines().zip(printed.lines());
    let line = same
        .take_while(|(committed, printed)| committed == printed)
        .count();
    panic!(
        "openapi/{document}.json differs from the document of the code, from line {} on:\n\
         committed: {}\n  printed: {}\n\
         if the change is meant: cargo run -- openapi {document} > openapi/{document}.json",
        line + 1,
        committed.lines().nth(line).unwrap_or("(nothing)"),
        printed.lines().nth(line).unwrap_or("(nothing)"),
    );
}

#[test]
fn committed_gateway_document_matches_binary() {
    check("gateway");
}

#[test]
fn committed_runner_document_matches_binary() {
    check("runner");
}

/// Agent configuration is part of the admin API only.
#[test]
fn runner_document_has_no_agent_configuration() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi");
    let read = |name: &str| std::fs::read_to_string(file.join(name)).expect("it is committed");
    let (gateway, runner) = (read("gateway.json"), read("runner.json"));
    for name in ["resource_policy", "state_policy", "concurrency"] {
        assert!(gateway.contains(name), "{name}");
        assert!(!runner.contains(name), "{name}");
    }
}

/// A document has one schema per name, so types with equal names would overwrite each other.
#[test]
fn schema_types_have_unique_names() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut types = BTreeMap::new();
    for directory in ["crates", "services/gateway/src"] {
        collect_types(&root.join(directory), &mut types);
    }
    assert!(types.len() > 100, "most types were not found");
    // `$name`: a macro takes the type names from its calls.
    types.retain(|name, files| files.len() > 1 && !name.starts_with('$'));
    assert_eq!(types, BTreeMap::new());
}

/// Collects the types that derive a schema, with their files.
fn collect_types(directory: &Path, types: &mut BTreeMap<String, Vec<String>>) {
    for entry in std::fs::read_dir(directory).expect("it can be read") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() {
            collect_types(&path, types);
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("source is text");
        for part in text.split("ToSchema)").skip(1) {
            let words: Vec<_> = part.split_whitespace().take(40).collect();
            let named = words
                .windows(2)
                .find(|pair| matches!(pair[0], "struct" | "enum"));
            let name = named.map(|pair| pair[1].split(['<', '(', ';']).next().unwrap_or_default());
            let file = path.display().to_string();
            let file = file.rsplit_once("/src/").map_or("", |(_, file)| file);
            types
                .entry(name.unwrap_or_default().to_owned())
                .or_default()
                .push(file.to_owned());
        }
    }
}

/// A committed document.
fn committed(name: &str) -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi");
    let document = std::fs::read_to_string(file.join(name)).expect("it is committed");
    serde_json::from_str(&document).expect("it is JSON")
}

/// Generated clients narrow a union by the `type` of an event.
#[test]
fn each_result_type_selects_its_payload_schema() {
    let own = GATEWAY_TYPES;
    for (document, union, own) in [
        ("gateway.json", "AgentRunEvent", &own[..]),
        ("gateway.json", "AgentRunResult", &own[..0]),
        ("runner.json", "AgentRunResult", &own[..0]),
    ] {
        let document = committed(document);
        let schemas = &document["components"]["schemas"];
        let union = &schemas[union];
        assert_eq!(union["discriminator"]["propertyName"], "type");
        let mapping = union["discriminator"]["mapping"].as_object().unwrap();
        let types: BTreeSet<_> = mapping.keys().map(String::as_str).collect();
        let kinds = ResultType::ALL.iter().map(|kind| kind.as_str());
        let kinds = kinds.chain(own.iter().copied());
        assert_eq!(types, kinds.collect::<BTreeSet<_>>());
        let members = union["oneOf"].as_array().unwrap();
        let members: BTreeSet<_> = members.iter().map(|one| one["$ref"].as_str()).collect();
        let mapped: BTreeSet<_> = mapping.values().map(Value::as_str).collect();
        assert_eq!(members, mapped);
        for (kind, member) in mapping {
            let member = document.pointer(&member.as_str().unwrap()[1..]).unwrap();
            assert_eq!(member["properties"]["type"]["enum"], json!([kind]));
            let payload = member["properties"]["data"]["$ref"].as_str().unwrap();
            let payload = document.pointer(&payload[1..]);
            assert!(payload.is_some_and(|payload| payload["properties"].is_object()));
        }
    }
}

/// Generators make a property with a default required.
#[test]
fn schemas_have_no_defaults() {
    for name in ["gateway.json", "runner.json"] {
        let document = committed(name);
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let found = schemas.iter().filter(|(_, schema)| has_default(schema));
        let found: Vec<_> = found.map(|(name, _)| name).collect();
        assert!(found.is_empty(), "{name}: {found:?}");
    }
}

fn has_default(schema: &Value) -> bool {
    match schema {
        Value::Array(several) => several.iter().any(has_default),
        Value::Object(members) => members.iter().any(|(name, member)| match name.as_str() {
            // A property may be named `default`.
            "properties" => member
                .as_object()
                .is_some_and(|some| some.values().any(has_default)),
            "default" => true,
            _ => has_default(member),
        }),
        _ => false,
    }
}

/// A generator decides by the operation whether the answer is a stream.
#[test]
fn operations_have_one_form_of_success() {
    let document = committed("gateway.json");
    for (path, item) in document["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            let responses = operation["responses"].as_object().unwrap().iter();
            let successes = responses.filter(|(status, _)| status.starts_with('2'));
            let types = successes.filter_map(|(_, answer)| answer["content"].as_object());
            let types: BTreeSet<_> = types.flat_map(|content| content.keys()).collect();
            assert!(types.len() <= 1, "{path}: {types:?}");
        }
    }
}

/// The page of the API fills its forms with them.
#[test]
fn json_bodies_have_valid_examples() {
    let document = committed("gateway.json");
    let operations = document["paths"].as_object().unwrap().values();
    let operations = operations.flat_map(|item| item.as_object().unwrap().values());
    let mut checked = 0;
    for operation in operations.filter(|operation| operation["tags"] != json!(["host"])) {
        let id = &operation["operationId"];
        let contents = operation["requestBody"]["content"].as_object();
        for (media_type, content) in contents.into_iter().flatten() {
            if !media_type.ends_with("json") {
                continue;
            }
            let example = content.get("example");
            let example = example.unwrap_or_else(|| panic!("{id}: no example"));
            let mut schema = content["schema"].clone();
            schema["components"] = document["components"].clone();
            let validator = jsonschema::validator_for(&schema).unwrap();
            let faults: Vec<_> = validator.iter_errors(example).collect();
            assert!(faults.is_empty(), "{id}: {faults:?}");
            checked += 1;
        }
    }
    assert!(checked >= 14, "{checked}");
}

/// The page size is bounded by `limit`.
#[test]
fn pages_are_bounded_by_their_limits() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi/gateway.json");
    let document = std::fs::read_to_string(file).expect("it is committed");
    let document: Value = serde_json::from_str(&document).expect("it is JSON");
    let mut pages = BTreeSet::new();
    let operations = document["paths"].as_object().unwrap().values();
    for operation in operations.flat_map(|item| item.as_object().unwrap().values()) {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let limit = parameters.clone().find(|one| one["name"] == "limit");
        let content = &operation["responses"]["200"]["content"]["application/json"];
        let page = content["schema"]["$ref"].as_str().unwrap_or_default();
        if let Some(limit) = limit
            && page.contains("/Page_")
        {
            let items = format!("{}/properties/items/maxItems", &page[1..]);
            let max_items = document.pointer(&items);
            assert_eq!(max_items, Some(&limit["schema"]["maximum"]), "{page}");
            pages.insert(page);
        }
    }
    assert!(pages.iter().any(|page| page.ends_with("/Page_Interaction")));
    assert!(pages.len() > 5, "{pages:?}");
}

/// An unbounded list causes unbounded work.
#[test]
fn bounds_every_list_and_text_of_requests() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi/gateway.json");
    let document = std::fs::read_to_string(file).expect("it is committed");
    let document: Value = serde_json::from_str(&document).expect("it is JSON");
    let mut walk = SchemaWalk {
        document: &document,
        seen: BTreeSet::new(),
        unbounded: Vec::new(),
        lists: 0,
    };
    let operations = document["paths"].as_object().expect("paths").iter();
    for (path, item) in operations {
        for operation in item.as_object().expect("operations").values() {
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                walk.schema(
                    &parameter["schema"],
                    &format!("{path} {}", parameter["name"]),
                );
            }
            let contents = operation["requestBody"]["content"].as_object();
            for content in contents.into_iter().flatten().map(|(_, content)| content) {
                walk.schema(&content["schema"], path);
            }
        }
    }
    assert!(walk.unbounded.is_empty(), "{:#?}", walk.unbounded);
    assert!(walk.lists > 20, "{} lists", walk.lists);
}

struct SchemaWalk<'a> {
    document: &'a Value,
    seen: BTreeSet<&'a str>,
    unbounded: Vec<String>,
    lists: usize,
}

impl<'a> SchemaWalk<'a> {
    fn schema(&mut self, schema: &'a Value, path: &str) {
        if let Some(reference) = schema["$ref"].as_str() {
            if self.seen.insert(reference) {
                let schema = self.document.pointer(&reference[1..]);
                self.schema(schema.expect("it is there"), reference);
            }
            return;
        }
        let is = |kind: &str| {
            let several = schema["type"].as_array();
            schema["type"] == kind
                || several.is_some_and(|kinds| kinds.iter().any(|one| one == kind))
        };
        if is("array") {
            self.lists += 1;
            if !schema["maxItems"].is_u64() {
                self.unbounded.push(format!("list: {path}"));
            }
            self.schema(&schema["items"], &format!("{path}[]"));
        }
        let is_bounded = schema["enum"].is_array() || schema["format"] == "binary";
        if is("string") && !is_bounded && !schema["maxLength"].is_u64() {
            self.unbounded.push(format!("text: {path}"));
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            self.schema(property, &format!("{path}.{name}"));
        }
        self.schema_if_any(&schema["additionalProperties"], path);
        for several in ["oneOf", "anyOf", "allOf"] {
            for part in schema[several].as_array().into_iter().flatten() {
                self.schema(part, path);
            }
        }
    }

    fn schema_if_any(&mut self, schema: &'a Value, path: &str) {
        if schema.is_object() {
            self.schema(schema, &format!("{path}.*"));
        }
    }
}
