//! Rerank and embedding calls: models that read text and generate none.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use protocol::JsonObject;
use protocol::error::ErrorBody;
use protocol::message::LlmTokenUsage;
use protocol::model::{Embed, Embeddings, Rerank, RerankResults};
use protocol::resources::ModelOperation;
use serde::Serialize;
use serde_json::json;

use super::body::ModelBody;
use super::routing::{RoutedCall, answered_by, begin_call};
use super::token_bounds::prompt_texts;
use super::{check_count, extra_args};
use crate::host_call::{AttemptError, CompletionTokens, HostCall, Spend};
use egress::upstream::UpstreamError;
use llm_formats::object;
use models::{Model, RouteCandidate};
use web::auth::LiveCaller;
use web::error::{ApiError, ApiResult};
use web::memory_budget::MemoryPermit;
use web::query::PathOf;
use web::state::ApiState;

const MAX_DOCUMENTS: usize = 64;
const MAX_TEXTS: usize = 256;
/// Fields of a rerank request that `extra_args` must not contain.
const NOT_EXTRA: [&str; 5] = ["model", "query", "documents", "top_n", "top_k"];

/// Ranks documents by relevance to a query, most relevant first.
///
/// Documents: 1 to 64. With `top_k`, only the best are returned.
#[utoipa::path(post, path = "/host/v1/models/{model_id}/rerank", tag = "host", security(("run_token" = [])),
    params(("model_id" = String, Path, description = "Percent-encoded")), request_body = Rerank, responses(
    (status = 200, description = "Results, most relevant first", body = RerankResults),
    (status = 400, description = "The request is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The model was not granted", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody),
    (status = 429, description = "A limit is reached: the provider's rate limit, a limit of tokens, a budget, or the memory for large requests (`details.reason`)", body = ErrorBody),
    (status = 502, description = "The provider failed", body = ErrorBody),
    (status = 504, description = "The provider did not respond in time, or the run is past its deadline", body = ErrorBody)))]
pub(crate) async fn rerank_documents(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
    request: ModelBody<Rerank>,
) -> ApiResult<Response> {
    let operation = ModelOperation::Rerank;
    let mut routed = RoutedCall::new(&caller, &state, &id, "models_rerank", operation);
    loop {
        let (mut call, candidate) = routed.begin().await?;
        match rerank(&mut call, candidate, &request).await {
            Ok(ranked) => {
                let response = call.end(Ok(ranked)).map(Json)?.into_response();
                return Ok(routed.answered(candidate, response));
            }
            Err(failed) => routed.failed(call, failed).await?,
        }
    }
}

/// Creates an embedding vector for each text.
///
/// Texts: 1 to 256. The vectors are in the order of the texts.
#[utoipa::path(post, path = "/host/v1/models/{model_id}/embed", tag = "host", security(("run_token" = [])),
    params(("model_id" = String, Path, description = "Percent-encoded")), request_body = Embed, responses(
    (status = 200, description = "A vector for each text, in order", body = Embeddings),
    (status = 400, description = "The request is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The model was not granted for `invoke`", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody),
    (status = 429, description = "A limit is reached: the provider's rate limit, a limit of tokens, a budget, or the memory for large requests (`details.reason`)", body = ErrorBody),
    (status = 502, description = "The provider failed", body = ErrorBody),
    (status = 504, description = "The provider did not respond in time, or the run is past its deadline", body = ErrorBody)))]
pub(crate) async fn embed_texts(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
    ModelBody {
        value: request,
        mut permit,
    }: ModelBody<Embed>,
) -> ApiResult<Response> {
    let operation = ModelOperation::Invoke;
    let (mut call, model) = begin_call(&caller, &state, "models_embed", &id, operation).await?;
    let embedded = async {
        check_count("/texts", request.texts.len(), MAX_TEXTS)?;
        let (vectors, usage) = embed(&mut call, model, &id, &request.texts, &mut permit).await?;
        json_of(&Embeddings { vectors, usage })
    };
    let embedded = embedded.await;
    // The answer may be larger than the request, so it leaves under the permit of the request.
    let answer = call.end(embedded);
    answer.map(|json| answered_by(&id, permit.answer(json)))
}

async fn rerank(
    call: &mut HostCall,
    candidate: RouteCandidate<'_>,
    request: &Rerank,
) -> Result<RerankResults, AttemptError> {
    let RouteCandidate { id, model } = candidate;
    let count = request.documents.len();
    check_count("/documents", count, MAX_DOCUMENTS)?;
    let body = extra_args(&request.extra_args, &NOT_EXTRA, model);
    let mut body = body.map_err(AttemptError::of_request)?;
    let extra_texts = prompt_texts(&body);
    let texts = request.documents.iter().chain([&request.query]);
    let spend = reading_spend(id, model, texts.chain(&extra_texts));
    let paid = call.reserve(spend).await?;
    // Within the number of documents; 0 counts as 1.
    let top = request.top_k.unwrap_or(u64::MAX).clamp(1, count as u64);
    body.extend(object(
        json!({"query": request.query, "documents": request.documents, "top_n": top}),
    ));
    let answer = call
        .attempt(model.provider.rerank(model.request_body(body), &paid))
        .await?;
    call.count(domain::usage::usage_of(&answer));
    ranking(&answer, count, top).map_err(AttemptError::Upstream)
}

/// Size of a vector in JSON: about 30 KiB for 1,536 numbers.
const VECTOR_BYTES: usize = 32 * 1024;
/// Maximum size of an answer in bytes.
const MAX_VECTOR_BYTES: usize = 32 * 1024 * 1024;

/// Embeds texts within the budgets of the call and the memory budget for model requests. Short texts may have
/// large vectors.
pub(crate) async fn embed(
    call: &mut HostCall,
    model: &Model,
    id: &str,
    texts: &[String],
    permit: &mut MemoryPermit,
) -> ApiResult<(Vec<Vec<f32>>, Option<LlmTokenUsage>)> {
    let vectors = texts.len().saturating_mul(VECTOR_BYTES);
    permit.grow_to(vectors.min(MAX_VECTOR_BYTES))?;
    let paid = call.reserve(reading_spend(id, model, texts.iter())).await?;
    let vectors = call.within(model.vectors(texts, &paid)).await;
    // Count the tokens of earlier batches even if a later batch fails.
    call.count(paid.counted());
    Ok((vectors?, paid.counted()))
}

/// Serializes an answer without an intermediate value per number.
pub(crate) fn json_of(answer: &impl Serialize) -> ApiResult<Vec<u8>> {
    serde_json::to_vec(answer).map_err(|_| ApiError::internal())
}

/// Upper bound of an embedding or rerank call: no tokens are generated.
fn reading_spend<'a>(id: &str, model: &Model, texts: impl Iterator<Item = &'a String>) -> Spend {
    let tokens = model.count.of_texts(texts);
    Spend::of_model(id, model, tokens, CompletionTokens::default())
}

/// Parses a ranking: known indexes, each once, best first.
fn ranking(answer: &JsonObject, count: usize, top: u64) -> Result<RerankResults, UpstreamError> {
    let malformed = || UpstreamError::Malformed("a ranking without known places".to_owned());
    let results = answer
        // Servers use both names.
        .get("results")
        .or_else(|| answer.get("data"))
        .ok_or_else(malformed)?;
    let mut results: Vec<protocol::model::RerankResult> =
        serde_json::from_value(results.clone()).map_err(|_| malformed())?;
    // Providers need not sort.
    results.sort_by(|a, b| b.relevance_score.total_cmp(&a.relevance_score));
    // An index out of range, or twice, would address a wrong document at the runner.
    let mut seen = std::collections::BTreeSet::new();
    if results
        .iter()
        .any(|result| result.index >= count || !seen.insert(result.index))
    {
        return Err(malformed());
    }
    results.truncate(usize::try_from(top).unwrap_or(usize::MAX));
    Ok(RerankResults { results })
}
