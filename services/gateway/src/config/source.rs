//! Sources of settings: embedded defaults, file, environment. Later ones take precedence.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use ::config::{Environment, File, FileFormat};
use rustix::process::geteuid;
use serde_json::Value;
use toml::de::DeTable;

use super::DEFAULT_TOML;
use super::fault::{ConfigErrors, ConfigFault};
use super::locations::Locations;
use super::paths::anchor;
use super::toml_fault::syntax_fault;

/// Environment variables supplied by a test.
pub(super) type Variables = ::config::Map<String, String>;

/// All sources as one tree with sorted keys, and where each setting is written.
pub(super) struct MergedSources {
    pub(super) tree: Value,
    pub(super) locations: Locations,
}

pub(super) fn merge(
    path: Option<&Path>,
    variables: Option<Variables>,
) -> Result<MergedSources, ConfigErrors> {
    let (file, locations) = match path {
        Some(path) => read_file(path)?,
        None => (Value::Null, Locations::default()),
    };
    let locations = match &variables {
        Some(variables) => locations.with_variables(variables.keys().cloned()),
        None => locations.with_variables(inherited_names()),
    };
    let merged = parse(Path::new("default.toml"), DEFAULT_TOML).and_then(|mut tree| {
        overlay(&mut tree, file);
        overlay(&mut tree, of_environment(variables)?);
        Ok(sort_keys(tree))
    });
    match merged {
        Ok(tree) => Ok(MergedSources { tree, locations }),
        Err(fault) => Err(ConfigErrors(vec![fault]).located(&locations)),
    }
}

/// The variables `RUNNEL__…` as a tree, without other sources.
pub(super) fn of_environment(variables: Option<Variables>) -> Result<Value, ConfigFault> {
    let message = "a variable that starts with RUNNEL__ cannot be read; its value must be UTF-8";
    ::config::Config::builder()
        .add_source(environment(variables))
        .build()
        .and_then(::config::Config::try_deserialize)
        .map_err(|_| ConfigFault::new("", message))
        .and_then(refuse_non_finite)
}

/// One file as a tree, without other sources.
pub(super) fn of_file(path: &Path) -> Result<Value, ConfigErrors> {
    read_file(path).map(|(tree, _)| tree)
}

fn environment(variables: Option<Variables>) -> Environment {
    Environment::with_prefix("RUNNEL")
        .separator("__")
        .ignore_empty(true)
        .try_parsing(true)
        .list_separator(",")
        .with_list_parse_key("egress.allow")
        .with_list_parse_key("server.allowed_hosts")
        .with_list_parse_key("server.cors_origins")
        .source(variables)
}

/// Sets the values of `over` in `base`, table by table.
fn overlay(base: &mut Value, over: Value) {
    match (base, over) {
        (_, Value::Null) => {}
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                overlay(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over,
    }
}

/// Reads a file. Its relative paths become relative to its directory.
fn read_file(path: &Path) -> Result<(Value, Locations), ConfigErrors> {
    let text = read_text(path).map_err(|fault| ConfigErrors(vec![fault]))?;
    // The library reports no positions of values, so the file is parsed once more.
    let parsed = DeTable::parse(&text).ok();
    let locations = parsed.map(|table| Locations::of(path, &text, table.get_ref()));
    let locations = locations.unwrap_or_default();
    let tree = parse(path, &text);
    let mut tree = tree.map_err(|fault| ConfigErrors(vec![fault]).located(&locations))?;
    // Before the merge: paths of other sources are relative to the working directory.
    anchor(&mut tree, path).map_err(|faults| ConfigErrors(faults).located(&locations))?;
    Ok((tree, locations))
}

/// Variables of OpenAI's own clients, only for `runnel dev`. They are the only ones without the prefix `RUNNEL__`.
/// An empty variable counts as unset.
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

/// Names of all environment variables.
fn inherited_names() -> impl Iterator<Item = String> {
    std::env::vars_os().filter_map(|(name, _)| name.into_string().ok())
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
    if let Err(error) = DeTable::parse(text) {
        return Err(syntax_fault(name, text, &error, DEFAULT_TOML));
    }
    ::config::Config::builder()
        .add_source(File::from_str(text, FileFormat::Toml))
        .build()
        .and_then(::config::Config::try_deserialize)
        .map_err(|_| ConfigFault::new("", format_args!("{} cannot be read", name.display())))
        .and_then(refuse_non_finite)
        .map(sort_keys)
}

/// TOML has no null. `nan` and `inf` arrive as null and would count as unset.
fn refuse_non_finite(tree: Value) -> Result<Value, ConfigFault> {
    match path_of_null(&tree) {
        None => Ok(tree),
        Some(path) => {
            let path = path.trim_start_matches('.');
            Err(ConfigFault::new(path, "must be a finite number"))
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

fn read_text(path: &Path) -> Result<String, ConfigFault> {
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
