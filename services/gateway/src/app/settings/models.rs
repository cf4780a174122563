//! Models and their providers, secrets and scripts included.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::clock::Clock;
use crate::config::{Config, ConfigFault, ModelEntry, ProviderEntry, parse_toml};
use crate::outbound::egress::Egress;
use crate::outbound::model::{
    Anthropic, Model, Models, OpenAi, Price, Provider, ProviderAddress, Script, Scripted,
    TokenCount, Vocabulary, Watched,
};

/// A script is read whole.
const SCRIPT_BYTES: u64 = 1024 * 1024;
/// What a model with a vocabulary of its own may count more than OpenAI's.
const MARGIN: f64 = 1.25;

/// Providers that can be spoken to, and the models that they have.
#[derive(Clone, Default)]
pub(crate) struct DeclaredModels {
    /// In the order of the configuration.
    providers: Vec<(String, DeclaredProvider)>,
    models: Vec<ModelEntry>,
}

#[derive(Clone)]
enum DeclaredProvider {
    OpenAi(Arc<ProviderAddress>),
    Anthropic(Arc<ProviderAddress>),
    Scripted(Arc<Scripted>),
}

/// Reads what the configuration declares.
pub(super) fn declared_models(
    config: &Config,
    egress: Option<&Egress>,
    faults: &mut Vec<ConfigFault>,
) -> DeclaredModels {
    let mut providers = Vec::new();
    for (index, entry) in config.model_providers.iter().enumerate() {
        let place = format!("model_providers[{index}]");
        if let Some(provider) = provider(entry, egress, &place, faults) {
            providers.push((entry.name.clone(), provider));
        }
    }
    for (index, entry) in config.models.iter().enumerate() {
        let is_known = config
            .model_providers
            .iter()
            .any(|one| one.name == entry.provider);
        if !is_known {
            let place = format!("models[{index}].provider");
            faults.push(ConfigFault::new(
                place,
                "must be the name of one of model_providers",
            ));
        }
    }
    DeclaredModels {
        providers,
        models: config.models.clone(),
    }
}

fn provider(
    entry: &ProviderEntry,
    egress: Option<&Egress>,
    place: &str,
    faults: &mut Vec<ConfigFault>,
) -> Option<DeclaredProvider> {
    let Some(base_url) = entry.base_url.clone() else {
        return match script(entry.script.as_deref()) {
            Ok(script) => Some(DeclaredProvider::Scripted(Arc::new(Scripted::new(script)))),
            Err(message) => {
                faults.push(ConfigFault::new(format!("{place}.script"), message));
                None
            }
        };
    };
    super::check_egress(egress, &base_url, &format!("{place}.base_url"), faults);
    let keys = entry.api_keys.iter().enumerate();
    let api_keys = keys
        .map(|(n, key)| super::secrets::secret(key, &format!("{place}.api_keys[{n}]"), faults))
        .collect();
    let address = Arc::new(ProviderAddress {
        base_url,
        api_keys,
        headers: super::secrets::headers(&entry.headers, place, faults),
        idle: entry.idle,
    });
    Some(match entry.kind.as_str() {
        "anthropic" => DeclaredProvider::Anthropic(address),
        _ => DeclaredProvider::OpenAi(address),
    })
}

fn script(path: Option<&Path>) -> Result<Script, String> {
    let Some(path) = path else {
        return Script::read(None).map_err(|fault| fault.to_string());
    };
    let unreadable = |error: std::io::Error| format!("{} cannot be read: {error}", path.display());
    let size = std::fs::metadata(path).map_err(unreadable)?.len();
    if size > SCRIPT_BYTES {
        return Err(format!("{} is larger than 1 MiB", path.display()));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let value = parse_toml(path, &text).map_err(|fault| fault.to_string())?;
    Script::read(Some(value)).map_err(|fault| format!("{}: {fault}", path.display()))
}

impl DeclaredModels {
    /// The models, ready to be asked through `egress`.
    pub(crate) fn open(&self, egress: &Egress, clock: Clock) -> Models {
        let open = |provider: &DeclaredProvider| -> Arc<dyn Provider> {
            match provider {
                DeclaredProvider::OpenAi(address) => {
                    Arc::new(OpenAi::new(egress.clone(), (**address).clone()))
                }
                DeclaredProvider::Anthropic(address) => {
                    Arc::new(Anthropic::new(egress.clone(), (**address).clone()))
                }
                DeclaredProvider::Scripted(scripted) => Arc::clone(scripted) as Arc<dyn Provider>,
            }
        };
        let opened: BTreeMap<_, _> = self
            .providers
            .iter()
            .map(|(name, declared)| {
                let base_url = declared.base_url();
                let watched = Watched::new(name, declared.kind(), base_url, open(declared), clock);
                (name.as_str(), (Arc::new(watched), declared))
            })
            .collect();
        let model = |entry: &ModelEntry| {
            let (provider, declared) = opened.get(entry.provider.as_str())?;
            let price = Price {
                input: entry.input_price.unwrap_or(0.0),
                output: entry.output_price.unwrap_or(0.0),
            };
            let model = Model {
                provider: Arc::clone(provider),
                upstream: entry
                    .upstream_model
                    .clone()
                    .unwrap_or_else(|| entry.model_id.clone()),
                max_output_tokens: entry.max_output_tokens,
                price: (entry.input_price.is_some() || entry.output_price.is_some())
                    .then_some(price),
                count: TokenCount {
                    vocabulary: match entry.vocabulary.as_str() {
                        "cl100k" => Vocabulary::Cl100k,
                        _ => Vocabulary::O200k,
                    },
                    margin: entry.token_margin.unwrap_or_else(|| declared.margin()),
                },
            };
            Some((entry.model_id.clone(), model))
        };
        let models = self.models.iter().filter_map(model).collect();
        let in_order = self.providers.iter().filter_map(|(name, _)| {
            let (provider, _) = opened.get(name.as_str())?;
            Some(Arc::clone(provider))
        });
        Models::new(models, in_order.collect())
    }
}

impl DeclaredProvider {
    fn kind(&self) -> &'static str {
        match self {
            Self::OpenAi(_) => "openai",
            Self::Anthropic(_) => "anthropic",
            Self::Scripted(_) => "scripted",
        }
    }

    fn base_url(&self) -> Option<&str> {
        match self {
            Self::OpenAi(address) | Self::Anthropic(address) => Some(address.base_url.as_str()),
            Self::Scripted(_) => None,
        }
    }

    fn margin(&self) -> f64 {
        match self {
            Self::Anthropic(_) => MARGIN,
            Self::OpenAi(_) | Self::Scripted(_) => 1.0,
        }
    }
}
