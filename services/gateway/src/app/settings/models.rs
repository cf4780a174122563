//! Models and their providers, including secrets and scripts.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use url::Url;

use super::prices::price_of;
use crate::config::{
    Config, ConfigFault, ModelEntry, ProviderEntry, ProviderLimitsEntry, parse_toml,
};
use clock::Clock;
use egress::Egress;
use egress::rate::CallRate;
use llm_formats::anthropic::Thinking;
use llm_formats::{BOUNDS, UNSAID_TOKENS};
use models::{
    Anthropic, BatchSize, DeviationCounts, Gemini, Model, ModelRoute, Models, MonitoredProvider,
    OpenAi, Provider, ProviderAddress, ProviderLimitSpec, Script, Scripted, TokenCount, Vocabulary,
};

/// Maximum size of a script; it is read into memory.
const SCRIPT_BYTES: u64 = 1024 * 1024;
/// Safety factor for token counts of models whose vocabulary is not OpenAI's.
const MARGIN: f64 = 1.25;

/// Usable providers and their models.
#[derive(Clone, Default)]
pub(crate) struct DeclaredModels {
    /// In the order of the configuration.
    providers: Vec<(String, DeclaredProvider)>,
    limits: BTreeMap<String, ProviderLimitSpec>,
    models: Vec<ModelEntry>,
}

#[derive(Clone)]
enum DeclaredProvider {
    OpenAi(Arc<OpenAiServer>),
    Anthropic(Arc<ProviderAddress>),
    Gemini(Arc<ProviderAddress>),
    Scripted(Arc<Scripted>),
}

/// A server with an OpenAI-compatible API.
struct OpenAiServer {
    address: ProviderAddress,
    /// Name of the output token limit parameter. `None`: derived from the host.
    bound: Option<&'static str>,
    extra_members: Arc<[String]>,
    /// Support of the Responses API. `None`: derived from the host.
    responses: Option<bool>,
}

/// Reads the declared providers and models.
pub(super) fn declared_models(
    config: &Config,
    egress: Option<&Egress>,
    faults: &mut Vec<ConfigFault>,
) -> DeclaredModels {
    let mut providers = Vec::new();
    for (index, entry) in config.model_providers.iter().enumerate() {
        let pointer = format!("model_providers[{index}]");
        if let Some(provider) = provider(entry, egress, &pointer, faults) {
            providers.push((entry.name.clone(), provider));
        }
    }
    for (index, entry) in config.models.iter().enumerate() {
        let mut fault = |key: &str, message: &str| {
            let pointer = format!("models[{index}].{key}");
            faults.push(ConfigFault::new(pointer, message));
        };
        let all = &mut config.model_providers.iter();
        let Some(name) = &entry.provider else {
            continue;
        };
        match all.find(|one| one.name == *name) {
            None => fault("provider", "must be the name of one of model_providers"),
            Some(provider) if provider.kind != "anthropic" && entry.thinking.is_some() => {
                fault("thinking", "is only for providers of kind anthropic");
            }
            Some(_) => {}
        }
        if contradicts(entry, &config.models[..index]) {
            let message = "must be the same for all models with this provider and upstream_model";
            fault("thinking", message);
        }
    }
    let limits = config.model_providers.iter();
    DeclaredModels {
        providers,
        limits: limits
            .map(|entry| (entry.name.clone(), limit_spec(entry.limits)))
            .collect(),
        models: config.models.clone(),
    }
}

fn limit_spec(entry: ProviderLimitsEntry) -> ProviderLimitSpec {
    ProviderLimitSpec {
        concurrency: entry.concurrency,
        rate: entry.rate.map(|per_minute| CallRate {
            per_minute,
            burst: entry.burst.unwrap_or(per_minute),
        }),
        tokens_per_minute: entry.tokens_per_minute,
        queue: entry.queue,
    }
}

/// True if an earlier entry sets another thinking mode for the same upstream model.
fn contradicts(entry: &ModelEntry, before: &[ModelEntry]) -> bool {
    before.iter().any(|other| {
        let names = |entry: &ModelEntry| (entry.provider.clone(), upstream(entry).to_owned());
        // An entry without a mode takes the other's, so only two explicit ones contradict.
        let both_set = entry.thinking.is_some() && other.thinking.is_some();
        both_set && entry.thinking != other.thinking && names(entry) == names(other)
    })
}

/// The provider's name for the model.
fn upstream(entry: &ModelEntry) -> &str {
    entry.upstream_model.as_ref().unwrap_or(&entry.model_id)
}

fn provider(
    entry: &ProviderEntry,
    egress: Option<&Egress>,
    pointer: &str,
    faults: &mut Vec<ConfigFault>,
) -> Option<DeclaredProvider> {
    let Some(base_url) = entry.base_url.clone() else {
        return match script(entry.script.as_deref()) {
            Ok(script) => Some(DeclaredProvider::Scripted(Arc::new(Scripted::new(script)))),
            Err(message) => {
                faults.push(ConfigFault::new(format!("{pointer}.script"), message));
                None
            }
        };
    };
    super::check_egress(egress, &base_url, &format!("{pointer}.base_url"), faults);
    let keys = entry.api_keys.iter().enumerate();
    let api_keys = keys
        .map(|(n, key)| super::secrets::secret(key, &format!("{pointer}.api_keys[{n}]"), faults))
        .collect();
    let address = ProviderAddress {
        base_url,
        api_keys,
        headers: super::secrets::headers(&entry.headers, pointer, faults),
        idle: entry.idle,
        deviations: DeviationCounts::new(&entry.name),
    };
    Some(match entry.kind.as_str() {
        "anthropic" => DeclaredProvider::Anthropic(Arc::new(address)),
        "gemini" => DeclaredProvider::Gemini(Arc::new(address)),
        _ => DeclaredProvider::OpenAi(Arc::new(OpenAiServer {
            address,
            bound: entry.max_tokens_name.as_ref().and_then(|name| {
                let mut bounds = BOUNDS.into_iter();
                bounds.find(|bound| *bound == name.as_str())
            }),
            extra_members: entry.extra_members.clone().into(),
            responses: entry.responses,
        })),
    })
}

fn script(path: Option<&Path>) -> Result<Script, String> {
    let Some(path) = path else {
        return Script::read(None).map_err(|fault| fault.to_string());
    };
    let unreadable = |error: std::io::Error| format!("{} cannot be read: {error}", path.display());
    // The size is checked before the file is read into memory.
    let size = std::fs::metadata(path).map_err(unreadable)?.len();
    if size > SCRIPT_BYTES {
        return Err(format!("{} is larger than 1 MiB", path.display()));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let value = parse_toml(path, &text).map_err(|fault| fault.to_string())?;
    Script::read(Some(value)).map_err(|fault| format!("{}: {fault}", path.display()))
}

impl DeclaredModels {
    /// The models, ready for calls through `egress`.
    pub(crate) fn open(&self, egress: &Egress, clock: Clock) -> Models {
        let opened: BTreeMap<_, _> = self
            .providers
            .iter()
            .map(|(name, declared)| {
                let base_url = declared.base_url().map(Url::as_str);
                let watched = MonitoredProvider::new(
                    name,
                    declared.kind(),
                    base_url,
                    self.open_provider(name, declared, egress),
                    clock,
                );
                let watched =
                    watched.with_limits(self.limits.get(name).copied().unwrap_or_default());
                (name.as_str(), (Arc::new(watched), declared))
            })
            .collect();
        let model = |entry: &ModelEntry| {
            let (provider, declared) = opened.get(entry.provider.as_deref()?)?;
            let model = Model {
                provider: if entry.limits.is_limited() {
                    Arc::new(provider.for_model(limit_spec(entry.limits)))
                } else {
                    Arc::clone(provider)
                },
                upstream: upstream(entry).to_owned(),
                extra_members: declared.extra_members(),
                context_window_tokens: entry.context_window_tokens,
                max_output_tokens: entry.max_output_tokens,
                egress: egress.clone(),
                is_own: declared.base_url().is_some_and(|url| egress.is_opened(url)),
                batch_size: BatchSize::new(
                    entry
                        .embedding_batch
                        .and_then(|size| usize::try_from(size).ok()),
                ),
                price: price_of(&entry.price, declared.kind()),
                reserved_tokens: (!entry.reserves_worst).then_some(UNSAID_TOKENS),
                count: TokenCount {
                    vocabulary: match entry.vocabulary.as_str() {
                        "cl100k" => Vocabulary::Cl100k,
                        // The configuration check refuses other names.
                        _ => Vocabulary::O200k,
                    },
                    margin: entry.token_margin.unwrap_or_else(|| declared.margin()),
                },
            };
            Some((entry.model_id.clone(), model))
        };
        let models = self.models.iter().filter_map(model).collect();
        // In the order of the configuration; the map is sorted by name.
        let in_order = self.providers.iter().filter_map(|(name, _)| {
            let (provider, _) = opened.get(name.as_str())?;
            Some(Arc::clone(provider))
        });
        Models::new(models, in_order.collect()).with_routes(self.routes())
    }

    /// Routes, and models with fallbacks.
    fn routes(&self) -> BTreeMap<String, ModelRoute> {
        let several = |entry: &&ModelEntry| !entry.route.is_empty() || !entry.fallback.is_empty();
        let entries = self.models.iter().filter(several);
        let routes = entries.map(|entry| {
            let weighted: Vec<_> = if entry.route.is_empty() {
                vec![(entry.model_id.clone(), 1)]
            } else {
                let candidates = entry.route.iter();
                candidates
                    .map(|one| (one.model.clone(), one.weight))
                    .collect()
            };
            let route = ModelRoute {
                weighted,
                fallback: entry.fallback.clone(),
                first_byte: entry.first_byte,
            };
            (entry.model_id.clone(), route)
        });
        routes.collect()
    }

    fn open_provider(
        &self,
        name: &str,
        declared: &DeclaredProvider,
        egress: &Egress,
    ) -> Arc<dyn Provider> {
        match declared {
            DeclaredProvider::OpenAi(server) => {
                let provider = OpenAi::new(egress.clone(), server.address.clone());
                let provider = match server.bound {
                    Some(bound) => provider.with_bound(bound),
                    None => provider,
                };
                Arc::new(match server.responses {
                    Some(true) => provider.with_responses(),
                    Some(false) => provider.without_responses(),
                    None => provider,
                })
            }
            DeclaredProvider::Anthropic(address) => {
                let address = (**address).clone();
                Arc::new(Anthropic::new(egress.clone(), address, self.thinking(name)))
            }
            DeclaredProvider::Gemini(address) => {
                Arc::new(Gemini::new(egress.clone(), (**address).clone()))
            }
            DeclaredProvider::Scripted(scripted) => Arc::clone(scripted) as Arc<dyn Provider>,
        }
    }

    /// Thinking modes that the operator sets for models of a provider.
    fn thinking(&self, provider: &str) -> BTreeMap<String, Thinking> {
        let models = self
            .models
            .iter()
            .filter(|entry| entry.provider.as_deref() == Some(provider));
        let modes = models.filter_map(|entry| {
            let thinking = match entry.thinking.as_deref()? {
                "adaptive" => Thinking::Adaptive,
                "none" => Thinking::None,
                _ => Thinking::Budget,
            };
            Some((upstream(entry).to_owned(), thinking))
        });
        modes.collect()
    }
}

impl DeclaredProvider {
    fn kind(&self) -> &'static str {
        match self {
            Self::OpenAi(_) => "openai",
            Self::Anthropic(_) => "anthropic",
            Self::Gemini(_) => "gemini",
            Self::Scripted(_) => "scripted",
        }
    }

    fn base_url(&self) -> Option<&Url> {
        match self {
            Self::OpenAi(server) => Some(&server.address.base_url),
            Self::Anthropic(address) | Self::Gemini(address) => Some(&address.base_url),
            Self::Scripted(_) => None,
        }
    }

    fn extra_members(&self) -> Arc<[String]> {
        match self {
            Self::OpenAi(server) => Arc::clone(&server.extra_members),
            Self::Anthropic(_) | Self::Gemini(_) | Self::Scripted(_) => Arc::default(),
        }
    }

    fn margin(&self) -> f64 {
        match self {
            Self::Anthropic(_) | Self::Gemini(_) => MARGIN,
            Self::OpenAi(_) | Self::Scripted(_) => 1.0,
        }
    }
}
