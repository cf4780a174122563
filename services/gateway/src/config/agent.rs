//! `[[agents]]`, validated like agents of the API. Each fault points into the file.

use domain::agent::check_agent;
use protocol::admin::AgentSpec;
use serde_json::{Map, Value};

use super::fault::ConfigFault;
use super::table::{Reported, Table, name};

/// Replaces an invalid name, so that the other keys are still validated.
const NAMELESS: &str = "nameless";

pub(super) fn read(mut table: Table<'_>) -> Result<AgentSpec, Reported> {
    let name = table.required("name", name);
    let written = name.clone().unwrap_or_else(|Reported| NAMELESS.to_owned());
    let spec = table.validate_rest(|mut rest| {
        rest.insert("name".to_owned(), Value::String(written));
        judge(rest)
    });
    name.and(spec)
}

/// Faults have paths relative to the table.
fn judge(agent: Map<String, Value>) -> Result<AgentSpec, Vec<ConfigFault>> {
    let spec: AgentSpec =
        serde_path_to_error::deserialize(Value::Object(agent)).map_err(|error| {
            // The message names the missing key.
            let path = error.path().to_string();
            let pointer = if path == "." { "" } else { &path };
            vec![ConfigFault::new(pointer, error.inner())]
        })?;
    let faults = check_agent(&spec);
    if faults.is_empty() {
        return Ok(spec);
    }
    let within = |fault| ConfigFault::within("", fault);
    Err(faults.iter().map(within).collect())
}
