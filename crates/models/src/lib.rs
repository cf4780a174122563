//! Model providers with the interface of OpenAI chat completions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use protocol::JsonObject;
use protocol::limiter::LimiterStatus;
use protocol::model::ModelProvider;
use serde_json::json;

use egress::upstream::UpstreamError;
use egress::{Egress, EgressError};

mod anthropic;
mod api_keys;
mod batches;
mod bounds;
mod completions;
mod deviations;
mod embeddings;
mod exchange;
mod gemini;
mod http_provider;
mod openai;
mod payment;
mod price;
mod provider_health;
mod provider_limits;
mod refused_parts;
mod route;
mod scripted;
mod tokens;
mod wire_format;

pub use anthropic::Anthropic;
pub use api_keys::KeyCooldown;
pub use batches::BatchSize;
pub use bounds::{LEAST, THINKING_BUDGETS, ThoughtCount, UNSAID_WINDOW_TOKENS, value_at};
pub use deviations::DeviationCounts;
pub use embeddings::{ProviderEmbeddings, TextVector};
pub use exchange::ProviderAddress;
pub use gemini::Gemini;
pub use openai::OpenAi;
pub use payment::Payment;
pub use price::{Price, PriceTier, TokenRates};
pub use provider_health::{MonitoredProvider, ProviderProbe};
pub use provider_limits::ProviderLimitSpec;
use route::Cooldowns;
pub use route::{AfterFailure, ModelRoute, after_failure};
pub use scripted::{Script, ScriptFault, Scripted};
pub use tokens::{TokenCount, Vocabulary};
pub use wire_format::{ProviderRequest, WireFormat, WireRequest};

/// Chunks of one completion, each a `chat.completion.chunk`, or events of a wire format. An error is the last item.
pub type Chunks = BoxStream<'static, Result<JsonObject, UpstreamError>>;

/// A model provider. Bodies and responses follow OpenAI's API; `model` is the provider's own model name.
#[async_trait]
pub trait Provider: Send + Sync {
    /// Returns a complete answer: a completion, or a document of the wire format.
    async fn complete(&self, request: ProviderRequest) -> Result<JsonObject, UpstreamError>;
    /// Returns a streamed answer: chunks of a completion, or events of the wire format. The request is not retried
    /// after this has returned.
    async fn stream(&self, request: ProviderRequest) -> Result<Chunks, UpstreamError>;
    /// `{"model", "input": […]}` → its vectors.
    async fn embed(&self, body: JsonObject) -> Result<ProviderEmbeddings, UpstreamError>;
    /// `{"model", "query", "documents", "top_n"}` → `{"results": [{"index", "relevance_score"}]}`.
    async fn rerank(&self, body: JsonObject) -> Result<JsonObject, UpstreamError>;
    /// True if the provider accepts requests in this wire format without translation.
    fn supports(&self, _form: WireFormat) -> bool {
        false
    }
    /// Lists the model ids, once per key, or once without a key. Empty if the provider has no list, as for local
    /// ones.
    async fn list_models(&self) -> Vec<Result<Vec<String>, UpstreamError>> {
        vec![Ok(Vec::new())]
    }
    /// The parameter of [`BOUNDS`] that the provider reads.
    fn bound(&self) -> &'static str {
        "max_tokens"
    }
    /// Counting of thinking tokens by the provider.
    fn thought_count(&self) -> ThoughtCount {
        ThoughtCount::Beside
    }
    /// Cool-down of each key, in configuration order.
    fn key_cooldowns(&self) -> Vec<Option<KeyCooldown>> {
        Vec::new()
    }
    /// Number of accepted responses that deviated from the protocol, by kind.
    fn deviations(&self) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }
}

/// A model of the catalog and its provider.
#[derive(Clone)]
pub struct Model {
    pub provider: Arc<MonitoredProvider>,
    /// The provider's name for the model.
    pub upstream: String,
    pub context_window_tokens: Option<u64>,
    pub max_output_tokens: Option<u64>,
    /// Further request parameters that the provider receives.
    pub extra_members: Arc<[String]>,
    /// `None`: unknown. A budget of cost refuses calls of this model.
    pub price: Option<Price>,
    /// Maximum completion tokens that a call reserves of its budgets. `None`: its upper bound.
    pub reserved_tokens: Option<u64>,
    pub count: TokenCount,
    pub batch_size: BatchSize,
    /// Validates URLs that a provider may fetch.
    pub egress: Egress,
    /// The provider's host is reachable only by `egress.allow`, so it is presumably internal.
    pub is_own: bool,
}

/// A model that may answer a call.
#[derive(Clone, Copy)]
pub struct RouteCandidate<'a> {
    /// Id in the catalog.
    pub id: &'a str,
    pub model: &'a Model,
}

/// Models of the catalog by id, and their providers. Cheap to clone.
#[derive(Clone, Default)]
pub struct Models {
    by_id: Arc<BTreeMap<String, Model>>,
    /// Ids of several models, and models with fallbacks. Ids of the former are not in `by_id`.
    routes: Arc<BTreeMap<String, ModelRoute>>,
    cooldowns: Arc<Cooldowns>,
    /// In the order of the configuration.
    providers: Arc<[Arc<MonitoredProvider>]>,
}

impl Models {
    pub fn new(models: BTreeMap<String, Model>, providers: Vec<Arc<MonitoredProvider>>) -> Self {
        Self {
            by_id: Arc::new(models),
            routes: Arc::default(),
            cooldowns: Arc::default(),
            providers: providers.into(),
        }
    }

    /// Adds routes. Their candidates are models.
    #[must_use]
    pub fn with_routes(self, routes: BTreeMap<String, ModelRoute>) -> Self {
        Self {
            routes: Arc::new(routes),
            ..self
        }
    }

    /// Health of the providers.
    pub fn providers(&self) -> Vec<ModelProvider> {
        let providers = self.providers.iter();
        providers
            .map(|provider| {
                let is_its = |model: &Model| model.provider.is_same(provider);
                let models = self.by_id.iter().filter(|(_, model)| is_its(model));
                provider.view(models.map(|(id, _)| id.clone()).collect())
            })
            .collect()
    }

    /// Limiters of the providers and of the models.
    pub fn limiters(&self) -> Vec<LimiterStatus> {
        let providers = self.providers.iter();
        let of_providers = providers.flat_map(|provider| provider.limiters());
        let models = self.by_id.iter();
        let of_models = models.flat_map(|(id, model)| model.provider.limiters_of_model(id));
        of_providers.chain(of_models).collect()
    }

    /// Probes all providers concurrently.
    pub async fn probe(&self) -> Vec<ProviderProbe> {
        let probes = self.providers.iter().map(|provider| async move {
            let is_its = |model: &&Model| model.provider.is_same(provider);
            let models = self.by_id.values().filter(is_its);
            let upstream = models.map(|model| model.upstream.clone()).collect();
            provider.probe(upstream).await
        });
        futures_util::future::join_all(probes).await
    }

    /// The model of that id, which the snapshot has granted.
    pub fn find(&self, id: &str) -> Result<&Model, UpstreamError> {
        self.by_id.get(id).ok_or_else(|| {
            UpstreamError::Unsupported(if self.routes.contains_key(id) {
                format!("model {id} is a route, and this call needs one model: grant and call one of them")
            } else {
                // A configuration reload may have removed the model after the grant.
                format!("model {id} has no provider any more")
            })
        })
    }

    /// Models that may answer for an id, in calling order. `key`: of the conversation, see [`ModelRoute::order`].
    /// Empty if the id has no model any more.
    pub fn candidates(&self, id: &str, key: &str, now: Instant) -> Vec<RouteCandidate<'_>> {
        let found = |id: &str| {
            let (id, model) = self.by_id.get_key_value(id)?;
            Some(RouteCandidate { id, model })
        };
        let Some(route) = self.routes.get(id) else {
            return found(id).into_iter().collect();
        };
        let order = route.order(key, |id| self.cooldowns.is_resting(id, now));
        order.into_iter().filter_map(found).collect()
    }

    /// The route of an id, if it has one.
    pub fn route(&self, id: &str) -> Option<&ModelRoute> {
        self.routes.get(id)
    }

    /// Calls of routes use this candidate last until then.
    pub fn rest(&self, candidate: &str, until: Instant) {
        self.cooldowns.rest(candidate, until);
    }

    /// Ends the cool-down of a candidate that has answered.
    pub fn wake(&self, candidate: &str) {
        self.cooldowns.wake(candidate);
    }
}

impl Model {
    /// Validates a URL that the provider would fetch, by the gateway's egress rules. An external provider may
    /// also fetch plain HTTP, which is common for pictures in chats. An internal provider may not: a name may
    /// resolve to an internal address, and only a certificate proves the host.
    pub fn check_fetch_url(&self, url: &str) -> Result<(), EgressError> {
        let checked = self.egress.check_url(url);
        let checked = checked.or_else(|refusal| match url.strip_prefix("http://") {
            Some(rest) if !self.is_own => self.egress.check_url(&format!("https://{rest}")),
            _ => Err(refusal),
        });
        checked.map(drop)
    }

    /// Context window in tokens.
    pub fn window(&self) -> u64 {
        self.context_window_tokens.unwrap_or(UNSAID_WINDOW_TOKENS)
    }

    /// A request body with the provider's name for the model.
    pub fn request_body(&self, mut body: JsonObject) -> JsonObject {
        body.insert("model".to_owned(), json!(self.upstream));
        body
    }

    /// A completion request, limited to the tokens of the model and of the body. The limit uses the parameter
    /// that the provider reads.
    pub fn completion_body(&self, body: JsonObject) -> JsonObject {
        let mut body = self.request_body(body);
        bounds::bound(&mut body, self.provider.bound(), self.max_output_tokens);
        if let Some(limit) = self.max_output_tokens {
            bounds::cut(&mut body, limit);
        }
        body
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use clock::Clock;

    /// An external provider fetches from outside, an internal one from inside the operator's network.
    #[test]
    fn only_external_providers_may_fetch_plain_http() {
        let egress = Egress::new(Vec::new(), Duration::from_secs(1)).unwrap();
        let script = scripted::Script::read(None).unwrap();
        let provider = Arc::new(scripted::Scripted::new(script));
        let provider = MonitoredProvider::new("any", "scripted", None, provider, Clock::system());
        let mut model = Model {
            provider: Arc::new(provider),
            upstream: String::new(),
            context_window_tokens: None,
            max_output_tokens: None,
            extra_members: Arc::new([]),
            price: None,
            reserved_tokens: None,
            count: TokenCount {
                vocabulary: Vocabulary::O200k,
                margin: 1.0,
            },
            batch_size: BatchSize::new(None),
            egress,
            is_own: false,
        };
        let leads_inside = "http://169.254.169.254.example.org/latest/meta-data/";
        assert!(model.check_fetch_url(leads_inside).is_ok());
        assert!(model.check_fetch_url("http://169.254.169.254/").is_err());
        model.is_own = true;
        assert!(model.check_fetch_url(leads_inside).is_err());
        assert!(model.check_fetch_url("https://example.org/a.png").is_ok());
    }
}
