//! Embeddings in OpenAI's format, serialized without an intermediate value per number.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use protocol::message::LlmTokenUsage;
use serde::Serialize;
use serde_json::{Value, json};

use crate::models::reading::json_of;
use web::error::ApiResult;

/// The answer to an embedding request.
pub(super) struct EmbeddingResponse<'a> {
    pub(super) model: &'a str,
    pub(super) vectors: &'a [Vec<f32>],
    pub(super) usage: Option<LlmTokenUsage>,
    /// Encode vectors as base64 bytes instead of numbers.
    pub(super) as_base64: bool,
}

#[derive(Serialize)]
struct EmbeddingList<'a> {
    object: &'static str,
    data: Vec<EmbeddingItem<'a>>,
    model: &'a str,
    usage: Value,
}

#[derive(Serialize)]
struct EmbeddingItem<'a> {
    object: &'static str,
    index: usize,
    embedding: Encoded<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Encoded<'a> {
    Float(&'a [f32]),
    Base64(String),
}

impl EmbeddingResponse<'_> {
    pub(super) fn to_json(&self) -> ApiResult<Vec<u8>> {
        let none = || json!({"prompt_tokens": 0, "total_tokens": 0});
        let vectors = self.vectors.iter().map(Vec::as_slice).enumerate();
        let item = |(index, vector)| EmbeddingItem {
            object: "embedding",
            index,
            embedding: self.encoded(vector),
        };
        json_of(&EmbeddingList {
            object: "list",
            data: vectors.map(item).collect(),
            model: self.model,
            usage: self.usage.as_ref().map_or_else(none, |usage| json!(usage)),
        })
    }

    fn encoded<'v>(&self, vector: &'v [f32]) -> Encoded<'v> {
        if !self.as_base64 {
            return Encoded::Float(vector);
        }
        // Little-endian 32-bit floats, as OpenAI's clients decode them.
        let bytes: Vec<u8> = vector.iter().flat_map(|part| part.to_le_bytes()).collect();
        Encoded::Base64(STANDARD.encode(bytes))
    }
}
