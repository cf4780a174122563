//! Adapter from chat completions to Anthropic's Messages API.

use std::collections::BTreeMap;

use protocol::JsonObject;
use serde_json::{Value, json};

use super::completions::CompletionPiece;
use super::exchange::{Event, Exchange, KeyHeader, ProviderAddress};
use super::http_provider::{HttpApi, HttpProvider, Path, ReplyForm, RequestPath, upstream_error};
use super::{ThoughtCount, WireFormat};
use egress::Egress;
use egress::upstream::UpstreamError;
use llm_formats::anthropic::{EventReader, Thinking, completion, messages};

/// API version of requests.
const VERSION: (&str, &str) = ("anthropic-version", "2023-06-01");

/// Path of messages.
const MESSAGES: Path = &["v1", "messages"];

/// A provider with Anthropic's Messages API.
pub type Anthropic = HttpProvider<AnthropicHttpApi>;

/// Anthropic's Messages API.
pub struct AnthropicHttpApi {
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
            api: AnthropicHttpApi { thinking },
        }
    }
}

impl HttpApi for AnthropicHttpApi {
    const MODELS: Path = &["v1", "models"];
    type Reader = EventReader;

    fn path(&self, _body: &JsonObject, _form: ReplyForm) -> RequestPath {
        MESSAGES.into()
    }

    fn request(&self, body: JsonObject) -> Result<JsonObject, UpstreamError> {
        let model = body.get("model").and_then(Value::as_str);
        let model = model.unwrap_or_default();
        // The configured mode has priority over the one that the name implies.
        let configured = self.thinking.get(model).copied();
        let thinking = configured.unwrap_or_else(|| Thinking::of_model(model));
        messages(&body, thinking).map_err(upstream_error)
    }

    fn completion(document: JsonObject) -> Result<JsonObject, UpstreamError> {
        completion(&document).map_err(upstream_error)
    }

    fn piece(
        reader: &mut EventReader,
        event: Event,
    ) -> Result<Option<CompletionPiece>, UpstreamError> {
        let Event { data, halves, .. } = event;
        // The translation needs the other events only; this one is the end mark.
        if data.get("type") == Some(&json!("message_stop")) {
            return Ok(Some(CompletionPiece::End));
        }
        let chunk = reader.read(&Value::Object(data), halves);
        Ok(chunk.map(|chunk| CompletionPiece::Chunk { chunk, halves }))
    }

    fn wire_path(&self, format: WireFormat) -> Option<Path> {
        (format == WireFormat::Messages).then_some(MESSAGES)
    }

    fn reading_path(&self, name: &'static str) -> Result<[&'static str; 1], UpstreamError> {
        let message = format!("Anthropic has no {name}; give the model another provider");
        Err(UpstreamError::Unsupported(message))
    }

    fn bound(&self) -> &'static str {
        "max_tokens"
    }

    /// Thinking is requested by `reasoning_effort` only, and counts within `max_tokens`.
    fn thought_count(&self) -> ThoughtCount {
        ThoughtCount::Within
    }
}
