//! Embedding responses. They are large, so they are deserialized directly, without building JSON values.

use domain::json_text::check_json_text;
use protocol::message::LlmTokenUsage;
use serde::Deserialize;
use serde_json::value::RawValue;

use egress::upstream::UpstreamError;

/// Vectors of texts, and the token usage.
#[derive(Clone, Debug, PartialEq)]
pub struct ProviderEmbeddings {
    pub vectors: Vec<TextVector>,
    pub usage: Option<LlmTokenUsage>,
}

/// The vector of one text.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct TextVector {
    /// Index of the text. Default: the position of the vector.
    pub index: Option<usize>,
    pub embedding: Vec<f32>,
}

#[derive(Deserialize)]
struct EmbeddingBody<'a> {
    data: Vec<TextVector>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
}

impl ProviderEmbeddings {
    /// Reads `{"data": [{"index", "embedding"}], "usage"}`.
    pub(super) fn read(text: &[u8]) -> Result<Self, UpstreamError> {
        let malformed =
            |_| UpstreamError::Malformed("it is no list of vectors of numbers".to_owned());
        let answer: EmbeddingBody<'_> = serde_json::from_slice(text).map_err(malformed)?;
        let usage = answer.usage.map(RawValue::get);
        // The usage is an arbitrary JSON value, so check its size before it is built.
        let usage = usage.filter(|usage| check_json_text(usage.as_bytes()).is_ok());
        Ok(Self {
            vectors: answer.data,
            usage: usage.and_then(reported_usage),
        })
    }

    /// The vectors in text order, exactly one per text.
    pub(super) fn in_order(self, texts: usize) -> Result<Vec<Vec<f32>>, UpstreamError> {
        let malformed = |what: &str| UpstreamError::Malformed(what.to_owned());
        let mut vectors = vec![Vec::new(); texts];
        for (n, text) in self.vectors.into_iter().enumerate() {
            let slot = vectors
                // Providers may send vectors in another order.
                .get_mut(text.index.unwrap_or(n))
                .ok_or_else(|| malformed("a vector too many"))?;
            *slot = text.embedding;
        }
        // An empty vector also marks a text without one.
        if vectors.iter().any(Vec::is_empty) {
            return Err(malformed("fewer vectors than texts"));
        }
        Ok(vectors)
    }
}

fn reported_usage(text: &str) -> Option<LlmTokenUsage> {
    domain::usage::usage(&serde_json::from_str(text).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_vectors_of_any_length_in_order() {
        let long = format!("[{}0]", "0.5,".repeat(200_000));
        let text = format!(
            r#"{{"object": "list", "data": [{{"index": 1, "embedding": [2, 3.5], "object": "embedding"}},
            {{"index": 0, "embedding": {long}}}], "usage": {{"prompt_tokens": 4, "total_tokens": 4}}}}"#
        );
        let read = ProviderEmbeddings::read(text.as_bytes()).unwrap();
        assert_eq!(read.usage.as_ref().unwrap().prompt_tokens, Some(4));
        let vectors = read.in_order(2).unwrap();
        assert_eq!((vectors[0].len(), &vectors[1]), (200_001, &vec![2.0, 3.5]));
    }

    #[test]
    fn refuses_non_vectors_without_building_values() {
        let bomb = format!("[{}0]", "{\"\":0},".repeat(60_000));
        for text in [
            format!(r#"{{"data": {bomb}}}"#),
            format!(r#"{{"data": [{{"embedding": {bomb}}}]}}"#),
            r#"{"data": [{"embedding": ["a"]}]}"#.to_owned(),
            r#"{"usage": {}}"#.to_owned(),
            "[]".to_owned(),
        ] {
            let refused = ProviderEmbeddings::read(text.as_bytes());
            assert!(
                matches!(refused, Err(UpstreamError::Malformed(_))),
                "{text:.40}: {refused:?}"
            );
        }
        let usage = format!(r#"{{"data": [], "usage": {{"a": {bomb}}}, "more": {bomb}}}"#);
        assert_eq!(
            ProviderEmbeddings::read(usage.as_bytes()).unwrap().usage,
            None
        );
        for (vectors, texts) in [("[]", 1), (r#"[{"index": 7, "embedding": [1]}]"#, 1)] {
            let read =
                ProviderEmbeddings::read(format!(r#"{{"data": {vectors}}}"#).as_bytes()).unwrap();
            assert!(matches!(
                read.in_order(texts),
                Err(UpstreamError::Malformed(_))
            ));
        }
    }
}
