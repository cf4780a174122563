//! Where settings come from: the embedded defaults, under the file, under the environment.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use ::config::{ConfigError, Environment, File, FileFormat};
use rustix::process::geteuid;
use serde_json::Value;

use super::fault::ConfigFault;

/// Variables of the environment, where a test brings its own.
pub(super) type Variables = ::config::Map<String, String>;

/// The settings of all sources as one tree, keys sorted.
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
        .source(variables);
    ::config::Config::builder()
        .add_source(File::from_str(default_toml, FileFormat::Toml))
        .add_source(File::from_str(&file, FileFormat::Toml))
        .add_source(environment)
        .build()
        .and_then(::config::Config::try_deserialize)
        .map_err(|error| ConfigFault::new("", describe(&error, path)))
        .and_then(refuse_no_number)
        .map(sort_keys)
}

/// What OpenAI's own clients read: the one exception to variables that begin with `RUNNEL__`, and for
/// `runnel dev` alone. An empty variable counts as not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenAiVariables {
    /// `OPENAI_API_KEY` is set. Its value is fetched where it is referred to.
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

/// A variable that child processes get as this process has it.
#[expect(
    clippy::disallowed_methods,
    reason = "what a child inherits is no setting, and what clients of OpenAI read is not ours to name"
)]
pub fn inherited_variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// A TOML text as a tree, keys sorted.
pub(super) fn parse(name: &Path, text: &str) -> Result<Value, ConfigFault> {
    ::config::Config::builder()
        .add_source(File::from_str(text, FileFormat::Toml))
        .build()
        .and_then(::config::Config::try_deserialize)
        .map_err(|error| ConfigFault::new("", describe(&error, Some(name))))
        .and_then(refuse_no_number)
        .map(sort_keys)
}

/// TOML has no null: what comes as one is `nan` or `inf`, and would count as not set.
fn refuse_no_number(tree: Value) -> Result<Value, ConfigFault> {
    match place_of_null(&tree) {
        None => Ok(tree),
        Some(place) => {
            let place = place.trim_start_matches('.');
            Err(ConfigFault::new(place, "must be a finite number"))
        }
    }
}

fn place_of_null(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some(String::new()),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(at, item)| place_of_null(item).map(|within| format!("[{at}]{within}"))),
        Value::Object(members) => members.iter().find_map(|(name, member)| {
            place_of_null(member).map(|within| format!(".{name}{within}"))
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

/// Says what is wrong without the line that is wrong: it may hold a secret.
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

// Tables come in the order of a hash map; schemas of tools must not change from start to start.
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
