//! Who makes vectors of texts.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use egress::upstream::UpstreamError;
use models::{Model, Models, Paid};
use telemetry::metrics;

/// A provider of embedding models.
pub trait Embedder: Send + Sync {
    /// A vector for each text, in their order, of all of them within this time. `model`: its id in the catalog.
    fn embed<'a>(
        &'a self,
        model: &'a str,
        texts: &'a [String],
        patience: Duration,
        paid: &'a Paid,
    ) -> BoxFuture<'a, Result<Vec<Vec<f32>>, UpstreamError>>;
}

/// Texts that providers take at once.
const AT_ONCE: usize = 256;

/// The models of the catalog. What they embed for knowledge bases stands in the metrics of models, by runs and by operators.
impl Embedder for Models {
    fn embed<'a>(
        &'a self,
        model: &'a str,
        texts: &'a [String],
        patience: Duration,
        paid: &'a Paid,
    ) -> BoxFuture<'a, Result<Vec<Vec<f32>>, UpstreamError>> {
        let until = Instant::now() + patience;
        let embedding = async move {
            let known = self.find(model)?;
            let mut vectors = Vec::with_capacity(texts.len());
            for texts in texts.chunks(AT_ONCE) {
                vectors.extend(counted(model, known, texts, until, paid).await?);
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
    paid: &Paid,
) -> Result<Vec<Vec<f32>>, UpstreamError> {
    let price = model.price.unwrap_or_default();
    let of = |tokens| (tokens, price.cost(tokens, 0));
    // A provider that has been asked may bill it, whether it is heard or not.
    let call = metrics::ModelCall::begin(id, of(model.count.of_texts(texts.iter())));
    let before = prompt_of(paid);
    let embedded = tokio::time::timeout_at(until, model.vectors(texts, paid)).await;
    match embedded.unwrap_or(Err(UpstreamError::Timeout)) {
        Ok(vectors) => {
            let said = prompt_of(paid).map(|said| said - before.unwrap_or(0));
            let said = said.and_then(|said| u32::try_from(said).ok());
            call.end("ok", said.map(u64::from).map(of));
            Ok(vectors)
        }
        Err(error) => {
            let took_it = matches!(
                error,
                UpstreamError::Timeout
                    | UpstreamError::Broken(_)
                    | UpstreamError::Lost(_)
                    | UpstreamError::Malformed(_)
                    | UpstreamError::TooLarge { .. }
            );
            call.end(error.reason(), (!took_it).then_some((0, 0)));
            Err(error)
        }
    }
}

/// Tokens counted so far.
fn prompt_of(paid: &Paid) -> Option<i64> {
    let usage = paid.counted()?;
    usage.prompt_tokens.or(usage.total_tokens)
}
