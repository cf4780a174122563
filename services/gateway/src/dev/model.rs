//! Selects the model of the playground: from the variables of OpenAI's clients, else the first chat model of
//! `runnel.toml` in the working directory, else a script.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use langbot::migrate::toml_text;
use protocol::JsonObject;
use secrecy::SecretString;
use serde_json::{Value, json};
use url::Url;

use crate::config::{OpenAiVariables, SecretRef, parse_toml};
use cli::dev_file::write_private;
use egress::Egress;
use egress::{AllowRule, parse_plain_url};
use models::{DeviationCounts, OpenAi, ProviderAddress};

const SCRIPT: &str = include_str!("script.toml");
const SCRIPT_FILE: &str = "script.toml";
/// Script of the planner, and the name of its model.
const PLAN: &str = include_str!("planner.toml");
const PLAN_FILE: &str = "planner.toml";
const PLANNER: &str = "plan";
const OPENAI: &str = "https://api.openai.com/v1";
/// Default model at OpenAI: small, with tool calls.
const OPENAI_MODEL: &str = "gpt-4o-mini";
const KEY: &str = "OPENAI_API_KEY";
const CONNECT: Duration = Duration::from_secs(5);
/// Timeout of a provider's model list.
const LISTING: Duration = Duration::from_secs(10);

/// The requested kind of model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelPreference {
    /// A real model, if one is configured.
    Any,
    Script,
}

/// Source of the selected model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelOrigin {
    /// No model is configured, or the script was requested.
    Script { file: PathBuf },
    /// Variables of OpenAI's own clients.
    Environment { base_url: String },
    /// The `runnel.toml` of the working directory.
    File,
}

/// A model and its provider, as configuration tables.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ChosenModel {
    pub(super) model_id: String,
    pub(super) origin: ModelOrigin,
    /// Rule that the provider needs in `egress.allow`.
    pub(super) rule: Option<String>,
    provider: Value,
    model: Value,
    /// Script of the planner, if the model is a script.
    plan: Option<PathBuf>,
}

/// Selects the model. `own_settings`: the `runnel.toml` of the working directory. A script is written to `data_dir`.
pub(super) async fn choose(
    data_dir: &Path,
    wanted: ModelPreference,
    own_settings: Option<&Path>,
) -> anyhow::Result<ChosenModel> {
    if wanted == ModelPreference::Any {
        let variables = OpenAiVariables::read();
        if variables.has_key || variables.base_url.is_some() {
            return of_environment(variables).await;
        }
        if let Some(file) = own_settings
            && let Some(chosen) = of_file(file).await?
        {
            return Ok(chosen);
        }
    }
    let file = data_dir.join(SCRIPT_FILE);
    // Written on each start: a newer version may have another script.
    write_private(&file, SCRIPT)?;
    let plan = data_dir.join(PLAN_FILE);
    write_private(&plan, PLAN)?;
    Ok(ChosenModel {
        model_id: "script".to_owned(),
        rule: None,
        provider: json!({"name": "script", "kind": "scripted", "script": file.to_string_lossy()}),
        model: json!({"model_id": "script", "provider": "script"}),
        plan: Some(plan),
        origin: ModelOrigin::Script { file },
    })
}

impl ChosenModel {
    /// Model of the planner.
    pub(super) fn planner(&self) -> &str {
        if self.plan.is_some() {
            PLANNER
        } else {
            &self.model_id
        }
    }

    /// Models of the planner and its child runs as TOML values; the planner's model is first.
    pub(super) fn planner_models(&self) -> Vec<String> {
        let mut models = vec![self.planner(), &self.model_id];
        // With a real model, the planner and its child runs share one.
        models.dedup();
        let models = models.iter().map(|model| toml_text::value(&json!(model)));
        models.collect()
    }

    /// TOML tables of the model and its provider.
    pub(super) fn tables(&self) -> String {
        let plan = self.plan.as_ref().map(|file| {
            let file = file.to_string_lossy();
            let provider = json!({"name": PLANNER, "kind": "scripted", "script": file});
            [provider, json!({"model_id": PLANNER, "provider": PLANNER})]
        });
        let mut tables = vec![("model_providers", &self.provider), ("models", &self.model)];
        if let Some([provider, model]) = &plan {
            tables.extend([("model_providers", provider), ("models", model)]);
        }
        let tables = tables.into_iter().map(|(array, table)| {
            let entries = table.as_object().into_iter().flatten();
            let line = |(key, value): (&String, &Value)| {
                format!("{} = {}", toml_text::key(key), toml_text::value(value))
            };
            let lines: Vec<_> = entries.map(line).collect();
            format!("[[{array}]]\n{}", lines.join("\n"))
        });
        tables.collect::<Vec<_>>().join("\n\n")
    }
}

async fn of_environment(variables: OpenAiVariables) -> anyhow::Result<ChosenModel> {
    // Another server does not have OpenAI's models, so its list decides.
    let is_elsewhere = variables.base_url.is_some();
    let base_url = variables.base_url.unwrap_or_else(|| OPENAI.to_owned());
    let url =
        parse_plain_url(&base_url).map_err(|error| anyhow::anyhow!("OPENAI_BASE_URL {error}"))?;
    let rule = rule_for(&url).await?;
    let key = variables
        .has_key
        .then(|| SecretRef::Environment(KEY.to_owned()));
    let model_id = match variables.model {
        Some(model) => model,
        None if is_elsewhere => first_listed(url, rule.as_deref(), key.as_ref())
            .await
            .context("OPENAI_MODEL is not set, and OPENAI_BASE_URL lists no models; set it")?,
        None => OPENAI_MODEL.to_owned(),
    };
    let keys: Vec<_> = key.iter().map(SecretRef::to_string).collect();
    Ok(ChosenModel {
        provider: json!({"name": "openai", "kind": "openai", "base_url": base_url, "api_keys": keys}),
        model: json!({"model_id": model_id, "provider": "openai"}),
        plan: None,
        origin: ModelOrigin::Environment { base_url },
        model_id,
        rule,
    })
}

pub(super) async fn first_listed(
    base_url: Url,
    rule: Option<&str>,
    key: Option<&SecretRef>,
) -> anyhow::Result<String> {
    let rules: Result<Vec<AllowRule>, _> = rule.into_iter().map(str::parse).collect();
    let keys: Result<Vec<SecretString>, _> = key.into_iter().map(SecretRef::resolve).collect();
    let address = ProviderAddress {
        base_url,
        api_keys: keys?,
        headers: BTreeMap::new(),
        idle: LISTING,
        deviations: DeviationCounts::new("openai"),
    };
    let provider = OpenAi::new(Egress::new(rules?, CONNECT)?, address);
    let first = provider.list_models().await?.into_iter().next();
    first.context("the list is empty")
}

/// Reads a model and its provider from a file.
async fn of_file(path: &Path) -> anyhow::Result<Option<ChosenModel>> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("{} cannot be read", path.display()))?;
    let settings = parse_toml(path, &text).map_err(|fault| anyhow::anyhow!(fault.message))?;
    let Some((model, provider)) = first_chat_model(&settings) else {
        return Ok(None);
    };
    let base_url = provider.get("base_url").and_then(Value::as_str);
    // The configuration check reports an invalid URL.
    let rule = match base_url.and_then(|url| parse_plain_url(url).ok()) {
        Some(url) => rule_for(&url).await?,
        None => None,
    };
    Ok(Some(ChosenModel {
        model_id: model["model_id"].as_str().unwrap_or_default().to_owned(),
        plan: None,
        origin: ModelOrigin::File,
        rule,
        model: Value::Object(model.clone()),
        provider: Value::Object(provider.clone()),
    }))
}

/// The first streaming chat model and its provider.
fn first_chat_model(settings: &Value) -> Option<(&JsonObject, &JsonObject)> {
    let tables = |name: &str| settings[name].as_array().into_iter().flatten();
    let chats = |model: &&JsonObject| {
        let operations = model.get("operations").and_then(Value::as_array);
        let streams = operations.is_none_or(|all| all.contains(&json!("stream")));
        streams && model.get("model_type").is_none_or(|kind| kind == "llm")
    };
    let model = tables("models").filter_map(Value::as_object).find(chats)?;
    let name = model.get("provider")?;
    let mut providers = tables("model_providers").filter_map(Value::as_object);
    let provider = providers.find(|provider| provider.get("name") == Some(name))?;
    Some((model, provider))
}

/// The rule that `egress.allow` needs for this URL: its host and port, unless it is public HTTPS.
pub(super) async fn rule_for(url: &Url) -> anyhow::Result<Option<String>> {
    let egress = Egress::new(Vec::new(), CONNECT)?;
    let address = url.host_str().zip(url.port_or_known_default());
    match address {
        Some((host, port)) if egress.needs_rule(url).await => Ok(Some(format!("{host}:{port}"))),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(settings: &Value) -> Option<(String, String)> {
        let (model, provider) = first_chat_model(settings)?;
        let name = |table: &JsonObject, key| table[key].as_str().unwrap().to_owned();
        Some((name(model, "model_id"), name(provider, "name")))
    }

    #[test]
    fn selects_the_first_streaming_chat_model() {
        let provider = |name: &str| json!({"name": name, "kind": "scripted"});
        let settings = |models: Value| json!({"models": models, "model_providers": [provider("p"), provider("q")]});
        let found = |model: &str, provider: &str| Some((model.to_owned(), provider.to_owned()));
        for (models, expected) in [
            (json!([]), None),
            (json!([{"model_id": "a", "provider": "q"}]), found("a", "q")),
            (
                json!([
                    {"model_id": "embedder", "provider": "p", "operations": ["invoke"]},
                    {"model_id": "ranker", "provider": "p", "model_type": "rerank"},
                    {"model_id": "talker", "provider": "p", "operations": ["stream"]},
                ]),
                found("talker", "p"),
            ),
            (json!([{"model_id": "a", "provider": "nobody"}]), None),
            (json!("none"), None),
        ] {
            assert_eq!(chosen(&settings(models.clone())), expected, "{models}");
        }
    }

    #[tokio::test]
    async fn private_addresses_need_a_rule_public_ones_none() {
        for (url, rule) in [
            ("http://127.0.0.1:11434/v1", Some("127.0.0.1:11434")),
            ("http://[::1]:8080/v1", Some("[::1]:8080")),
            ("https://10.1.2.3/v1", Some("10.1.2.3:443")),
            ("http://localhost:1234", Some("localhost:1234")),
            ("https://1.1.1.1/v1", None),
        ] {
            let found = rule_for(&url.parse().unwrap()).await.unwrap();
            assert_eq!(found.as_deref(), rule, "{url}");
            if let Some(rule) = found {
                rule.parse::<AllowRule>().unwrap();
            }
        }
    }

    #[test]
    fn playground_script_is_valid() {
        let script = parse_toml(Path::new(SCRIPT_FILE), SCRIPT).unwrap();
        models::Script::read(Some(script)).unwrap();
    }
}
