//! Models: every provider behind one way of asking, that of chat completions.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use protocol::JsonObject;
use protocol::model::ModelProvider;
use serde_json::{Value, json};

use egress::upstream::UpstreamError;
use egress::{Egress, EgressError};

mod anthropic;
mod api_keys;
mod batches;
mod bounds;
mod embedded;
mod exchange;
mod form;
mod notes;
mod openai;
mod paid;
mod scripted;
mod tokens;
mod watched;
mod whole;

pub use anthropic::{Anthropic, Thinking};
pub use api_keys::Rest;
pub use batches::BatchSize;
pub use bounds::{
    BOUNDS, LEAST, THOUGHTS, ThoughtCount, UNSAID_TOKENS, UNSAID_WINDOW_TOKENS, value_at,
};
pub use embedded::{Embedded, EmbeddedText};
pub use exchange::ProviderAddress;
pub use form::{Asked, Events, Form};
pub use notes::Notes;
pub use openai::OpenAi;
pub use paid::Paid;
pub use scripted::{Script, ScriptFault, Scripted};
pub use tokens::{TokenCount, Vocabulary};
pub use watched::{Probed, Watched};

/// The chunks of one completion, each a `chat.completion.chunk`. Ends after the last one; an error is the
/// last item.
pub type Chunks = BoxStream<'static, Result<JsonObject, UpstreamError>>;

/// Where models are asked. Bodies and answers are those of OpenAI's API, which the field speaks; `model`
/// in them is the provider's own name of the model.
#[async_trait]
pub trait Provider: Send + Sync {
    /// A whole completion.
    async fn complete(&self, body: JsonObject) -> Result<JsonObject, UpstreamError>;
    /// A completion that streams. Nothing is asked twice once this has returned.
    async fn stream(&self, body: JsonObject) -> Result<Chunks, UpstreamError>;
    /// `{"model", "input": […]}` → its vectors.
    async fn embed(&self, body: JsonObject) -> Result<Embedded, UpstreamError>;
    /// `{"model", "query", "documents", "top_n"}` → `{"results": [{"index", "relevance_score"}]}`.
    async fn rerank(&self, body: JsonObject) -> Result<JsonObject, UpstreamError>;
    /// Whether it takes requests of that form as they are.
    fn speaks(&self, _form: Form) -> bool {
        false
    }
    /// A whole answer to a body of that form; an error unless it [`Self::speaks`] it.
    async fn ask(&self, form: Form, _asked: Asked) -> Result<JsonObject, UpstreamError> {
        Err(form.unspoken())
    }
    /// The events of an answer to a body of that form; an error unless it [`Self::speaks`] it. Nothing is asked twice
    /// once this has returned.
    async fn ask_for_events(&self, form: Form, _asked: Asked) -> Result<Events, UpstreamError> {
        Err(form.unspoken())
    }
    /// Asks for the ids of its models, once with each key or once without any. Empty: it lists none, as one
    /// that is nowhere but here.
    async fn list_models(&self) -> Vec<Result<Vec<String>, UpstreamError>> {
        vec![Ok(Vec::new())]
    }
    /// Which of [`BOUNDS`] it reads.
    fn bound(&self) -> &'static str {
        "max_tokens"
    }
    /// How it counts thoughts.
    fn thought_count(&self) -> ThoughtCount {
        ThoughtCount::Beside
    }
    /// Its keys in their order, and which of them rest.
    fn resting_keys(&self) -> Vec<Option<Rest>> {
        Vec::new()
    }
    /// How many of its answers were accepted in spite of a deviation from the protocol, by kind.
    fn deviations(&self) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }
}

/// What a million tokens cost, in millionths of the operator's currency: a dollar for a million tokens is
/// a millionth for one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Price {
    pub input: f64,
    pub output: f64,
}

impl Price {
    /// What so many tokens cost, in millionths of the currency.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "prices and counts are far below what a double counts exactly"
    )]
    pub fn cost(self, prompt: u64, completion: u64) -> u64 {
        (prompt as f64 * self.input + completion as f64 * self.output).ceil() as u64
    }
}

/// One model of the catalog and how it is reached.
#[derive(Clone)]
pub struct Model {
    pub provider: Arc<Watched>,
    /// Its name at the provider.
    pub upstream: String,
    pub context_window_tokens: Option<u64>,
    pub max_output_tokens: Option<u64>,
    /// Members of a request that go to its provider beside those that all may send.
    pub extra_members: Arc<[String]>,
    pub price: Option<Price>,
    pub count: TokenCount,
    pub batch_size: BatchSize,
    /// Knows where a provider may be sent.
    pub egress: Egress,
    /// Its provider is where only `egress.allow` leads: inside, as far as one can know.
    pub is_own: bool,
}

/// The models of the catalog, by their ids, and their providers. Cheap to clone.
#[derive(Clone, Default)]
pub struct Models {
    models: Arc<BTreeMap<String, Model>>,
    /// In the order of the configuration.
    providers: Arc<[Arc<Watched>]>,
}

impl Models {
    pub fn new(models: BTreeMap<String, Model>, providers: Vec<Arc<Watched>>) -> Self {
        Self {
            models: Arc::new(models),
            providers: providers.into(),
        }
    }

    /// How the providers stand.
    pub fn providers(&self) -> Vec<ModelProvider> {
        let providers = self.providers.iter();
        providers
            .map(|provider| {
                let is_its = |model: &Model| Arc::ptr_eq(&model.provider, provider);
                let models = self.models.iter().filter(|(_, model)| is_its(model));
                provider.view(models.map(|(id, _)| id.clone()).collect())
            })
            .collect()
    }

    /// Asks the providers whether they are there, all at once.
    pub async fn probe(&self) -> Vec<Probed> {
        let probes = self.providers.iter().map(|provider| async move {
            let is_its = |model: &&Model| Arc::ptr_eq(&model.provider, provider);
            let models = self.models.values().filter(is_its);
            let upstream = models.map(|model| model.upstream.clone()).collect();
            provider.probe(upstream).await
        });
        futures_util::future::join_all(probes).await
    }

    /// The model of that id; the snapshot has granted it.
    pub fn find(&self, id: &str) -> Result<&Model, UpstreamError> {
        let gone = || UpstreamError::Unsupported(format!("model {id} has no provider any more"));
        self.models.get(id).ok_or_else(gone)
    }
}

impl Model {
    /// Judges a URL that its provider would fetch from, by where the gateway itself may go: by the URL alone. A provider
    /// elsewhere may ask without TLS, too: pictures of chats often stand so. One of the operator's own may not: there a
    /// name can lead inside, and only a certificate tells.
    pub fn check_place(&self, url: &str) -> Result<(), EgressError> {
        let checked = self.egress.check_url(url);
        let checked = checked.or_else(|refusal| match url.strip_prefix("http://") {
            Some(rest) if !self.is_own => self.egress.check_url(&format!("https://{rest}")),
            _ => Err(refusal),
        });
        checked.map(drop)
    }

    /// The most tokens that it may be asked with.
    pub fn window(&self) -> u64 {
        self.context_window_tokens.unwrap_or(UNSAID_WINDOW_TOKENS)
    }

    /// A body that asks this model: its name at the provider.
    pub fn asked(&self, mut body: JsonObject) -> JsonObject {
        body.insert("model".to_owned(), json!(self.upstream));
        body
    }

    /// The same for a completion: no more tokens than the model may give and than the body bounds them to, said by the
    /// name that the provider reads.
    pub fn asked_to_complete(&self, body: JsonObject) -> JsonObject {
        let mut body = self.asked(body);
        bounds::bound(&mut body, self.provider.bound(), self.max_output_tokens);
        if let Some(most) = self.max_output_tokens {
            bounds::cut(&mut body, most);
        }
        body
    }
}

/// The members of a value that was made as an object.
pub fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(members) => members,
        _ => JsonObject::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use base::clock::Clock;

    /// A provider elsewhere fetches from where it stands; one of the operator's own stands inside.
    #[test]
    fn only_a_provider_elsewhere_is_sent_anywhere_without_tls() {
        let egress = Egress::new(Vec::new(), Duration::from_secs(1)).unwrap();
        let script = scripted::Script::read(None).unwrap();
        let provider = Arc::new(scripted::Scripted::new(script));
        let provider = Watched::new("any", "scripted", None, provider, Clock::system());
        let mut model = Model {
            provider: Arc::new(provider),
            upstream: String::new(),
            context_window_tokens: None,
            max_output_tokens: None,
            extra_members: Arc::new([]),
            price: None,
            count: TokenCount {
                vocabulary: Vocabulary::O200k,
                margin: 1.0,
            },
            batch_size: BatchSize::new(None),
            egress,
            is_own: false,
        };
        let leads_inside = "http://169.254.169.254.example.org/latest/meta-data/";
        assert!(model.check_place(leads_inside).is_ok());
        assert!(model.check_place("http://169.254.169.254/").is_err());
        model.is_own = true;
        assert!(model.check_place(leads_inside).is_err());
        assert!(model.check_place("https://example.org/a.png").is_ok());
    }
}
