//! Who makes vectors of texts.

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use crate::outbound::model::Models;
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

/// Texts that providers take at once.
const AT_ONCE: usize = 256;

/// The models of the catalog. What they embed for knowledge bases is the operator's own use: no run pays.
impl Embedder for Models {
    fn embed<'a>(
        &'a self,
        model: &'a str,
        texts: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<Vec<f32>>, UpstreamError>> {
        let embedding = async move {
            let model = self.find(model)?;
            let mut vectors = Vec::with_capacity(texts.len());
            for texts in texts.chunks(AT_ONCE) {
                vectors.extend(model.vectors(texts).await?.0);
            }
            Ok(vectors)
        };
        embedding.boxed()
    }
}
