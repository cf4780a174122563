//! Layers of the settings of `runnel dev`. Each overrides the ones before:
//!
//! 1. the defaults
//! 2. the settings that `dev` generates
//! 3. `runnel.toml`, without the sections about its deployment; an entry replaces a generated one of its name
//! 4. `runnel-dev.toml`; an entry changes the keys that it has
//! 5. `RUNNEL__…` variables
//!
//! Rules of `egress.allow` add up.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::Value;

use super::fault::{ConfigErrors, ConfigFault};
use super::{Config, DEFAULT_TOML, source};

/// Sections of `runnel.toml` about its deployment: the playground has its own.
const DEPLOYMENT: [&str; 10] = [
    "server",
    "auth",
    "database",
    "bus",
    "metrics",
    "telemetry",
    "host_api",
    "ledger",
    "artifacts",
    "builtin_runners",
];

/// Arrays of tables, each with the key that names its entries.
const TABLES: [(&str, &str); 14] = [
    ("budgets", "name"),
    ("model_providers", "name"),
    ("files", "name"),
    ("models", "model_id"),
    ("tools", "tool_name"),
    ("mcp_servers", "name"),
    ("knowledge_bases", "kb_id"),
    ("skills", "skill_name"),
    ("skill_directories", "directory"),
    ("runner_endpoints", "name"),
    ("agents", "name"),
    ("sources", "name"),
    ("webhooks", "name"),
    ("schedules", "name"),
];

/// Files of the layers.
#[derive(Clone, Debug)]
pub struct DevLayers {
    pub generated: PathBuf,
    /// The `runnel.toml` of the working directory.
    pub own: Option<PathBuf>,
    /// The `runnel-dev.toml` of the working directory.
    pub overrides: Option<PathBuf>,
    /// Settings between the defaults and the generated ones, as TOML.
    pub defaults: &'static str,
}

impl DevLayers {
    /// `server.listen` of the layers above the generated settings, which do not exist yet.
    pub fn listen(&self) -> Result<Option<SocketAddr>, ConfigErrors> {
        let upper = self.upper()?;
        let Some(text) = upper["server"]["listen"].as_str() else {
            return Ok(None);
        };
        let address = text.parse().map_err(|_| {
            let message = "must be an address and a port, like 127.0.0.1:8700 or [::]:8700";
            ConfigErrors(vec![ConfigFault::new("server.listen", message)])
        })?;
        Ok(Some(address))
    }

    /// The files that are read, the generated one last.
    pub fn files(&self) -> Vec<PathBuf> {
        let files = self.overrides.iter().chain(&self.own);
        files.chain([&self.generated]).cloned().collect()
    }

    /// Reads all layers. The process listens at `listen` already.
    pub fn load(&self, listen: SocketAddr) -> Result<Config, ConfigErrors> {
        let mut tree = self.tree()?;
        // The socket is bound already, so no layer can change the address.
        tree["server"]["listen"] = Value::String(listen.to_string());
        let names = tree.clone();
        Config::validate(tree).map_err(|ConfigErrors(faults)| {
            let faults = faults.into_iter().map(|fault| by_name(&names, fault));
            ConfigErrors(faults.collect())
        })
    }

    /// Keys of `[server]` in the `runnel.toml` whose values differ from those in force.
    pub fn unused_server_keys(&self, listen: SocketAddr) -> Result<Vec<String>, ConfigErrors> {
        let Some(own) = &self.own else {
            return Ok(Vec::new());
        };
        let own = source::of_file(own)?;
        let mut tree = self.tree()?;
        // The effective values are compared, since a layer above may repeat the value of the file.
        tree["server"]["listen"] = Value::String(listen.to_string());
        let keys = own.get("server").and_then(Value::as_object);
        let keys = keys.into_iter().flatten();
        let unused = keys.filter(|(name, value)| tree["server"].get(name) != Some(value));
        Ok(unused.map(|(name, _)| name.clone()).collect())
    }

    fn tree(&self) -> Result<Value, ConfigErrors> {
        let mut tree = source::parse("the defaults".as_ref(), DEFAULT_TOML)?;
        let defaults = source::parse("the defaults of dev".as_ref(), self.defaults)?;
        overlay(&mut tree, defaults, Entries::Merged);
        overlay(
            &mut tree,
            source::of_file(&self.generated)?,
            Entries::Merged,
        );
        if let Some(own) = &self.own {
            let mut own = source::of_file(own)?;
            if let Value::Object(sections) = &mut own {
                sections.retain(|name, _| !DEPLOYMENT.contains(&name.as_str()));
            }
            overlay(&mut tree, own, Entries::Replaced);
        }
        overlay(&mut tree, self.upper()?, Entries::Merged);
        Ok(tree)
    }

    fn upper(&self) -> Result<Value, ConfigErrors> {
        let mut upper = match &self.overrides {
            Some(overrides) => source::of_file(overrides)?,
            None => Value::Object(serde_json::Map::new()),
        };
        overlay(&mut upper, source::of_environment(None)?, Entries::Merged);
        Ok(upper)
    }
}

/// Effect of an entry of an array of tables on the entry of its name below.
#[derive(Clone, Copy)]
enum Entries {
    Merged,
    Replaced,
}

fn overlay(tree: &mut Value, upper: Value, entries: Entries) {
    let (Value::Object(tree), Value::Object(upper)) = (tree, upper) else {
        return;
    };
    for (name, value) in upper {
        let identity = TABLES.iter().find(|(table, _)| *table == name);
        let slot = tree.entry(name.as_str()).or_insert(Value::Null);
        match (slot, value, identity) {
            (Value::Array(existing), Value::Array(added), Some((_, key))) => {
                for entry in added {
                    enter(existing, entry, key, entries);
                }
            }
            (slot, mut value, _) => {
                // Rules of a layer below belong to its servers, which stay in use.
                if name == "egress" {
                    keep_rules(slot, &mut value);
                }
                merge(slot, value);
            }
        }
    }
}

fn enter(existing: &mut Vec<Value>, entry: Value, key: &str, entries: Entries) {
    let same = |one: &&mut Value| one.get(key).is_some() && one.get(key) == entry.get(key);
    match (existing.iter_mut().find(same), entries) {
        (Some(slot), Entries::Merged) => merge(slot, entry),
        (Some(slot), Entries::Replaced) => *slot = entry,
        (None, _) => existing.push(entry),
    }
}

/// Sets the keys of `upper` in `target`, table by table.
fn merge(target: &mut Value, upper: Value) {
    match (target, upper) {
        (Value::Object(target), Value::Object(upper)) => {
            for (name, value) in upper {
                merge(target.entry(name).or_insert(Value::Null), value);
            }
        }
        (target, upper) => *target = upper,
    }
}

/// Adds the rules of the layers below to `egress.allow` of this one.
fn keep_rules(below: &Value, above: &mut Value) {
    let (Some(below), Some(above)) = (
        below.get("allow").and_then(Value::as_array),
        above.get_mut("allow").and_then(Value::as_array_mut),
    ) else {
        return;
    };
    let added: Vec<_> = below
        .iter()
        .filter(|rule| !above.contains(rule))
        .cloned()
        .collect();
    above.extend(added);
}

/// Names the entry of a fault. Its number counts the entries of all layers.
fn by_name(tree: &Value, fault: ConfigFault) -> ConfigFault {
    let named = || {
        let (table, rest) = fault.pointer.split_once('[')?;
        let (index, rest) = rest.split_once(']')?;
        // Only entries of these tables have names; other pointers are unique.
        let (_, key) = TABLES.iter().find(|(name, _)| *name == table)?;
        let index: usize = index.parse().ok()?;
        let name = tree.get(table)?.get(index)?.get(key)?.as_str()?;
        Some(format!("{table}[{name}]{rest}"))
    };
    match named() {
        Some(pointer) => ConfigFault { pointer, ..fault },
        None => fault,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn upper_layers_change_entries_by_name() {
        let below = json!({
            "egress": {"allow": ["a:1"]}, "runs": {"x": 1, "y": 2},
            "agents": [{"name": "hello", "config": {"a": 1, "b": 2}}, {"name": "other"}],
        });
        let above = json!({
            "egress": {"allow": ["b:2", "a:1"]}, "runs": {"y": 3},
            "agents": [{"name": "hello", "config": {"b": 3}}, {"name": "new"}],
        });
        let check = |entries: Entries, hello: Value| {
            let mut tree = below.clone();
            overlay(&mut tree, above.clone(), entries);
            let expected = json!({
                "egress": {"allow": ["b:2", "a:1"]}, "runs": {"x": 1, "y": 3},
                "agents": [hello, {"name": "other"}, {"name": "new"}],
            });
            assert_eq!(tree, expected);
        };
        check(
            Entries::Merged,
            json!({"name": "hello", "config": {"a": 1, "b": 3}}),
        );
        check(
            Entries::Replaced,
            json!({"name": "hello", "config": {"b": 3}}),
        );
    }

    #[test]
    fn egress_rules_of_layers_add_up() {
        let mut tree = json!({"egress": {"allow": ["a:1"]}});
        for allow in [json!(["b:2"]), json!([])] {
            overlay(
                &mut tree,
                json!({"egress": {"allow": allow}}),
                Entries::Merged,
            );
        }
        assert_eq!(tree["egress"]["allow"], json!(["b:2", "a:1"]));
    }

    #[test]
    fn faults_name_their_entry() {
        let tree = json!({"agents": [{"name": "a"}, {"name": "mine"}]});
        let fault = by_name(&tree, ConfigFault::new("agents[1].scope", "is wrong"));
        assert_eq!(fault.pointer, "agents[mine].scope");
        let fault = by_name(&tree, ConfigFault::new("runs.x", "is wrong"));
        assert_eq!(fault.pointer, "runs.x");
    }
}
