//! Embedding in batches that adapt to the provider's limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::Model;
use super::payment::Payment;
use egress::upstream::UpstreamError;
use llm_formats::object;

/// Words in error messages about an excessive size.
const OF_SIZE: [&str; 14] = [
    "batch",
    "size",
    "token",
    "too large",
    "too long",
    "too many",
    "too big",
    "maximum",
    "at most",
    "limit",
    "exceed",
    "length",
    "less than",
    "array",
];

/// Maximum number of texts per request: the configured limit, lowered to sizes that the provider accepted. Cheap
/// to clone.
#[derive(Clone, Debug)]
pub struct BatchSize(Arc<AtomicUsize>);

impl BatchSize {
    /// `None`: unlimited, until the provider refuses a batch.
    pub fn new(limit: Option<usize>) -> Self {
        Self(Arc::new(AtomicUsize::new(limit.unwrap_or(usize::MAX))))
    }

    fn limit(&self) -> usize {
        self.0.load(Ordering::Relaxed).max(1)
    }

    fn lower_to(&self, limit: usize) {
        self.0.fetch_min(limit, Ordering::Relaxed);
    }
}

impl Model {
    /// Returns the vectors of texts, in order. A batch that is refused for its size is halved; earlier results
    /// are kept. Later requests use the accepted size.
    pub async fn vectors(
        &self,
        texts: &[String],
        payment: &Payment,
    ) -> Result<Vec<Vec<f32>>, UpstreamError> {
        let mut vectors = Vec::with_capacity(texts.len());
        let mut limit = self.batch_size.limit();
        let mut is_halved = false;
        while let Some(batch) = texts.get(vectors.len()..).filter(|rest| !rest.is_empty()) {
            let batch = &batch[..batch.len().min(limit)];
            match self.batch_of_vectors(batch, payment).await {
                Ok(more) => vectors.extend(more),
                // Each refusal halves the batch, so the number of retries is logarithmic.
                Err(refused) if batch.len() > 1 && is_of_size(&refused) => {
                    (limit, is_halved) = (batch.len() / 2, true);
                }
                Err(failed) => return Err(failed),
            }
        }
        // Store the size only after a success: a failed call proves no size.
        if is_halved {
            self.batch_size.lower_to(limit);
            tracing::info!(
                most = limit,
                model = self.upstream,
                "provider {} takes at most {limit} texts of model {} at once",
                self.provider.name(),
                self.upstream
            );
        }
        Ok(vectors)
    }

    async fn batch_of_vectors(
        &self,
        texts: &[String],
        payment: &Payment,
    ) -> Result<Vec<Vec<f32>>, UpstreamError> {
        let body = json!({"input": texts, "encoding_format": "float"});
        let mut embedded = self
            .provider
            .embed(self.request_body(object(body)), payment)
            .await?;
        payment.count(embedded.usage.take().as_ref());
        embedded.in_order(texts.len())
    }
}

fn is_of_size(refused: &UpstreamError) -> bool {
    match refused {
        UpstreamError::ContextOverflow(_)
        | UpstreamError::Refused {
            status: 413 | 422, ..
        } => true,
        UpstreamError::Refused {
            status: 400,
            message,
        } => {
            let message = message.to_lowercase();
            OF_SIZE.iter().any(|words| message.contains(words))
        }
        _ => false,
    }
}
