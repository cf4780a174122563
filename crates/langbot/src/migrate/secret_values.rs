//! Values of the secrets that variables replace, read from the documents again. The report never holds them.

use secrecy::SecretString;
use serde_json::Value;

use super::convert::decoded;
use super::{Migration, MigrationDocument};

/// A variable and its value: a secret, or the hosts that it may go to.
#[derive(Debug)]
pub struct SecretValue {
    pub variable: String,
    /// `None`: the document masks it, or does not have it.
    pub value: Option<SecretString>,
}

/// Returns the values of a migration's variables. New secrets have none and are left out.
pub fn secret_values(
    documents: &[MigrationDocument<'_>],
    migration: &Migration,
) -> Vec<SecretValue> {
    let value_at = |from: &str| {
        documents.iter().find_map(|document| {
            let pointer = from.strip_prefix(document.file)?.strip_prefix('#')?;
            lookup(document.value, pointer)
        })
    };
    let named = migration.variables.iter();
    let named = named.filter(|variable| variable.from.is_some() || variable.value.is_some());
    named
        .map(|variable| {
            let held = variable.from.as_deref().and_then(value_at);
            // A masked value would overwrite the real secret.
            let held = held.filter(|value| !is_masked(value));
            SecretValue {
                variable: variable.name.clone(),
                value: held.or(variable.value.clone()).map(SecretString::from),
            }
        })
        .collect()
}

/// Returns the text at a pointer. Texts on the way may hold JSON.
fn lookup(value: &Value, pointer: &str) -> Option<String> {
    let Some(rest) = pointer.strip_prefix('/') else {
        return match value {
            Value::String(text) if pointer.is_empty() => Some(text.clone()),
            Value::Number(number) if pointer.is_empty() => Some(number.to_string()),
            _ => None,
        };
    };
    let (name, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    // `~1` first: the other order would turn `~01` into a slash.
    let name = name.replace("~1", "/").replace("~0", "~");
    match value {
        Value::Object(members) => lookup(members.get(&name)?, rest),
        Value::Array(items) => lookup(items.get(name.parse::<usize>().ok()?)?, rest),
        // Columns of databases contain JSON as text; the pointer continues inside.
        Value::String(_) => lookup(&decoded(value)?, pointer),
        _ => None,
    }
}

/// LangBot's API writes stars for a secret, or for all of it but its ends.
fn is_masked(text: &str) -> bool {
    text.contains("***") || text.is_empty()
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;
    use serde_json::json;

    use super::*;
    use crate::migrate::{MigrationTarget, migrate};

    #[test]
    fn finds_values_of_pipelines_providers_and_servers() {
        let tweaks = json!({"node": {"api_key": "k-tweak"}}).to_string();
        let document = json!({
            "pipelines": [
                {"uuid": "u-1", "name": "Dify", "config": {"ai": {
                    "runner": {"runner": "dify-service-api"},
                    "dify-service-api": {"base-url": "https://d.example/v1", "app-type": "chat", "api-key": "k-dify"},
                }}},
                {"uuid": "u-2", "name": "Flow", "config": {"ai": {
                    "runner": {"runner": "langflow-api"},
                    "langflow-api": {"base-url": "https://f.example", "api-key": "sk-****1234", "flow-id": "f",
                        "tweaks": tweaks},
                }}},
            ],
            "model_providers": [{"uuid": "p-1", "name": "P", "requester": "openai-chat-completions",
                "base_url": "https://o.example/v1", "api_keys": ["k-1", "k-2"]}],
            "mcp_servers": [{"uuid": "s-1", "name": "search", "enable": true, "mode": "remote",
                "extra_args": {"url": "https://m.example/mcp", "headers": {"Authorization": "Bearer k-mcp"}}}],
        });
        let documents = [MigrationDocument {
            file: "langbot.db",
            value: &document,
        }];
        let migration = migrate(&documents, MigrationTarget::default()).unwrap();
        let found = secret_values(&documents, &migration);
        let found: Vec<_> = found
            .iter()
            .map(|one| {
                let value = one.value.as_ref().map(ExposeSecret::expose_secret);
                (one.variable.as_str(), value)
            })
            .collect();
        assert_eq!(
            found,
            [
                ("P_API_KEY", Some("k-1")),
                ("P_API_KEY_2", Some("k-2")),
                ("MCP_SEARCH_AUTHORIZATION", Some("Bearer k-mcp")),
                ("DIFY_API_KEY", Some("k-dify")),
                ("FLOW_API_KEY", None),
                ("FLOW_TWEAKS_NODE_API_KEY", Some("k-tweak")),
            ]
        );
        // Neither report nor log shows a value.
        let secrets = secret_values(&documents, &migration);
        let output = format!("{}{secrets:?}", json!(migration));
        for value in ["k-dify", "k-tweak", "k-1", "k-mcp"] {
            assert!(!output.contains(value), "{value}: {output}");
        }
    }
}
