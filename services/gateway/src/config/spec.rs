//! Tables in the shape of the API, such as agents and schedules. Each fault points into the file.

use protocol::admin::Fault;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::fault::ConfigFault;
use super::suggestion::{instead, must_be_one_of};
use super::table::{Reported, Table, name};

/// Replaces an invalid name, so that the other keys are still validated.
const NAMELESS: &str = "nameless";
/// Maximum number of malformed values that are reported for one table.
const MAX_MALFORMED: usize = 32;

/// Required keys other than the name, with values that have no fault.
pub(super) type Placeholders<'a> = &'a [(&'static str, Value)];

/// Reads a named specification. `check` returns its faults as those of a request.
pub(super) fn read<T: DeserializeOwned>(
    mut table: Table<'_>,
    placeholders: Placeholders<'_>,
    check: impl Fn(&T) -> Vec<Fault>,
) -> Result<T, Reported> {
    let name = table.required("name", name);
    let written = name.clone().unwrap_or_else(|Reported| NAMELESS.to_owned());
    let spec = table.validate_rest(|mut rest| {
        rest.insert("name".to_owned(), Value::String(written));
        validate(rest, placeholders, check)
    });
    name.and(spec)
}

/// Faults have paths relative to the table. A malformed value is left out, so that the rest is still validated.
pub(super) fn validate<T: DeserializeOwned>(
    mut table: Map<String, Value>,
    placeholders: Placeholders<'_>,
    check: impl Fn(&T) -> Vec<Fault>,
) -> Result<T, Vec<ConfigFault>> {
    let mut faults = Vec::new();
    // Placeholders keep the required keys parseable, so that the other keys are validated, too.
    for (key, value) in placeholders {
        table.entry(*key).or_insert_with(|| {
            faults.push(ConfigFault::new(*key, "is required"));
            value.clone()
        });
    }
    // serde stops at the first malformed value, so it runs once per fault.
    while faults.len() < MAX_MALFORMED {
        match serde_path_to_error::deserialize::<_, T>(&Value::Object(table.clone())) {
            Ok(spec) => {
                let has_fault =
                    |top: &str| faults.iter().any(|fault| top_key(&fault.pointer) == top);
                let found = check(&spec).into_iter();
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
                let is_removed = leave_out(&mut table, &pointer, placeholders);
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

fn top_key(pointer: &str) -> &str {
    pointer.split(['.', '[']).next().unwrap_or_default()
}

/// Removes the value at `pointer`, a required key gets its placeholder. Items of an array are removed with it, so
/// that other items keep their index. False: there is no such value.
fn leave_out(read: &mut Map<String, Value>, pointer: &str, placeholders: Placeholders<'_>) -> bool {
    let setting = pointer.split('[').next().unwrap_or_default();
    let (parents, key) = setting.rsplit_once('.').unwrap_or(("", setting));
    let mut table = &mut *read;
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
        let placeholder = placeholders.iter().find(|(name, _)| *name == key);
        read.extend(placeholder.map(|(name, value)| ((*name).to_owned(), value.clone())));
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
