//! `[[agents]]`, validated like agents of the API. Each fault points into the file.

use domain::agent::check_agent;
use protocol::admin::AgentSpec;
use serde_json::{Map, Value, json};

use super::fault::ConfigFault;
use super::suggestion::{instead, must_be_one_of};
use super::table::{Reported, Table, name};

/// Replaces an invalid name, so that the other keys are still validated.
const NAMELESS: &str = "nameless";
/// Maximum number of malformed values that are reported for one agent.
const MAX_MALFORMED: usize = 32;

pub(super) fn read(mut table: Table<'_>) -> Result<AgentSpec, Reported> {
    let name = table.required("name", name);
    let written = name.clone().unwrap_or_else(|Reported| NAMELESS.to_owned());
    let spec = table.validate_rest(|mut rest| {
        rest.insert("name".to_owned(), Value::String(written));
        validate(rest)
    });
    name.and(spec)
}

/// Faults have paths relative to the table. A malformed value is left out, so that the rest is still validated.
fn validate(mut agent: Map<String, Value>) -> Result<AgentSpec, Vec<ConfigFault>> {
    let mut faults = Vec::new();
    // Placeholders keep the required keys parseable, so that the other keys are validated, too.
    for (key, value) in placeholders() {
        agent.entry(key).or_insert_with(|| {
            faults.push(ConfigFault::new(key, "is required"));
            value
        });
    }
    // serde stops at the first malformed value, so it runs once per fault.
    while faults.len() < MAX_MALFORMED {
        match serde_path_to_error::deserialize::<_, AgentSpec>(&Value::Object(agent.clone())) {
            Ok(spec) => {
                let has_fault =
                    |top: &str| faults.iter().any(|fault| top_key(&fault.pointer) == top);
                let found = check_agent(&spec).into_iter();
                let found = found.map(|fault| ConfigFault::within("", &fault));
                let found: Vec<_> = found
                    // A placeholder, or a key without its malformed value, would cause a second fault.
                    .filter(|fault| !has_fault(top_key(&fault.pointer)))
                    .collect();
                faults.extend(found);
                return if faults.is_empty() {
                    Ok(spec)
                } else {
                    Err(faults)
                };
            }
            Err(error) => {
                let pointer = error.path().to_string();
                let is_removed = leave_out(&mut agent, &pointer);
                let pointer = if pointer == "." { "" } else { &pointer };
                faults.push(ConfigFault::new(
                    pointer,
                    reworded(&error.inner().to_string()),
                ));
                // The same value would fail again without end.
                if !is_removed {
                    break;
                }
            }
        }
    }
    Err(faults)
}

/// Required keys, with values that have no fault.
fn placeholders() -> [(&'static str, Value); 2] {
    [
        ("event_types", json!(["*"])),
        ("runner_id", json!("plugin:a/b/c")),
    ]
}

fn top_key(pointer: &str) -> &str {
    pointer.split(['.', '[']).next().unwrap_or_default()
}

/// Removes the value at `pointer`, a required key gets its placeholder. Items of an array are removed with it, so
/// that other items keep their index. False: there is no such value.
fn leave_out(agent: &mut Map<String, Value>, pointer: &str) -> bool {
    let setting = pointer.split('[').next().unwrap_or_default();
    let (parents, key) = setting.rsplit_once('.').unwrap_or(("", setting));
    let mut table = &mut *agent;
    for parent in parents.split('.').filter(|parent| !parent.is_empty()) {
        let Some(Value::Object(inner)) = table.get_mut(parent) else {
            return false;
        };
        table = inner;
    }
    if table.remove(key).is_none() {
        return false;
    }
    if parents.is_empty() {
        let placeholder = placeholders().into_iter().find(|(name, _)| *name == key);
        agent.extend(placeholder.map(|(name, value)| (name.to_owned(), value)));
    }
    true
}

/// A message of serde in our words, without the value, which may be a misplaced secret.
fn reworded(message: &str) -> String {
    let names: Vec<_> = message.split('`').skip(1).step_by(2).collect();
    match names.as_slice() {
        [written, allowed @ ..] if message.starts_with("unknown field") => {
            format!("is not known here; {}", instead(written, allowed))
        }
        [written, allowed @ ..] if message.starts_with("unknown variant") => {
            must_be_one_of(written, allowed)
        }
        _ => match message.rsplit_once(", expected ") {
            Some((_, expected)) => format!("must be {}", type_name(expected)),
            None => message.to_owned(),
        },
    }
}

/// The name of a type in TOML.
fn type_name(expected: &str) -> &str {
    match expected {
        "u32" | "u64" | "i64" => "an integer",
        "a map" => "a table",
        "a sequence" => "a list",
        "a string" => "text in quotes",
        "a boolean" => "true or false",
        name if name.starts_with("struct ") => "a table",
        name => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_all_faults_of_one_agent() {
        let agent = json!({
            "name": "a", "event_type": ["*"], "event_types": ["a.*.b", "ok"], "runner_id": "acme",
            "concurrency": "hunter2", "resource_policy": {"tool": ["x"], "models": 5},
            "config": {"timeout": "5m"}, "retry": {"max": "often"}, "scope": {"kind": "bot", "bot": "x"},
        });
        let Value::Object(agent) = agent else {
            unreachable!()
        };
        let mut faults = validate(agent).unwrap_err();
        faults.sort_by(|one, other| one.pointer.cmp(&other.pointer));
        let shown: Vec<_> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "concurrency: must be one of concurrent, reject, enqueue, interrupt, steer",
                "config.timeout: must be a number of seconds; 0 or null selects the maximum",
                "event_type: is not known here; did you mean event_types?",
                "event_types[0]: must be an exact event type or a prefix that ends in .*",
                "resource_policy.models: must be \"*\" or a list of names",
                "resource_policy.tool: is not known here; did you mean tools?",
                "retry.max: must be an integer",
                "runner_id: must have the form plugin:{author}/{plugin}/{runner}, or {author}/{plugin}",
                "scope.bot: is not known here; did you mean bot_id?",
            ]
        );
    }

    #[test]
    fn reports_required_keys_together() {
        let faults = validate(Map::from_iter([("name".to_owned(), json!("a"))])).unwrap_err();
        let shown: Vec<_> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            ["event_types: is required", "runner_id: is required"]
        );
    }
}
