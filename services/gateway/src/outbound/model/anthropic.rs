//! Anthropic's messages, asked and answered as chat completions.

use std::collections::BTreeMap;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::future;
use protocol::JsonObject;
use serde_json::{Value, json};

use super::exchange::{Exchange, KeyHeader, ProviderAddress, streamed_error};
use super::openai::until_error;
use super::{Chunks, Embedded, Provider, Rest, ThoughtCount};
use crate::outbound::egress::Egress;
use crate::outbound::upstream::UpstreamError;

mod answer;
mod ask;
mod thinking;

pub use thinking::Thinking;

/// The version of the API that is spoken.
const VERSION: (&str, &str) = ("anthropic-version", "2023-06-01");

/// One such provider.
pub struct Anthropic {
    exchange: Exchange,
    /// By the names of its models; others are known by theirs.
    thinking: BTreeMap<String, Thinking>,
}

impl Anthropic {
    /// `base_url` without `/v1`, as Anthropic's clients take it. `thinking`: of models whose names do not tell.
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

    fn asked(&self, body: &JsonObject) -> Result<JsonObject, UpstreamError> {
        let model = body.get("model").and_then(Value::as_str);
        let model = model.unwrap_or_default();
        let told = self.thinking.get(model).copied();
        ask::messages(body, told.unwrap_or_else(|| Thinking::of_model(model)))
    }
}

#[async_trait]
impl Provider for Anthropic {
    async fn complete(&self, body: JsonObject) -> Result<JsonObject, UpstreamError> {
        let asked = self.asked(&body)?;
        let said = self.exchange.post(&["v1", "messages"], &asked).await?;
        answer::completion(&said)
    }

    async fn stream(&self, body: JsonObject) -> Result<Chunks, UpstreamError> {
        let mut asked = self.asked(&body)?;
        asked.insert("stream".to_owned(), json!(true));
        let events = self.exchange.stream(&["v1", "messages"], &asked).await?;
        let redactor = self.exchange.redactor();
        let mut reader = answer::EventReader::default();
        let chunks = events.filter_map(move |event| {
            let chunk = match event {
                Err(error) => Some(Err(error)),
                Ok((_, event)) if event["type"] == "error" => {
                    Some(Err(streamed_error(&redactor, &event["error"])))
                }
                Ok((_, event)) => reader.read(&event).map(Ok),
            };
            future::ready(chunk)
        });
        Ok(until_error(chunks.boxed()))
    }

    async fn embed(&self, _: JsonObject) -> Result<Embedded, UpstreamError> {
        let message = "Anthropic has no embeddings; give the model another provider";
        Err(UpstreamError::Unsupported(message.to_owned()))
    }

    async fn rerank(&self, _: JsonObject) -> Result<JsonObject, UpstreamError> {
        let message = "Anthropic has no rerank; give the model another provider";
        Err(UpstreamError::Unsupported(message.to_owned()))
    }

    async fn list_models(&self) -> Vec<Result<Vec<String>, UpstreamError>> {
        self.exchange.list_models(&["v1", "models"]).await
    }

    /// It is asked to think by `reasoning_effort` alone, for less than `max_tokens`.
    fn thought_count(&self) -> ThoughtCount {
        ThoughtCount::Within
    }

    fn resting_keys(&self) -> Vec<Option<Rest>> {
        self.exchange.resting_keys()
    }
}
