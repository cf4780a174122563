//! Providers with OpenAI's API: chat completions, embeddings, and rerank as by Cohere and Jina at the same base
//! URL. Bodies pass unchanged in both directions.

use std::collections::BTreeMap;

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use protocol::JsonObject;
use serde_json::{Value, json};

use super::completions::{
    CompletionPiece, CompletionPieces, assembled, completion, normalized, requested_answers,
};
use super::exchange::{Event, Exchange, Item, KeyHeader, ProviderAddress, ResponseItems, error_in};
use super::{
    Chunks, KeyCooldown, Provider, ProviderEmbeddings, WireEvents, WireFormat, WireRequest,
    wire_format,
};
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
pub struct OpenAi {
    exchange: Exchange,
    bound: &'static str,
    supports_responses: bool,
}

/// Path of the Responses API below the base URL.
const RESPONSES: [&str; 1] = ["responses"];

impl OpenAi {
    /// `base_url` as for OpenAI's clients, including `/v1`.
    pub fn new(egress: Egress, address: ProviderAddress) -> Self {
        let host = address.base_url.host_str().unwrap_or_default();
        let is_openais_own = OWN_HOSTS.iter().any(|own| host.ends_with(own));
        let [of_openai, of_others] = BOUNDS;
        Self {
            bound: if is_openais_own { of_openai } else { of_others },
            supports_responses: is_openais_own,
            exchange: Exchange::new(egress, address, KeyHeader::Bearer),
        }
    }

    /// Sets whether the provider supports [`WireFormat::Responses`].
    #[must_use]
    pub fn with_responses(mut self, supports: bool) -> Self {
        self.supports_responses = supports;
        self
    }

    /// Sets which parameter of [`BOUNDS`] the provider reads.
    #[must_use]
    pub fn with_bound(mut self, bound: &'static str) -> Self {
        self.bound = bound;
        self
    }
}

impl OpenAi {
    /// Names of the provider's models, in its order.
    pub async fn list_models(&self) -> Result<Vec<String>, UpstreamError> {
        let answer = self.exchange.get(&["models"]).await?;
        let listed = answer.get("data").and_then(Value::as_array);
        let listed =
            listed.ok_or_else(|| UpstreamError::Malformed("it is no list of models".to_owned()))?;
        let names = listed.iter().filter_map(|model| model["id"].as_str());
        Ok(names.map(str::to_owned).collect())
    }

    async fn ask(
        &self,
        body: &JsonObject,
        accept: &'static str,
    ) -> Result<ResponseItems, UpstreamError> {
        let path = ["chat", "completions"];
        self.exchange.complete(&path, body, accept).await
    }

    fn chunks(&self, items: ResponseItems, body: &JsonObject) -> Chunks {
        let redactor = self.exchange.redactor();
        let pieces = items.flat_map(move |item| {
            let pieces = item.map(|item| match item {
                Item::End => vec![Ok(CompletionPiece::End)],
                Item::Document(document) => match error_in(&redactor, &document) {
                    Some(failed) => vec![Err(failed)],
                    None => match completion(document) {
                        Ok(completion) => vec![
                            Ok(CompletionPiece::complete(completion)),
                            Ok(CompletionPiece::End),
                        ],
                        Err(failed) => vec![Err(failed)],
                    },
                },
                Item::Event(Event {
                    name,
                    data,
                    has_halves,
                }) => {
                    let mut failed = error_in(&redactor, &data);
                    // Some servers name the event `error` and send the error without a wrapper.
                    if failed.is_none() && name.as_deref() == Some("error") {
                        let wrapped = JsonObject::from_iter([(
                            "error".to_owned(),
                            Value::Object(data.clone()),
                        )]);
                        failed = error_in(&redactor, &wrapped);
                    }
                    let chunk = CompletionPiece::Chunk {
                        chunk: data,
                        has_halves,
                    };
                    vec![failed.map_or(Ok(chunk), Err)]
                }
            });
            stream::iter(pieces.unwrap_or_else(|failed| vec![Err(failed)]))
        });
        let pieces: CompletionPieces = pieces.boxed();
        normalized(pieces, requested_answers(body), self.exchange.noted())
    }
}

#[async_trait]
impl Provider for OpenAi {
    async fn complete(&self, mut body: JsonObject) -> Result<JsonObject, UpstreamError> {
        body.remove("stream");
        // `stream_options` is invalid without `stream`.
        body.remove("stream_options");
        let mut items = self.ask(&body, "application/json").await?;
        let first = match items.next().await {
            Some(Ok(Item::Document(document))) => {
                let failed = error_in(&self.exchange.redactor(), &document);
                return failed.map_or_else(|| completion(document), Err);
            }
            first => stream::iter(first),
        };
        assembled(self.chunks(first.chain(items).boxed(), &body)).await
    }

    async fn stream(&self, mut body: JsonObject) -> Result<Chunks, UpstreamError> {
        body.insert("stream".to_owned(), json!(true));
        let mut options = match body.remove("stream_options") {
            Some(Value::Object(options)) => options,
            _ => JsonObject::new(),
        };
        // Without the option the provider sends no usage, and budgets would count nothing.
        options.insert("include_usage".to_owned(), json!(true));
        body.insert("stream_options".to_owned(), Value::Object(options));
        let items = self.ask(&body, "text/event-stream").await?;
        Ok(self.chunks(items, &body))
    }

    async fn embed(&self, body: JsonObject) -> Result<ProviderEmbeddings, UpstreamError> {
        let text = self.exchange.post_for_text(&["embeddings"], &body).await?;
        ProviderEmbeddings::read(&text)
            // Report the provider's own error if the text is one.
            .map_err(|unread| self.exchange.error_of(&text).unwrap_or(unread))
    }

    async fn rerank(&self, body: JsonObject) -> Result<JsonObject, UpstreamError> {
        self.exchange.post(&["rerank"], &body).await
    }

    fn supports(&self, wire_format: WireFormat) -> bool {
        wire_format == WireFormat::Responses && self.supports_responses
    }

    async fn ask(
        &self,
        wire_format: WireFormat,
        request: WireRequest,
    ) -> Result<JsonObject, UpstreamError> {
        if !self.supports(wire_format) {
            return Err(wire_format.unsupported());
        }
        wire_format::ask(&self.exchange, &RESPONSES, request).await
    }

    async fn request_events(
        &self,
        wire_format: WireFormat,
        request: WireRequest,
    ) -> Result<WireEvents, UpstreamError> {
        if !self.supports(wire_format) {
            return Err(wire_format.unsupported());
        }
        wire_format::request_events(&self.exchange, &RESPONSES, request).await
    }

    async fn list_models(&self) -> Vec<Result<Vec<String>, UpstreamError>> {
        self.exchange.list_models(&["models"]).await
    }

    fn bound(&self) -> &'static str {
        self.bound
    }

    fn key_cooldowns(&self) -> Vec<Option<KeyCooldown>> {
        self.exchange.key_cooldowns()
    }

    fn deviations(&self) -> BTreeMap<String, u64> {
        self.exchange.deviations()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::DeviationCounts;

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
