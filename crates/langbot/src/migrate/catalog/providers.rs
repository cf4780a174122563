//! Model providers, and the API of each LangBot requester.

use std::collections::{BTreeMap, BTreeSet};

use protocol::JsonObject;
use serde_json::{Value, json};

use super::entry::{TableEntry, blocked, left_out};
use super::row::{CatalogRow, RowKind};
use crate::migrate::convert::short_name;
use crate::migrate::migration_table::TableKind;
use crate::migrate::report::Migration;
use crate::migrate::secrets::{has_credentials, unique, variable_part};

/// Requesters without a server of a known API.
const WITHOUT_SERVER: [(&str, &str); 3] = [
    (
        "openai-codex",
        "signs in with a person's account, which the gateway has no counterpart for",
    ),
    (
        "chroma-embedding",
        "computes vectors inside LangBot; declare an embedding model of a server",
    ),
    (
        "seekdb-embedding",
        "computes vectors inside LangBot; declare an embedding model of a server",
    ),
];
/// Maximum keys of a provider.
const KEYS: usize = 64;

/// API of a requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequesterApi {
    Anthropic,
    OpenAi,
    /// OpenAI's API below `/v1`.
    Ollama,
    /// Treated as OpenAI's API, which most requesters use.
    Unknown,
}

impl RequesterApi {
    fn of(requester: &str) -> Self {
        match requester {
            "anthropic-messages" => Self::Anthropic,
            "ollama-chat" => Self::Ollama,
            "litellm-chat" => Self::Unknown,
            other if other.ends_with("-chat-completions") || other.ends_with("-rerank") => {
                Self::OpenAi
            }
            _ => Self::Unknown,
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::OpenAi | Self::Ollama | Self::Unknown => "openai",
        }
    }

    /// Returns the base URL for the gateway, and the reason for a change.
    fn base_url(self, url: &str) -> (String, Option<&'static str>) {
        let plain = url.trim_end_matches('/');
        // Both APIs differ in the part of the path that the client adds.
        match self {
            Self::Anthropic if plain.ends_with("/v1") => (
                plain.trim_end_matches("/v1").to_owned(),
                Some("the gateway adds /v1 itself"),
            ),
            Self::Ollama if !plain.ends_with("/v1") => (
                format!("{plain}/v1"),
                Some("where Ollama speaks OpenAI's API"),
            ),
            _ => (plain.to_owned(), None),
        }
    }
}

/// Providers that models may refer to.
#[derive(Debug, Default)]
pub(super) struct Providers {
    /// Name of each provider by id. `None`: it is not migrated.
    planned: BTreeMap<String, Option<String>>,
    names: BTreeSet<String>,
    prefixes: BTreeSet<String>,
}

impl Providers {
    /// Plans the row of a provider.
    pub(super) fn plan(
        &mut self,
        row: &CatalogRow<'_>,
        out: &mut Migration,
        variables: &mut BTreeSet<String>,
    ) {
        let id = row.text("uuid").unwrap_or(&row.pointer).to_owned();
        self.add(id, row, out, variables);
    }

    /// Returns the name of a model's provider. Older rows contain the provider's columns; API answers contain
    /// the provider itself.
    pub(super) fn of_model(
        &mut self,
        row: &CatalogRow<'_>,
        out: &mut Migration,
        variables: &mut BTreeSet<String>,
    ) -> Option<String> {
        let id = row.text("provider_uuid");
        // A provider that is not migrated is remembered as well, so that it is reported once.
        if let Some(planned) = id.and_then(|id| self.planned.get(id)) {
            return planned.clone();
        }
        let (id, pointer, members) = if let Some(provider) = row.object("provider") {
            let id = provider.get("uuid").and_then(Value::as_str).or(id);
            (id?.to_owned(), row.at("provider"), provider.clone())
        } else {
            let requester = row.text("requester")?;
            let settings = row.object("requester_config");
            let base_url = settings.and_then(|settings| {
                let names = ["base_url", "base-url"];
                names.iter().find_map(|name| settings.get(*name))
            });
            let members = json!({
                "name": requester,
                "requester": requester,
                "base_url": base_url,
                "api_keys": row.value("api_keys"),
            });
            let members: JsonObject = members.as_object().cloned().unwrap_or_default();
            // Rows with the same server and keys share one provider.
            let id = Value::Object(members.clone()).to_string();
            (id, row.pointer.clone(), members)
        };
        if let Some(planned) = self.planned.get(&id) {
            return planned.clone();
        }
        let row = CatalogRow::new(row.file, pointer, RowKind::Provider, &members);
        self.add(id, &row, out, variables)
    }

    fn add(
        &mut self,
        id: String,
        row: &CatalogRow<'_>,
        out: &mut Migration,
        variables: &mut BTreeSet<String>,
    ) -> Option<String> {
        if let Some(planned) = self.planned.get(&id) {
            return planned.clone();
        }
        let requester = row.text("requester").unwrap_or_default();
        let shown = row.text("name").unwrap_or(requester);
        let wanted = short_name(shown).unwrap_or_else(|| "provider".to_owned());
        let name = unique(&wanted, ' ', &mut self.names);
        let url = match address(row, requester) {
            Ok(url) => url,
            Err(why) => {
                left_out(row, TableKind::ModelProvider, &name, blocked(why), out);
                self.planned.insert(id, None);
                return None;
            }
        };
        let prefix = match variable_part(&name) {
            part if part.is_empty() => "PROVIDER".to_owned(),
            // The gateway reads variables with this prefix as its own settings; digits cannot begin a name.
            part if part.starts_with("RUNNEL")
                || part.starts_with(|c: char| c.is_ascii_digit()) =>
            {
                format!("PROVIDER_{part}")
            }
            part => part,
        };
        let prefix = unique(&prefix, '_', &mut self.prefixes);
        let mut entry = TableEntry::new(row, TableKind::ModelProvider, &name, &prefix, variables);
        describe(&mut entry, row, requester, url, &name);
        entry.migrated(&format!("Model provider {}", uuid(row)), out);
        self.planned.insert(id, Some(name.clone()));
        Some(name)
    }
}

fn describe(
    entry: &mut TableEntry<'_, '_>,
    row: &CatalogRow<'_>,
    requester: &str,
    url: &str,
    name: &str,
) {
    let api = RequesterApi::of(requester);
    entry.set("name", "name", json!(name));
    let note = entry.set("requester", "kind", json!(api.kind()));
    if api == RequesterApi::Unknown {
        note.why = Some("assumed to be a server of OpenAI's API".to_owned());
        entry.warn(
            "requester",
            format!(
                "the requester {requester} is unknown: test the server with check-config --probe"
            ),
        );
    }
    let (base_url, how) = api.base_url(url);
    entry.set("base_url", "base_url", json!(base_url)).why = how.map(str::to_owned);
    let keys = match row.value("api_keys") {
        Value::Array(keys) => keys.clone(),
        Value::String(key) if !key.trim().is_empty() => vec![json!(key)],
        _ => Vec::new(),
    };
    let keys = keys.iter().enumerate().filter(|(_, key)| {
        let text = key.as_str().unwrap_or_default();
        !text.trim().is_empty()
    });
    let references: Vec<_> = keys
        .take(KEYS)
        .map(|(at, _)| {
            let pointer = format!("{}/{at}", row.at("api_keys"));
            entry.refer("api_key", &pointer, &format!("api_keys.{at}"))
        })
        .collect();
    if !references.is_empty() {
        entry.push("api_keys", json!(references));
    }
}

/// Returns the base URL of a provider, or the reason for which it has none.
fn address<'r>(row: &'r CatalogRow<'_>, requester: &str) -> Result<&'r str, String> {
    if let Some((_, why)) = WITHOUT_SERVER.iter().find(|(name, _)| *name == requester) {
        return Err(format!("its requester {requester} {why}"));
    }
    let url = row.text("base_url").ok_or("it has no base_url")?;
    let is_plain = url.starts_with("https://") || url.starts_with("http://");
    if !is_plain || url.contains(['?', '#']) {
        return Err("its base_url is no http or https URL without a query".to_owned());
    }
    if has_credentials(url) {
        return Err(
            "its base_url holds a secret, which no configuration may contain: remove it from the URL".to_owned(),
        );
    }
    Ok(url)
}

/// Returns the id of a row, for comments.
pub(super) fn uuid<'r>(row: &'r CatalogRow<'_>) -> &'r str {
    let plain = |id: &&str| !id.contains(char::is_control);
    row.text("uuid").filter(plain).unwrap_or("without an id")
}
