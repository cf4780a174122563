//! MCP servers with streamable HTTP or as a child process.

use std::collections::BTreeSet;

use protocol::JsonObject;
use serde_json::{Value, json};

use super::entry::{LeftOutRow, TableEntry, blocked, left_out, nothing};
use super::providers::uuid;
use super::row::CatalogRow;
use crate::migrate::migration_table::TableKind;
use crate::migrate::report::{Migration, member};
use crate::migrate::secrets::{has_credentials, is_secret, unique, variable_part};

/// Maximum bytes of a server's name.
const NAME: usize = 64;
/// Maximum words of a command.
const WORDS: usize = 64;
/// Maximum headers of a server, and maximum variables of a child process.
const HEADERS: usize = 32;
const VARIABLES: usize = 64;

/// Plans the row of a server.
pub(super) fn plan(
    row: &CatalogRow<'_>,
    names: &mut BTreeSet<String>,
    out: &mut Migration,
    variables: &mut BTreeSet<String>,
) {
    let shown = row.text("name").unwrap_or_default();
    let name = unique(&server_name(row), '-', names);
    if row.flag("enable") == Some(false) {
        let why = nothing("it is switched off");
        return left_out(row, TableKind::McpServer, &name, why, out);
    }
    let empty = JsonObject::new();
    let settings = row.object("extra_args").unwrap_or(&empty);
    let prefix = format!("MCP_{}", variable_part(&name));
    let mut entry = TableEntry::new(row, TableKind::McpServer, &name, &prefix, variables);
    let note = entry.set("name", "name", json!(name));
    if shown != name {
        note.why = Some("letters, digits, `-`, `_` and `.` make a name".to_owned());
    }
    // Older rows have no mode; the settings show the transport.
    let is_child = row.text("mode") == Some("stdio")
        || (!settings.contains_key("url") && settings.contains_key("command"));
    let described = if is_child {
        child(&mut entry, row, settings)
    } else {
        remote(&mut entry, row, settings)
    };
    if let Err(why) = described {
        return left_out(row, TableKind::McpServer, &name, why, out);
    }
    let seconds = settings
        .get("tool_call_timeout_sec")
        .and_then(Value::as_f64);
    if let Some(seconds) = seconds.filter(|seconds| (0.1..=3600.0).contains(seconds)) {
        let column = "extra_args/tool_call_timeout_sec";
        entry.push("timeout_seconds", json!(seconds));
        entry.renamed(column, "timeout_seconds");
    }
    for dropped in ["timeout", "ssereadtimeout", "trust_env", "box", "sandbox"] {
        if settings.contains_key(dropped) {
            entry.dropped(&["extra_args", dropped], "the gateway has no such setting");
        }
    }
    entry.migrated(&format!("MCP server {}", uuid(row)), out);
}

fn remote(
    entry: &mut TableEntry<'_, '_>,
    row: &CatalogRow<'_>,
    settings: &JsonObject,
) -> Result<(), LeftOutRow> {
    let url = settings.get("url").and_then(Value::as_str).map(str::trim);
    // Other schemes, such as `file`, would read local resources.
    let url = url.filter(|url| url.starts_with("https://") || url.starts_with("http://"));
    let url = url.ok_or_else(|| blocked("extra_args names no http or https url"))?;
    if has_credentials(url) {
        return Err(blocked(
            "its url holds a secret, and a url cannot refer to a variable: send the secret in a header, if the server accepts one, and declare it in [[mcp_servers]]",
        ));
    }
    entry.push("url", json!(url));
    entry.renamed("extra_args/url", "url");
    // Servers of the older transport end with this path by convention.
    if row.text("mode") == Some("sse") || url.trim_end_matches('/').ends_with("/sse") {
        entry.warn(
            "extra_args",
            "its address looks like the older transport (SSE): the gateway speaks streamable HTTP, often at /mcp".to_owned(),
        );
    }
    let headers = references(entry, row, settings, "headers", HEADERS)?;
    if !headers.is_empty() {
        entry.push("headers", Value::Object(headers));
    }
    Ok(())
}

fn child(
    entry: &mut TableEntry<'_, '_>,
    row: &CatalogRow<'_>,
    settings: &JsonObject,
) -> Result<(), LeftOutRow> {
    let program = settings
        .get("command")
        .and_then(Value::as_str)
        .map(str::trim);
    let program = program.filter(|program| !program.is_empty());
    let program = program.ok_or_else(|| blocked("extra_args names no command"))?;
    let arguments = match settings.get("args") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(words)) => words
            .iter()
            .map(|word| word.as_str().map(str::to_owned))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| blocked("extra_args.args must be a list of texts"))?,
        Some(_) => return Err(blocked("extra_args.args must be a list of texts")),
    };
    if arguments.len() >= WORDS {
        return Err(blocked("its command has more than 63 arguments"));
    }
    // The command is written into a file and visible in the list of processes.
    if let Some(at) = secret_argument(&arguments) {
        return Err(blocked(format!(
            "argument {at} of its command looks like a secret, and a command refers to no variable: pass it in env"
        )));
    }
    let words: Vec<_> = std::iter::once(program.to_owned())
        .chain(arguments)
        .collect();
    entry.push("command", json!(words));
    entry.renamed("extra_args/command", "command");
    entry.warn(
        "mode",
        "becomes a child process of the gateway with the same read access: run untrusted servers elsewhere, and set their url"
            .to_owned(),
    );
    let env = references(entry, row, settings, "env", VARIABLES)?;
    if !env.is_empty() {
        entry.push("env", Value::Object(env));
    }
    Ok(())
}

/// Replaces each header or environment value by a reference: all are treated as secrets.
fn references(
    entry: &mut TableEntry<'_, '_>,
    row: &CatalogRow<'_>,
    settings: &JsonObject,
    column: &str,
    max: usize,
) -> Result<JsonObject, LeftOutRow> {
    let held = match settings.get(column) {
        None | Some(Value::Null) => return Ok(JsonObject::new()),
        Some(Value::Object(held)) => held,
        Some(_) => return Err(blocked(format!("extra_args.{column} must be an object"))),
    };
    if held.len() > max {
        return Err(blocked(format!(
            "extra_args.{column} has more than {max} entries"
        )));
    }
    let at = member(&row.at("extra_args"), column);
    let mut references = JsonObject::new();
    for name in held.keys() {
        // Header names ignore case, and the configuration requires lower case.
        let key = if column == "headers" {
            name.to_ascii_lowercase()
        } else {
            name.clone()
        };
        let target = format!("{column}.{key}");
        let reference = entry.refer(name, &member(&at, name), &target);
        references.insert(key, reference);
    }
    Ok(references)
}

/// Returns the index of an argument with a secret, detected by its form or by its flag.
fn secret_argument(arguments: &[String]) -> Option<usize> {
    let flag = |text: &str| text.trim_start_matches('-').to_owned();
    let mut before = String::new();
    for (at, argument) in arguments.iter().enumerate() {
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) if name.starts_with('-') => (flag(name), value),
            _ => (std::mem::take(&mut before), argument.as_str()),
        };
        // A value that begins with a hyphen is the next flag.
        if !value.starts_with('-') && is_secret(&name, value) {
            return Some(at + 1);
        }
        // The next argument may be the value of this flag.
        before = if argument.starts_with('-') {
            flag(argument)
        } else {
            String::new()
        };
    }
    None
}

/// Returns a name that the configuration accepts, or the id if no characters remain.
fn server_name(row: &CatalogRow<'_>) -> String {
    let plain = |text: &str| {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        let replaced: String = text
            .chars()
            .map(|letter| if is_plain(letter) { letter } else { '-' })
            .collect();
        let parts: Vec<_> = replaced
            .split('-')
            .filter(|part| !part.is_empty())
            .collect();
        // Leaves space for a numeric suffix.
        parts.join("-").chars().take(NAME - 4).collect::<String>()
    };
    let names = [row.text("name"), row.text("uuid"), Some("server")];
    let mut names = names.into_iter().flatten().map(plain);
    names.find(|name| !name.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_secrets_of_command_lines() {
        for (arguments, expected) in [
            (&["-y", "server", "/srv"][..], None),
            (&["--api-key", "x"], Some(2)),
            (&["--api-key=x"], Some(1)),
            (&["sk-123"], Some(1)),
            (&["--token", "--verbose"], None),
            (&["https://u:p@x.test"], Some(1)),
        ] {
            let arguments: Vec<_> = arguments.iter().map(|one| (*one).to_owned()).collect();
            assert_eq!(secret_argument(&arguments), expected, "{arguments:?}");
        }
    }
}
