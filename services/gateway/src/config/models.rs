//! `[[model_providers]]` and `[[models]]`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use url::Url;

use super::endpoint::read_headers;
use super::fault::ConfigFault;
use super::prices::PriceEntry;
use super::provider_limits::ProviderLimitsEntry;
use super::routes::{Candidates, RouteEntry};
use super::secret_ref::SecretRef;
use super::table::{Reported, Table, integer, name, one_of, parsed, seconds, some_of, text};
use egress::parse_plain_url;

/// Default operations of a model.
const CHAT: [&str; 3] = ["invoke", "stream", "count_tokens"];
const IDLE: Duration = Duration::from_mins(1);
const MAX_KEYS: usize = 64;
/// Names of the output token limit parameter.
const BOUNDS: [&str; 2] = ["max_tokens", "max_completion_tokens"];
/// Request parameters that `extra_members` cannot enable, because the gateway sets them.
const NOT_OPENED: [&str; 4] = ["model", "messages", "stream", "stream_options"];

/// A provider and its connection. `Debug` shows no secret.
#[derive(Clone)]
pub struct ProviderEntry {
    pub name: String,
    /// `openai`, `anthropic`, `gemini` or `scripted`.
    pub kind: String,
    /// Required for all kinds except `scripted`.
    pub base_url: Option<Url>,
    pub api_keys: Vec<SecretRef>,
    pub headers: BTreeMap<String, SecretRef>,
    pub idle: Duration,
    /// Name of the output token limit parameter for kind `openai`. `None`: derived from the host.
    pub max_tokens_name: Option<String>,
    /// Further chat completion parameters that are sent to a server of kind `openai`.
    pub extra_members: Vec<String>,
    /// Support of the Responses API by a server of kind `openai`. `None`: derived from the host.
    pub responses: Option<bool>,
    /// Script of a `scripted` provider. `None`: it echoes its input.
    pub script: Option<PathBuf>,
    pub limits: ProviderLimitsEntry,
}

impl ProviderEntry {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let name = table.required("name", name);
        let kind = table.required(
            "kind",
            one_of(&["openai", "anthropic", "gemini", "scripted"]),
        );
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
        let max_tokens_name = table.optional("max_tokens_name", one_of(&BOUNDS));
        let extra_members = table.items("extra_members", |pointer, value, faults| {
            member(value).map_err(|message| {
                faults.push(ConfigFault::new(pointer, message));
                Reported
            })
        });
        let responses = table.optional("responses", |value| {
            value.as_bool().ok_or("must be true or false")
        });
        let script = table.optional("script", text);
        let limits = ProviderLimitsEntry::read(&mut table);
        let shape = check_shape(&mut table, &kind, &base_url, &script, &api_keys);
        let set = [
            (
                "api_keys",
                api_keys.as_ref().is_ok_and(|keys| !keys.is_empty()),
            ),
            ("headers", headers.as_ref().is_ok_and(|all| !all.is_empty())),
            ("idle_seconds", matches!(idle, Ok(Some(_)))),
            ("max_tokens_name", matches!(max_tokens_name, Ok(Some(_)))),
            (
                "extra_members",
                extra_members.as_ref().is_ok_and(|names| !names.is_empty()),
            ),
            ("responses", matches!(responses, Ok(Some(_)))),
        ];
        let set = set
            .iter()
            .filter(|(_, is_set)| *is_set)
            .map(|(key, _)| *key);
        let placed = check_keys_of_kind(&mut table, &kind, set);
        table.close()?;
        shape?;
        placed?;
        Ok(Self {
            name: name?,
            kind: kind?,
            base_url: base_url?,
            api_keys: api_keys?,
            headers: headers?,
            idle: idle?.unwrap_or(IDLE),
            max_tokens_name: max_tokens_name?,
            extra_members: extra_members?,
            responses: responses?,
            script: script?.map(PathBuf::from),
            limits: limits?,
        })
    }
}

/// Name of a request parameter that can be enabled.
fn member(value: Value) -> Result<String, String> {
    let name = name(value)?;
    // Otherwise a run could select another model, or disable the usage that budgets count.
    if NOT_OPENED.contains(&name.as_str()) {
        return Err("is the gateway's: it is never taken from a run".to_owned());
    }
    Ok(name)
}

/// Refuses keys that have no effect for the kind.
fn check_keys_of_kind(
    table: &mut Table<'_>,
    kind: &Result<String, Reported>,
    set: impl Iterator<Item = &'static str>,
) -> Result<(), Reported> {
    let Ok(kind) = kind else {
        return Err(Reported);
    };
    let mut placed = Ok(());
    for key in set {
        let is_openais = matches!(key, "max_tokens_name" | "extra_members" | "responses");
        if is_openais && kind != "openai" {
            placed = Err(table.fault(key, "is only for kind openai"));
        } else if kind == "scripted" {
            placed = Err(table.fault(
                key,
                "has no effect for kind scripted, which makes no requests; leave it out",
            ));
        }
    }
    placed
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
            return Err(table.fault(
                "base_url",
                "has no effect for kind scripted, which makes no requests; leave it out",
            ));
        }
        (_, Ok(Some(_))) if !is_scripted => {
            return Err(table.fault("script", "is only for kind scripted"));
        }
        _ => {}
    }
    match api_keys {
        Ok(keys) if keys.len() > MAX_KEYS => Err(table.fault("api_keys", "must be at most 64")),
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
            .field("max_tokens_name", &self.max_tokens_name)
            .field("extra_members", &self.extra_members)
            .field("script", &self.script)
            .field("responses", &self.responses)
            .field("limits", &self.limits)
            .finish()
    }
}

/// One model of the catalog.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelEntry {
    pub model_id: String,
    pub model_type: String,
    /// Name of the provider. `None`: a route.
    pub provider: Option<String>,
    /// Candidates of a route. Empty for a model with a provider.
    pub route: Vec<RouteEntry>,
    /// Models that are called after a failure, in this order.
    pub fallback: Vec<String>,
    /// Maximum wait for the first event of a stream while another candidate is left.
    pub first_byte: Option<Duration>,
    /// The provider's name for the model.
    pub upstream_model: Option<String>,
    pub operations: Vec<String>,
    /// Kinds of input that the model accepts. Empty: unknown.
    pub input_modalities: Vec<String>,
    pub context_window_tokens: Option<u64>,
    pub max_output_tokens: Option<u64>,
    /// `budget`, `adaptive` or `none`, for kind `anthropic`. `None`: derived from the model name.
    pub thinking: Option<String>,
    /// `o200k` or `cl100k`.
    pub vocabulary: String,
    /// `None`: 1 for kind `openai`, more for others.
    pub token_margin: Option<f64>,
    /// Maximum number of texts in one embedding request. `None`: adapts to the provider.
    pub embedding_batch: Option<u64>,
    pub price: PriceEntry,
    /// Calls reserve the upper bound of their completion tokens.
    pub reserves_worst: bool,
    pub limits: ProviderLimitsEntry,
}

impl ModelEntry {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let model_id = table.required("model_id", name);
        let model_type = table.optional("model_type", name);
        let provider = table.optional("provider", name);
        let candidates = Candidates::read(&mut table, &provider);
        let upstream_model = table.optional("upstream_model", name);
        let operations = table.optional(
            "operations",
            some_of(&["invoke", "stream", "count_tokens", "rerank"]),
        );
        let input_modalities = table.optional("input_modalities", some_of(&["text", "image"]));
        let tokens = || integer(1..=1_000_000_000);
        let context_window_tokens = table.optional("context_window_tokens", tokens());
        let max_output_tokens = table.optional("max_output_tokens", tokens());
        let thinking = table.optional("thinking", one_of(&["budget", "adaptive", "none"]));
        let vocabulary = table.optional("vocabulary", one_of(&["o200k", "cl100k"]));
        let token_margin = table.optional("token_margin", number(1.0, 10.0));
        let embedding_batch = table.optional("embedding_batch", integer(1..=2048));
        let price = PriceEntry::read(&mut table);
        let reserve = table.optional("reserve", one_of(&["expected", "worst"]));
        let limits = ProviderLimitsEntry::read(&mut table);
        table.close()?;
        let candidates = candidates?;
        Ok(Self {
            model_id: model_id?,
            model_type: model_type?.unwrap_or_else(|| "llm".to_owned()),
            provider: provider?,
            route: candidates.route,
            fallback: candidates.fallback,
            first_byte: candidates.first_byte,
            upstream_model: upstream_model?,
            operations: operations?.unwrap_or_else(|| CHAT.map(str::to_owned).to_vec()),
            input_modalities: input_modalities?.unwrap_or_default(),
            context_window_tokens: context_window_tokens?,
            max_output_tokens: max_output_tokens?,
            thinking: thinking?,
            vocabulary: vocabulary?.unwrap_or_else(|| "o200k".to_owned()),
            token_margin: token_margin?,
            embedding_batch: embedding_batch?,
            price: price?,
            reserves_worst: reserve?.is_some_and(|reserve| reserve == "worst"),
            limits: limits?,
        })
    }
}

pub(super) fn number(min: f64, max: f64) -> impl Fn(Value) -> Result<f64, String> {
    move |value| {
        let number = value.as_f64().filter(|number| (min..=max).contains(number));
        number.ok_or_else(|| format!("must be a number from {min} to {max}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Pointers of the provider's faults.
    fn faults(provider: Value) -> Vec<String> {
        let mut faults = Vec::new();
        let table = Table::open("p".to_owned(), provider, &mut faults).unwrap();
        let is_read = ProviderEntry::read(table).is_ok();
        assert_eq!(is_read, faults.is_empty(), "{faults:?}");
        faults.into_iter().map(|fault| fault.pointer).collect()
    }

    #[test]
    fn refuses_keys_without_effect_for_the_kind() {
        let of = |kind: &str, more: Value| {
            let mut provider = json!({"name": "p", "kind": kind});
            let members = provider.as_object_mut().unwrap();
            if kind != "scripted" {
                members.insert("base_url".to_owned(), json!("https://a.example"));
            }
            members.extend(more.as_object().unwrap().clone());
            faults(provider)
        };
        let keys = json!({"api_keys": ["env:A"], "headers": {"x-a": "env:B"}, "idle_seconds": 5});
        assert!(of("openai", keys.clone()).is_empty());
        assert!(of("anthropic", keys.clone()).is_empty());
        assert!(of("gemini", keys.clone()).is_empty());
        let found = of("scripted", keys);
        assert_eq!(found, ["p.api_keys", "p.headers", "p.idle_seconds"]);
        assert!(of("scripted", json!({"api_keys": [], "headers": {}})).is_empty());

        let opened = json!({"extra_members": ["guided_json"], "max_tokens_name": "max_completion_tokens", "responses": true});
        assert!(of("openai", opened.clone()).is_empty());
        for kind in ["anthropic", "gemini", "scripted"] {
            let found = of(kind, opened.clone());
            let expected = ["p.max_tokens_name", "p.extra_members", "p.responses"];
            assert_eq!(found, expected, "{kind}");
        }
        let found = of(
            "openai",
            json!({"extra_members": ["a", "model", ""], "max_tokens_name": "n"}),
        );
        let malformed = [
            "p.max_tokens_name",
            "p.extra_members[1]",
            "p.extra_members[2]",
        ];
        assert_eq!(found, malformed);
    }
}
