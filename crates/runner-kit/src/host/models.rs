//! Granted models: completion, streaming, token counts, embeddings and reranking.

use futures_util::stream::BoxStream;
use protocol::model::{
    CountTokens, CountedTokens, Embed, Embeddings, LlmInvokeResult, LlmRequest, LlmStreamEvent,
    ModelList, Rerank, RerankResult, RerankResults,
};
use protocol::resources::ModelResource;
use reqwest::Method;

use crate::host::{HostConnection, HostError, sse};

/// Model stream. The first error is the last item. Dropping it ends the call.
pub type ModelStream = BoxStream<'static, Result<LlmStreamEvent, HostError>>;

/// Models of the run.
#[derive(Clone, Copy, Debug)]
pub struct ModelsApi<'a>(pub(super) &'a HostConnection);

impl ModelsApi<'_> {
    /// Models of the run's grant.
    pub async fn list(self) -> Result<Vec<ModelResource>, HostError> {
        let list: ModelList = self.0.get(&["models"]).await?;
        Ok(list.models)
    }

    /// Complete answer of a model; may take the rest of the run.
    pub async fn invoke(
        self,
        model: &str,
        request: &LlmRequest,
    ) -> Result<LlmInvokeResult, HostError> {
        let call = self
            .0
            .request(Method::POST, &["models", model, "invoke"])
            .await?;
        self.0.long_answer(call.json(request)).await
    }

    /// Streams a model's answer. A failure before the first chunk is an error of this call.
    pub async fn stream(self, model: &str, request: &LlmRequest) -> Result<ModelStream, HostError> {
        let call = self
            .0
            .request(Method::POST, &["models", model, "stream"])
            .await?;
        let answer = self.0.open_long(call.json(request)).await?;
        Ok(sse::events(answer))
    }

    /// Upper estimate of the tokens that a model counts.
    pub async fn count_tokens(self, model: &str, request: &CountTokens) -> Result<u64, HostError> {
        let call = self
            .0
            .request(Method::POST, &["models", model, "count-tokens"])
            .await?;
        let counted: CountedTokens = self.0.answer(call.json(request)).await?;
        Ok(counted.tokens)
    }

    /// Ranks 1 to 64 documents by relevance to a query, best first.
    pub async fn rerank(
        self,
        model: &str,
        request: &Rerank,
    ) -> Result<Vec<RerankResult>, HostError> {
        let call = self
            .0
            .request(Method::POST, &["models", model, "rerank"])
            .await?;
        let ranked: RerankResults = self.0.long_answer(call.json(request)).await?;
        Ok(ranked.results)
    }

    /// Vectors of 1 to 256 texts, in order.
    pub async fn embed(self, model: &str, texts: Vec<String>) -> Result<Embeddings, HostError> {
        let call = self
            .0
            .request(Method::POST, &["models", model, "embed"])
            .await?;
        self.0.long_answer(call.json(&Embed { texts })).await
    }
}
