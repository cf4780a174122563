//! The granted models: asked whole or as a stream, counted for, and ranking.

use futures_util::stream::BoxStream;
use protocol::model::{
    CountTokens, CountedTokens, Embed, Embeddings, LlmInvokeResult, LlmRequest, LlmStreamEvent,
    ModelList, Rerank, RerankResult, RerankResults,
};
use protocol::resources::ModelResource;
use reqwest::Method;

use crate::host::{Host, HostError, sse};

/// What a model says, piece by piece. Nothing comes after the first error. Dropping it ends the call.
pub type ModelStream = BoxStream<'static, Result<LlmStreamEvent, HostError>>;

impl Host {
    /// The models that the run was granted.
    pub async fn models(&self) -> Result<Vec<ModelResource>, HostError> {
        let list: ModelList = self.get(&["models"]).await?;
        Ok(list.models)
    }

    /// The whole answer of a model. It may take all of the run's time.
    pub async fn invoke_model(
        &self,
        model: &str,
        request: &LlmRequest,
    ) -> Result<LlmInvokeResult, HostError> {
        let call = self
            .request(Method::POST, &["models", model, "invoke"])
            .await?;
        self.long_answer(call.json(request)).await
    }

    /// A model's answer as it comes. A failure before its first piece is the error of this call.
    pub async fn stream_model(
        &self,
        model: &str,
        request: &LlmRequest,
    ) -> Result<ModelStream, HostError> {
        let call = self
            .request(Method::POST, &["models", model, "stream"])
            .await?;
        let answer = self.send_long(call.json(request)).await?;
        Ok(sse::events(answer))
    }

    /// How many tokens a model will count, or a few more.
    pub async fn count_tokens(&self, model: &str, request: &CountTokens) -> Result<u64, HostError> {
        let call = self
            .request(Method::POST, &["models", model, "count-tokens"])
            .await?;
        let counted: CountedTokens = self.answer(call.json(request)).await?;
        Ok(counted.tokens)
    }

    /// Which of 1 to 64 documents are the closest to a query, the closest first.
    pub async fn rerank(
        &self,
        model: &str,
        request: &Rerank,
    ) -> Result<Vec<RerankResult>, HostError> {
        let call = self
            .request(Method::POST, &["models", model, "rerank"])
            .await?;
        let ranked: RerankResults = self.long_answer(call.json(request)).await?;
        Ok(ranked.results)
    }

    /// The vectors of 1 to 256 texts, in their order.
    pub async fn embed(&self, model: &str, texts: Vec<String>) -> Result<Embeddings, HostError> {
        let call = self
            .request(Method::POST, &["models", model, "embed"])
            .await?;
        self.long_answer(call.json(&Embed { texts })).await
    }
}
