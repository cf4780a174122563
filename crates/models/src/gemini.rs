//! Adapter from chat completions to Google's Gemini API.

use protocol::JsonObject;
use serde_json::Value;

use super::completions::{CompletionPiece, completion};
use super::exchange::{Event, Exchange, KeyHeader, ProviderAddress};
use super::http_provider::{HttpApi, HttpProvider, Path, ReplyForm, RequestPath, upstream_error};
use super::{ThoughtCount, WireFormat};
use egress::Egress;
use egress::upstream::UpstreamError;
use llm_formats::gemini::{ContentReader, generate_content};

/// A provider with Google's Gemini API.
pub type Gemini = HttpProvider<GeminiHttpApi>;

/// Google's Gemini API.
pub struct GeminiHttpApi;

impl Gemini {
    /// `base_url` with the version of the API, such as `/v1beta`.
    pub fn new(egress: Egress, address: ProviderAddress) -> Self {
        Self {
            exchange: Exchange::new(egress, address, KeyHeader::GoogApiKey),
            api: GeminiHttpApi,
        }
    }
}

impl HttpApi for GeminiHttpApi {
    const MODELS: Path = &["models"];
    const MODELS_QUERY: Option<&'static str> = Some("pageSize=1000");
    type Reader = ContentReader;

    /// The model and the method are the last segment.
    fn path(&self, body: &JsonObject, form: ReplyForm) -> RequestPath {
        let model = body.get("model").and_then(Value::as_str);
        let model = model.unwrap_or_default();
        let (method, query) = match form {
            ReplyForm::Document => ("generateContent", None),
            // Without it the stream is one JSON array.
            ReplyForm::Stream => ("streamGenerateContent", Some("alt=sse")),
        };
        let mut segments: Vec<_> = model.split('/').map(str::to_owned).collect();
        // Tuned models and those of Vertex AI have a full name.
        if segments.len() == 1 {
            segments.insert(0, "models".to_owned());
        }
        if let Some(last) = segments.last_mut() {
            *last = format!("{last}:{method}");
        }
        RequestPath { segments, query }
    }

    fn request(&self, body: JsonObject) -> Result<JsonObject, UpstreamError> {
        generate_content(&body).map_err(upstream_error)
    }

    /// The path demands the stream, not the body.
    fn stream_request(&self, body: JsonObject) -> Result<JsonObject, UpstreamError> {
        self.request(body)
    }

    fn completion(document: JsonObject) -> Result<JsonObject, UpstreamError> {
        let translated = llm_formats::gemini::completion(&document).map_err(upstream_error)?;
        // Older models send calls without ids.
        completion(translated)
    }

    fn piece(
        reader: &mut ContentReader,
        event: Event,
    ) -> Result<Option<CompletionPiece>, UpstreamError> {
        let Event { data, halves, .. } = event;
        let chunk = reader.read(&data).map_err(upstream_error)?;
        Ok(chunk.map(|chunk| CompletionPiece::Chunk { chunk, halves }))
    }

    fn wire_path(&self, _format: WireFormat) -> Option<Path> {
        None
    }

    fn reading_path(&self, name: &'static str) -> Result<[&'static str; 1], UpstreamError> {
        let message = format!(
            "providers of kind gemini have no {name}; give the model a provider of kind openai"
        );
        Err(UpstreamError::Unsupported(message))
    }

    fn bound(&self) -> &'static str {
        "max_tokens"
    }

    /// Thoughts count within `maxOutputTokens`.
    fn thought_count(&self) -> ThoughtCount {
        ThoughtCount::Within
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn path_names_model_and_method() {
        for (model, form, path, query) in [
            (
                "gemini-x",
                ReplyForm::Document,
                "models/gemini-x:generateContent",
                None,
            ),
            (
                "tunedModels/t",
                ReplyForm::Stream,
                "tunedModels/t:streamGenerateContent",
                Some("alt=sse"),
            ),
        ] {
            let body = json!({"model": model});
            let found = GeminiHttpApi.path(body.as_object().unwrap(), form);
            assert_eq!(
                (found.segments.join("/").as_str(), found.query),
                (path, query)
            );
        }
    }
}
