//! Adapter from chat completions to Anthropic's Messages API.

use std::collections::BTreeMap;

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use protocol::JsonObject;
use serde_json::{Value, json};

use super::completions::{CompletionPiece, CompletionPieces, assembled, normalized};
use super::exchange::{Event, Exchange, Item, KeyHeader, ProviderAddress, ResponseItems, error_in};
use super::{
    Chunks, KeyCooldown, Provider, ProviderEmbeddings, ThoughtCount, WireEvents, WireFormat,
    WireRequest, wire_format,
};
use egress::Egress;
use egress::upstream::UpstreamError;
use llm_formats::FormatError;
use llm_formats::anthropic::{EventReader, Thinking, completion, messages};

/// API version of requests.
const VERSION: (&str, &str) = ("anthropic-version", "2023-06-01");

/// Path below the base URL.
const MESSAGES: [&str; 2] = ["v1", "messages"];

/// A provider with Anthropic's Messages API.
pub struct Anthropic {
    exchange: Exchange,
    /// Thinking modes by model name. Other models get theirs from their name.
    thinking: BTreeMap<String, Thinking>,
}

impl Anthropic {
    /// `base_url` without `/v1`, as for Anthropic's clients. `thinking`: modes that names do not imply.
    pub fn new(
        egress: Egress,
        address: ProviderAddress,
        thinking: BTreeMap<String, Thinking>,
    ) -> Self {
        let (name, version) = VERSION;
        let exchange = Exchange::new(egress, address, KeyHeader::ApiKey);
        Self {
            exchange: exchange.with_header(name, version),
            thinking,
        }
    }

    fn messages_request(&self, body: &JsonObject) -> Result<JsonObject, UpstreamError> {
        let model = body.get("model").and_then(Value::as_str);
        let model = model.unwrap_or_default();
        // The configured mode has priority over the one that the name implies.
        let configured = self.thinking.get(model).copied();
        let thinking = configured.unwrap_or_else(|| Thinking::of_model(model));
        messages(body, thinking).map_err(upstream)
    }

    async fn ask(
        &self,
        request: &JsonObject,
        accept: &'static str,
    ) -> Result<ResponseItems, UpstreamError> {
        self.exchange.complete(&MESSAGES, request, accept).await
    }

    fn chunks(&self, items: ResponseItems) -> Chunks {
        let redactor = self.exchange.redactor();
        let mut reader = EventReader::default();
        let pieces = items.flat_map(move |item| {
            let pieces = item.map(|item| match item {
                Item::End => vec![Ok(CompletionPiece::End)],
                Item::Document(document) => match error_in(&redactor, &document) {
                    Some(failed) => vec![Err(failed)],
                    None => match completion(&document) {
                        Ok(completion) => vec![
                            Ok(CompletionPiece::complete(completion)),
                            Ok(CompletionPiece::End),
                        ],
                        Err(failed) => vec![Err(upstream(failed))],
                    },
                },
                Item::Event(Event {
                    data, has_halves, ..
                }) => match error_in(&redactor, &data) {
                    Some(failed) => vec![Err(failed)],
                    // The translation needs the other events only; this one is the end mark.
                    None if data.get("type") == Some(&json!("message_stop")) => {
                        vec![Ok(CompletionPiece::End)]
                    }
                    None => {
                        let chunk = reader.read(&Value::Object(data), has_halves);
                        let pieces =
                            chunk.map(|chunk| Ok(CompletionPiece::Chunk { chunk, has_halves }));
                        pieces.into_iter().collect()
                    }
                },
            });
            stream::iter(pieces.unwrap_or_else(|failed| vec![Err(failed)]))
        });
        let pieces: CompletionPieces = pieces.boxed();
        normalized(pieces, 1, self.exchange.noted())
    }
}

fn upstream(error: FormatError) -> UpstreamError {
    match error {
        FormatError::Unsupported(what) => UpstreamError::Unsupported(what),
        FormatError::Malformed(what) => UpstreamError::Malformed(what),
    }
}

#[async_trait]
impl Provider for Anthropic {
    async fn complete(&self, body: JsonObject) -> Result<JsonObject, UpstreamError> {
        let request = self.messages_request(&body)?;
        let mut items = self.ask(&request, "application/json").await?;
        // A server may stream although no stream was requested.
        let first = match items.next().await {
            Some(Ok(Item::Document(document))) => {
                let failed = error_in(&self.exchange.redactor(), &document);
                return failed.map_or_else(|| completion(&document).map_err(upstream), Err);
            }
            first => stream::iter(first),
        };
        assembled(self.chunks(first.chain(items).boxed())).await
    }

    async fn stream(&self, body: JsonObject) -> Result<Chunks, UpstreamError> {
        let mut request = self.messages_request(&body)?;
        request.insert("stream".to_owned(), json!(true));
        let items = self.ask(&request, "text/event-stream").await?;
        Ok(self.chunks(items))
    }

    async fn embed(&self, _: JsonObject) -> Result<ProviderEmbeddings, UpstreamError> {
        let message = "Anthropic has no embeddings; give the model another provider";
        Err(UpstreamError::Unsupported(message.to_owned()))
    }

    async fn rerank(&self, _: JsonObject) -> Result<JsonObject, UpstreamError> {
        let message = "Anthropic has no rerank; give the model another provider";
        Err(UpstreamError::Unsupported(message.to_owned()))
    }

    fn supports(&self, wire_format: WireFormat) -> bool {
        wire_format == WireFormat::Messages
    }

    async fn ask(
        &self,
        wire_format: WireFormat,
        request: WireRequest,
    ) -> Result<JsonObject, UpstreamError> {
        if !self.supports(wire_format) {
            return Err(wire_format.unsupported());
        }
        wire_format::ask(&self.exchange, &MESSAGES, request).await
    }

    async fn request_events(
        &self,
        wire_format: WireFormat,
        request: WireRequest,
    ) -> Result<WireEvents, UpstreamError> {
        if !self.supports(wire_format) {
            return Err(wire_format.unsupported());
        }
        wire_format::request_events(&self.exchange, &MESSAGES, request).await
    }

    async fn list_models(&self) -> Vec<Result<Vec<String>, UpstreamError>> {
        self.exchange.list_models(&["v1", "models"]).await
    }

    /// Thinking is requested by `reasoning_effort` only, and counts within `max_tokens`.
    fn thought_count(&self) -> ThoughtCount {
        ThoughtCount::Within
    }

    fn key_cooldowns(&self) -> Vec<Option<KeyCooldown>> {
        self.exchange.key_cooldowns()
    }

    fn deviations(&self) -> BTreeMap<String, u64> {
        self.exchange.deviations()
    }
}
