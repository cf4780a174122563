//! Who makes vectors of texts.

use futures_util::future::BoxFuture;

use crate::outbound::upstream::UpstreamError;

/// A provider of embedding models.
pub trait Embedder: Send + Sync {
    /// A vector for each text, in their order. `model`: its id in the catalog.
    fn embed<'a>(
        &'a self,
        model: &'a str,
        texts: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<Vec<f32>>, UpstreamError>>;
}
