//! Embedding of texts.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use domain::usage::TokenParts;
use egress::upstream::UpstreamError;
use models::{Model, Models, Payment};
use telemetry::metrics;

/// A provider of embedding models.
pub trait Embedder: Send + Sync {
    /// Returns one vector per text, in order, within `patience`. `model`: its id in the catalog.
    fn embed<'a>(
        &'a self,
        model: &'a str,
        texts: &'a [String],
        patience: Duration,
        paid: &'a Payment,
    ) -> BoxFuture<'a, Result<Vec<Vec<f32>>, UpstreamError>>;
}

/// Maximum number of texts per provider request.
const AT_ONCE: usize = 256;

/// The models of the catalog. Embedding calls count in the model metrics.
impl Embedder for Models {
    fn embed<'a>(
        &'a self,
        model: &'a str,
        texts: &'a [String],
        patience: Duration,
        paid: &'a Payment,
    ) -> BoxFuture<'a, Result<Vec<Vec<f32>>, UpstreamError>> {
        let until = Instant::now() + patience;
        let embedding = async move {
            let found = self.find(model)?;
            let mut vectors = Vec::with_capacity(texts.len());
            for texts in texts.chunks(AT_ONCE) {
                vectors.extend(counted(model, found, texts, until, paid).await?);
            }
            Ok(vectors)
        };
        embedding.boxed()
    }
}

async fn counted(
    id: &str,
    model: &Model,
    texts: &[String],
    until: Instant,
    paid: &Payment,
) -> Result<Vec<Vec<f32>>, UpstreamError> {
    let price = model.price.clone().unwrap_or_default();
    let of = |input| {
        let tokens = TokenParts {
            input,
            ..TokenParts::default()
        };
        (tokens, price.cost(tokens))
    };
    // A provider may bill a request even without a response.
    let (tokens, cost) = of(model.count.of_texts(texts.iter()));
    let call = metrics::ModelCallCounter::begin(id, tokens, cost);
    let before = prompt_of(paid);
    let embedded = tokio::time::timeout_at(until, model.vectors(texts, paid)).await;
    match embedded.unwrap_or(Err(UpstreamError::Timeout)) {
        Ok(vectors) => {
            let billed = prompt_of(paid).map(|billed| billed - before.unwrap_or(0));
            let billed = billed.and_then(|billed| u32::try_from(billed).ok());
            call.end("ok", billed.map(u64::from).map(of));
            Ok(vectors)
        }
        Err(error) => {
            // In these cases the provider may have computed the vectors, so the estimate counts.
            let took_it = matches!(
                error,
                UpstreamError::Timeout
                    | UpstreamError::Broken(_)
                    | UpstreamError::Lost(_)
                    | UpstreamError::Malformed(_)
                    | UpstreamError::TooLarge { .. }
            );
            call.end(error.reason(), (!took_it).then_some(Default::default()));
            Err(error)
        }
    }
}

/// Prompt tokens counted so far.
fn prompt_of(paid: &Payment) -> Option<i64> {
    let usage = paid.counted()?;
    usage.prompt_tokens.or(usage.total_tokens)
}
