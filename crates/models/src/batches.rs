//! Texts for embedding in batches of the size that their provider takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::paid::Paid;
use super::{Model, object};
use egress::upstream::UpstreamError;

/// Words of a refusal that speaks of too much at once.
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

/// The most texts of one request to a provider: as configured, and no more than it was seen to take. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BatchSize(Arc<AtomicUsize>);

impl BatchSize {
    /// `None`: as many as are asked for, until the provider refuses them.
    pub fn new(most: Option<usize>) -> Self {
        Self(Arc::new(AtomicUsize::new(most.unwrap_or(usize::MAX))))
    }

    fn most(&self) -> usize {
        self.0.load(Ordering::Relaxed).max(1)
    }

    fn lower_to(&self, most: usize) {
        self.0.fetch_min(most, Ordering::Relaxed);
    }
}

impl Model {
    /// Asks for the vectors of texts, in their order. A batch that is refused for its size is halved, and what came of
    /// the batches before stays; the size that the provider took is kept for later requests.
    pub async fn vectors(
        &self,
        texts: &[String],
        paid: &Paid,
    ) -> Result<Vec<Vec<f32>>, UpstreamError> {
        let mut vectors = Vec::with_capacity(texts.len());
        let mut most = self.batch_size.most();
        let mut is_halved = false;
        while let Some(batch) = texts.get(vectors.len()..).filter(|rest| !rest.is_empty()) {
            let batch = &batch[..batch.len().min(most)];
            match self.batch_of_vectors(batch, paid).await {
                Ok(more) => vectors.extend(more),
                // Each refusal halves: as many as the number has digits.
                Err(refused) if batch.len() > 1 && is_of_size(&refused) => {
                    (most, is_halved) = (batch.len() / 2, true);
                }
                Err(failed) => return Err(failed),
            }
        }
        if is_halved {
            self.batch_size.lower_to(most);
            tracing::info!(
                most,
                model = self.upstream,
                "provider {} takes at most {most} texts of model {} at once",
                self.provider.name(),
                self.upstream
            );
        }
        Ok(vectors)
    }

    async fn batch_of_vectors(
        &self,
        texts: &[String],
        paid: &Paid,
    ) -> Result<Vec<Vec<f32>>, UpstreamError> {
        let body = json!({"input": texts, "encoding_format": "float"});
        let mut embedded = self.provider.embed(self.asked(object(body)), paid).await?;
        paid.count(embedded.usage.take().as_ref());
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
