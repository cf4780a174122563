//! Detects secrets in a configuration and replaces them by variables.

use std::collections::BTreeSet;

use serde_json::Value;

/// Names that indicate a secret, in lower case with `_` for `-`.
const TELLING: [&str; 12] = [
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "cookie",
    "secret",
    "credential",
    "authorization",
    "auth_header",
    "header_value",
    "api_key",
    "apikey",
];
/// Prefixes that indicate a secret under any name, in lower case.
const BEGINNINGS: [&str; 10] = [
    "sk-",
    "bearer ",
    "basic ",
    "ghp_",
    "gho_",
    "github_pat_",
    "xoxb-",
    "akia",
    "eyj",
    "whsec_",
];
/// Settings documents that contain a program's secrets.
const DOCUMENTS: [&str; 2] = ["env_json", "mcp_servers_json"];

/// Returns true if a text under this name is a secret.
pub(super) fn is_secret(name: &str, text: &str) -> bool {
    if text.is_empty() || is_reference(text) {
        return false;
    }
    let name = name.to_lowercase().replace('-', "_");
    let is_key = ["key", "keys"].contains(&name.as_str())
        || ["_key", "_keys"].iter().any(|end| name.ends_with(end));
    // `output_key` of n8n names a member of the answer.
    let is_key = is_key && name != "output_key";
    // `get` returns nothing if byte 16 is inside of a character.
    let beginning = text.get(..16).unwrap_or(text).to_lowercase();
    is_key
        || name.ends_with("token")
        || TELLING.iter().any(|word| name.contains(word))
        || (DOCUMENTS.contains(&name.as_str()) && text.trim() != "{}" && text.trim() != "[]")
        || BEGINNINGS.iter().any(|start| beginning.starts_with(start))
        || has_credentials(text)
}

/// Returns true if a text is a reference to a variable or file.
pub(super) fn is_reference(text: &str) -> bool {
    let (kind, target) = text.split_once(':').unwrap_or_default();
    matches!(kind, "env" | "file") && !target.is_empty() && !target.contains(char::is_whitespace)
}

/// Returns true if a URL has a user, a password or a parameter that indicates a secret.
pub(super) fn has_credentials(text: &str) -> bool {
    let Some((_, rest)) = text.split_once("://") else {
        return false;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    let mut names = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| is_secret(name, value));
    authority.contains('@') || names.any(|is_secret| is_secret)
}

/// A removed secret and its variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Removed {
    pub(super) variable: String,
    pub(super) pointer: String,
}

/// Allocates variables for one agent.
#[derive(Debug)]
pub(super) struct SecretVariables<'a> {
    /// Prefix of the variables that the reading program may access.
    pub(super) space: &'static str,
    pub(super) prefix: &'a str,
    /// All allocated variables.
    pub(super) named: &'a mut BTreeSet<String>,
    pub(super) removed: Vec<Removed>,
}

impl SecretVariables<'_> {
    /// Returns the reference that replaces the secret at `pointer`.
    pub(super) fn refer(&mut self, path: &str, pointer: &str) -> Value {
        let wanted = format!("{}{}_{}", self.space, self.prefix, variable_part(path));
        let variable = unique(&wanted, '_', self.named);
        let reference = format!("env:{variable}");
        self.removed.push(Removed {
            variable,
            pointer: pointer.to_owned(),
        });
        Value::String(reference)
    }

    /// Returns a value without its secrets at any depth. `path`: its path below the agent's config.
    pub(super) fn clean(&mut self, name: &str, path: &str, pointer: &str, value: Value) -> Value {
        match value {
            Value::String(text) if is_secret(name, &text) => self.refer(path, pointer),
            Value::Array(items) => items
                .into_iter()
                .enumerate()
                .map(|(at, item)| {
                    self.clean(
                        name,
                        &format!("{path}_{at}"),
                        &format!("{pointer}/{at}"),
                        item,
                    )
                })
                .collect(),
            Value::Object(members) => members
                .into_iter()
                .map(|(key, item)| {
                    let below = format!("{pointer}/{}", domain::form::escape_pointer(&key));
                    let item = self.clean(&key, &format!("{path}_{key}"), &below, item);
                    (key, item)
                })
                .collect(),
            plain => plain,
        }
    }
}

/// Converts a text to a part of a variable name.
pub(super) fn variable_part(text: &str) -> String {
    let letters = text.chars().map(|letter| {
        if letter.is_ascii_alphanumeric() {
            letter.to_ascii_uppercase()
        } else {
            '_'
        }
    });
    let joined: String = letters.collect();
    let parts = joined.split('_').filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("_")
}

/// Returns `wanted`, with a numeric suffix if it is taken.
pub(super) fn unique(wanted: &str, joint: char, taken: &mut BTreeSet<String>) -> String {
    let mut name = wanted.to_owned();
    let mut number = 1;
    while !taken.insert(name.clone()) {
        number += 1;
        name = format!("{wanted}{joint}{number}");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_secrets_by_name_prefix_or_url() {
        for (name, text, expected) in [
            ("api-key", "x", true),
            ("api-key", "", false),
            ("api-key", "env:MINE", false),
            ("openai_api_key", "x", true),
            ("accessToken", "x", true),
            ("jwt-secret", "x", true),
            ("key", "x", true),
            ("api-keys", "x", true),
            ("db-pwd", "x", true),
            ("session-cookie", "x", true),
            ("max-tokens", "4096", false),
            ("header", "bearer abc", true),
            ("note", "AKIAIOSFODNN7EXAMPLE", true),
            ("note", "日本語の長い文章はここにあります", false),
            ("output-key", "response", false),
            ("jwt-algorithm", "HS256", false),
            ("header-name", "X-Key", false),
            ("prompt", "sk-123", true),
            ("url", "https://user:pass@x.test/", true),
            ("url", "https://x.test/a?access_token=1", true),
            ("url", "https://x.test/a@b?page=1", false),
            ("env-json", r#"{"A":"b"}"#, true),
            ("env-json", "{}", false),
            ("base-prompt", "env: a word", false),
        ] {
            assert_eq!(is_secret(name, text), expected, "{name} = {text}");
        }
    }

    #[test]
    fn variable_names_are_valid_and_unique() {
        let mut named = BTreeSet::new();
        let mut vault = SecretVariables {
            space: "",
            prefix: "BOT",
            named: &mut named,
            removed: Vec::new(),
        };
        let value = serde_json::json!({"a-b": [{"api_key": "x"}], "api_key": "y", "plain": "z"});
        let clean = vault.clean("tweaks", "tweaks", "/t", value);
        assert_eq!(
            clean,
            serde_json::json!({"a-b": [{"api_key": "env:BOT_TWEAKS_A_B_0_API_KEY"}],
                "api_key": "env:BOT_TWEAKS_API_KEY", "plain": "z"})
        );
        assert_eq!(
            vault.refer("tweaks.api key", "/x"),
            "env:BOT_TWEAKS_API_KEY_2"
        );
        assert_eq!(vault.removed[0].pointer, "/t/a-b/0/api_key");
    }
}
