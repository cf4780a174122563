//! Providers with OpenAI's API: chat completions, embeddings, and rerank as by Cohere and Jina at the same base
//! URL. Bodies pass unchanged in both directions.

use protocol::JsonObject;
use serde_json::{Value, json};

use super::completions::{CompletionPiece, completion};
use super::exchange::{Event, Exchange, KeyHeader, ProviderAddress};
use super::http_provider::{HttpApi, HttpProvider, Path, ReplyForm, RequestPath};
use super::{ThoughtCount, WireFormat};
use egress::Egress;
use egress::upstream::UpstreamError;
use llm_formats::BOUNDS;

/// Hosts with reasoning models. Some of these refuse `max_tokens`, the only name that many other servers
/// support.
const OWN_HOSTS: [&str; 4] = [
    ".openai.com",
    ".openai.azure.com",
    ".services.ai.azure.com",
    ".cognitiveservices.azure.com",
];

/// A provider with OpenAI's API.
pub type OpenAi = HttpProvider<OpenAiHttpApi>;

/// OpenAI's API.
pub struct OpenAiHttpApi {
    bound: &'static str,
    supports_responses: bool,
}

impl OpenAi {
    /// `base_url` as for OpenAI's clients, including `/v1`.
    pub fn new(egress: Egress, address: ProviderAddress) -> Self {
        let host = address.base_url.host_str().unwrap_or_default();
        let is_openais_own = OWN_HOSTS.iter().any(|own| host.ends_with(own));
        let [of_openai, of_others] = BOUNDS;
        Self {
            api: OpenAiHttpApi {
                bound: if is_openais_own { of_openai } else { of_others },
                supports_responses: is_openais_own,
            },
            exchange: Exchange::new(egress, address, KeyHeader::Bearer),
        }
    }

    /// The provider supports [`WireFormat::Responses`].
    #[must_use]
    pub fn with_responses(mut self) -> Self {
        self.api.supports_responses = true;
        self
    }

    /// The provider does not support [`WireFormat::Responses`].
    #[must_use]
    pub fn without_responses(mut self) -> Self {
        self.api.supports_responses = false;
        self
    }

    /// Sets which parameter of [`BOUNDS`] the provider reads.
    #[must_use]
    pub fn with_bound(mut self, bound: &'static str) -> Self {
        self.api.bound = bound;
        self
    }

    /// Names of the provider's models, in its order.
    pub async fn list_models(&self) -> Result<Vec<String>, UpstreamError> {
        let answer = self.exchange.get(&["models"]).await?;
        let listed = answer.get("data").and_then(Value::as_array);
        let listed =
            listed.ok_or_else(|| UpstreamError::Malformed("it is no list of models".to_owned()))?;
        let names = listed.iter().filter_map(|model| model["id"].as_str());
        Ok(names.map(str::to_owned).collect())
    }
}

impl HttpApi for OpenAiHttpApi {
    const MODELS: Path = &["models"];
    type Reader = ();

    fn path(&self, _body: &JsonObject, _form: ReplyForm) -> RequestPath {
        let path: Path = &["chat", "completions"];
        path.into()
    }

    fn request(&self, mut body: JsonObject) -> Result<JsonObject, UpstreamError> {
        body.remove("stream");
        // `stream_options` is invalid without `stream`.
        body.remove("stream_options");
        Ok(body)
    }

    fn stream_request(&self, mut body: JsonObject) -> Result<JsonObject, UpstreamError> {
        body.insert("stream".to_owned(), json!(true));
        let mut options = match body.remove("stream_options") {
            Some(Value::Object(options)) => options,
            _ => JsonObject::new(),
        };
        // Without the option the provider sends no usage, and budgets would count nothing.
        options.insert("include_usage".to_owned(), json!(true));
        body.insert("stream_options".to_owned(), Value::Object(options));
        Ok(body)
    }

    fn completion(document: JsonObject) -> Result<JsonObject, UpstreamError> {
        completion(document)
    }

    fn piece(_reader: &mut (), event: Event) -> Result<Option<CompletionPiece>, UpstreamError> {
        Ok(Some(CompletionPiece::Chunk {
            chunk: event.data,
            halves: event.halves,
        }))
    }

    fn wire_path(&self, format: WireFormat) -> Option<Path> {
        let is_supported = format == WireFormat::Responses && self.supports_responses;
        is_supported.then_some(&["responses"])
    }

    fn reading_path(&self, name: &'static str) -> Result<[&'static str; 1], UpstreamError> {
        Ok([name])
    }

    fn bound(&self) -> &'static str {
        self.bound
    }

    fn thought_count(&self) -> ThoughtCount {
        ThoughtCount::Beside
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::{DeviationCounts, Provider as _};

    #[test]
    fn output_limit_name_depends_on_host() {
        let at = |url: &str| {
            let egress = Egress::new(Vec::new(), Duration::from_secs(1)).unwrap();
            let address = ProviderAddress {
                base_url: url.parse().unwrap(),
                api_keys: Vec::new(),
                headers: BTreeMap::new(),
                idle: Duration::from_secs(1),
                deviations: DeviationCounts::new("p"),
            };
            OpenAi::new(egress, address)
        };
        for (url, bound) in [
            ("https://api.openai.com/v1", "max_completion_tokens"),
            (
                "https://x.openai.azure.com/openai/v1",
                "max_completion_tokens",
            ),
            (
                "https://x.services.ai.azure.com/openai/v1",
                "max_completion_tokens",
            ),
            (
                "https://x.cognitiveservices.azure.com/openai/v1",
                "max_completion_tokens",
            ),
            ("https://openrouter.ai/api/v1", "max_tokens"),
            ("https://notopenai.com/v1", "max_tokens"),
        ] {
            assert_eq!(at(url).bound(), bound, "{url}");
        }
        let configured = at("https://proxy.example/v1").with_bound("max_completion_tokens");
        assert_eq!(configured.bound(), "max_completion_tokens");
    }
}
