//! `[[model_providers]]` and `[[models]]`: where models are asked, and which there are.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use url::Url;

use super::endpoint::read_headers;
use super::fault::ConfigFault;
use super::plain_url::parse_plain_url;
use super::secret_ref::SecretRef;
use super::table::{Reported, Table, name, one_of, parsed, seconds, some_of, text, whole};

/// What may be done with a model that says nothing else.
const CHAT: [&str; 3] = ["invoke", "stream", "count_tokens"];
const IDLE: Duration = Duration::from_mins(1);
const MOST_KEYS: usize = 64;

/// A provider and how it is reached. Prints no secret.
#[derive(Clone)]
pub struct ProviderEntry {
    pub name: String,
    /// `openai`, `anthropic` or `scripted`.
    pub kind: String,
    /// Of all but scripted ones.
    pub base_url: Option<Url>,
    pub api_keys: Vec<SecretRef>,
    pub headers: BTreeMap<String, SecretRef>,
    pub idle: Duration,
    /// What a scripted one says; `None`: it repeats what it hears.
    pub script: Option<PathBuf>,
}

impl ProviderEntry {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let name = table.required("name", name);
        let kind = table.required("kind", one_of(&["openai", "anthropic", "scripted"]));
        let base_url = table.optional("base_url", |value| {
            parse_plain_url(&text(value)?).map_err(|error| error.to_string())
        });
        let api_keys = table.items("api_keys", |pointer, value, faults| {
            parsed(value).map_err(|message: String| {
                faults.push(ConfigFault::new(pointer, message));
                Reported
            })
        });
        let headers = read_headers(&mut table);
        let idle = table.optional("idle_seconds", seconds(0.05..=3600.0));
        let script = table.optional("script", text);
        let shape = check_shape(&mut table, &kind, &base_url, &script, &api_keys);
        table.close()?;
        shape?;
        Ok(Self {
            name: name?,
            kind: kind?,
            base_url: base_url?,
            api_keys: api_keys?,
            headers: headers?,
            idle: idle?.unwrap_or(IDLE),
            script: script?.map(PathBuf::from),
        })
    }
}

fn check_shape(
    table: &mut Table<'_>,
    kind: &Result<String, Reported>,
    base_url: &Result<Option<Url>, Reported>,
    script: &Result<Option<String>, Reported>,
    api_keys: &Result<Vec<SecretRef>, Reported>,
) -> Result<(), Reported> {
    let is_scripted = kind.as_ref().is_ok_and(|kind| kind == "scripted");
    match (base_url, script) {
        (Ok(None), _) if !is_scripted => return Err(table.fault("base_url", "is required")),
        (Ok(Some(url)), _) if url.query().is_some() => {
            return Err(table.fault("base_url", "must have no query"));
        }
        (Ok(Some(_)), _) if is_scripted => {
            return Err(table.fault("base_url", "is not for kind scripted: it asks nobody"));
        }
        (_, Ok(Some(_))) if !is_scripted => {
            return Err(table.fault("script", "is for kind scripted alone"));
        }
        _ => {}
    }
    match api_keys {
        Ok(keys) if keys.len() > MOST_KEYS => Err(table.fault("api_keys", "must be at most 64")),
        _ => Ok(()),
    }
}

impl fmt::Debug for ProviderEntry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ProviderEntry")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("base_url", &self.base_url.as_ref().map(Url::as_str))
            .field("api_keys", &self.api_keys)
            .field("headers", &self.headers)
            .field("idle", &self.idle)
            .field("script", &self.script)
            .finish()
    }
}

/// One model of the catalog.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelEntry {
    pub model_id: String,
    pub model_type: String,
    /// The name of its provider.
    pub provider: String,
    /// Its name there.
    pub upstream_model: Option<String>,
    pub operations: Vec<String>,
    pub context_window_tokens: Option<u64>,
    pub max_output_tokens: Option<u64>,
    /// `o200k` or `cl100k`.
    pub vocabulary: String,
    /// `None`: 1 at providers of kind `openai`, else more.
    pub token_margin: Option<f64>,
    /// What a million tokens cost, in the operator's currency.
    pub input_price: Option<f64>,
    pub output_price: Option<f64>,
}

impl ModelEntry {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let model_id = table.required("model_id", name);
        let model_type = table.optional("model_type", name);
        let provider = table.required("provider", name);
        let upstream_model = table.optional("upstream_model", name);
        let operations = table.optional(
            "operations",
            some_of(&["invoke", "stream", "count_tokens", "rerank"]),
        );
        let tokens = || whole(1..=1_000_000_000);
        let context_window_tokens = table.optional("context_window_tokens", tokens());
        let max_output_tokens = table.optional("max_output_tokens", tokens());
        let vocabulary = table.optional("vocabulary", one_of(&["o200k", "cl100k"]));
        let token_margin = table.optional("token_margin", number(1.0, 10.0));
        let input_price = table.optional("input_price", number(0.0, 1e6));
        let output_price = table.optional("output_price", number(0.0, 1e6));
        table.close()?;
        Ok(Self {
            model_id: model_id?,
            model_type: model_type?.unwrap_or_else(|| "llm".to_owned()),
            provider: provider?,
            upstream_model: upstream_model?,
            operations: operations?.unwrap_or_else(|| CHAT.map(str::to_owned).to_vec()),
            context_window_tokens: context_window_tokens?,
            max_output_tokens: max_output_tokens?,
            vocabulary: vocabulary?.unwrap_or_else(|| "o200k".to_owned()),
            token_margin: token_margin?,
            input_price: input_price?,
            output_price: output_price?,
        })
    }
}

pub(super) fn number(least: f64, most: f64) -> impl Fn(Value) -> Result<f64, String> {
    move |value| {
        let number = value
            .as_f64()
            .filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("must be a number from {least} to {most}"))
    }
}
