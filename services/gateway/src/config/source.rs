//! Sources of settings: embedded defaults, file, environment. Later ones take precedence.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use ::config::{ConfigError, Environment, File, FileFormat};
use rustix::process::geteuid;
use serde_json::Value;

use super::fault::ConfigFault;

/// Environment variables supplied by a test.
pub(super) type Variables = ::config::Map<String, String>;

/// Merges all sources into one tree with sorted keys.
pub(super) fn merge(
    default_toml: &str,
    path: Option<&Path>,
    variables: Option<Variables>,
) -> Result<Value, ConfigFault> {
    let file = path.map(read_file).transpose()?.unwrap_or_default();
    let environment = Environment::with_prefix("RUNNEL")
        .separator("__")
        .ignore_empty(true)
        .try_parsing(true)
        .list_separator(",")
        .with_list_parse_key("egress.allow")
        .with_list_parse_key("server.allowed_hosts")
        .with_list_parse_key("server.cors_origins")
        .source(variables);
    ::config::Config::builder()
        .add_source(File::from_str(default_toml, FileFormat::Toml))
        .add_source(File::from_str(&file, FileFormat::Toml))
        .add_source(environment)
        .build()
        .and_then(::config::Config::try_deserialize)
        .map_err(|error| ConfigFault::new("", describe(&error, path)))
        .and_then(refuse_non_finite)
        .map(sort_keys)
}

/// Variables of OpenAI's own clients, for `runnel dev` alone. They are the only ones without the prefix
/// `RUNNEL__`. An empty variable counts as unset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenAiVariables {
    /// `OPENAI_API_KEY` is set. Its value is read through a secret reference.
    pub has_key: bool,
    /// `OPENAI_BASE_URL`
    pub base_url: Option<String>,
    /// `OPENAI_MODEL`
    pub model: Option<String>,
}

impl OpenAiVariables {
    pub fn read() -> Self {
        let read = |name| inherited_variable(name).filter(|value| !value.is_empty());
        Self {
            has_key: read("OPENAI_API_KEY").is_some(),
            base_url: read("OPENAI_BASE_URL"),
            model: read("OPENAI_MODEL"),
        }
    }
}

/// Environment variable that child processes inherit unchanged.
#[expect(
    clippy::disallowed_methods,
    reason = "what a child inherits is no setting, and what clients of OpenAI read is not ours to name"
)]
pub fn inherited_variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Parses TOML into a tree with sorted keys.
pub(super) fn parse(name: &Path, text: &str) -> Result<Value, ConfigFault> {
    ::config::Config::builder()
        .add_source(File::from_str(text, FileFormat::Toml))
        .build()
        .and_then(::config::Config::try_deserialize)
        .map_err(|error| ConfigFault::new("", describe(&error, Some(name))))
        .and_then(refuse_non_finite)
        .map(sort_keys)
}

/// TOML has no null. `nan` and `inf` arrive as null and would count as unset.
fn refuse_non_finite(tree: Value) -> Result<Value, ConfigFault> {
    match path_of_null(&tree) {
        None => Ok(tree),
        Some(place) => {
            let place = place.trim_start_matches('.');
            Err(ConfigFault::new(place, "must be a finite number"))
        }
    }
}

fn path_of_null(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some(String::new()),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(at, item)| path_of_null(item).map(|within| format!("[{at}]{within}"))),
        Value::Object(members) => members.iter().find_map(|(name, member)| {
            path_of_null(member).map(|within| format!(".{name}{within}"))
        }),
        _ => None,
    }
}

fn read_file(path: &Path) -> Result<String, ConfigFault> {
    fs::read_to_string(path).map_err(|error| {
        let shown = path.display();
        if error.kind() != ErrorKind::PermissionDenied {
            return ConfigFault::new("", format_args!("{shown} cannot be read: {error}"));
        }
        let user = geteuid().as_raw();
        let message = format_args!(
            "{shown} cannot be read by user {user}: {error}; make it readable, for example by `chmod go+r`"
        );
        ConfigFault::new("", message)
    })
}

/// Describes the error without the faulty line, which may hold a secret.
fn describe(error: &ConfigError, path: Option<&Path>) -> String {
    let (ConfigError::FileParse { cause, .. }, Some(path)) = (error, path) else {
        return "a variable that starts with RUNNEL__ cannot be read; its value must be UTF-8"
            .to_owned();
    };
    let text = cause.to_string();
    let harmless: Vec<_> = text
        .lines()
        .filter(|line| !line.contains(" |") && !line.is_empty())
        .collect();
    format!(
        "{} is not valid TOML: {}",
        path.display(),
        harmless.join(", ")
    )
}

// Tables come in hash map order, but tool schemas must be the same after each start.
fn sort_keys(value: Value) -> Value {
    match value {
        Value::Object(entries) => {
            let sorted: BTreeMap<_, _> = entries
                .into_iter()
                .map(|(key, value)| (key, sort_keys(value)))
                .collect();
            Value::Object(sorted.into_iter().collect())
        }
        Value::Array(values) => Value::Array(values.into_iter().map(sort_keys).collect()),
        other => other,
    }
}
