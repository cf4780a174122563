//! Granted models: invoke, stream and count tokens (`docs/runners/host-api.md`).

pub(crate) mod body;
pub(crate) mod reading;

pub(crate) mod allowed_parameters;
mod answer_stream;
pub(crate) mod chat_tokens;
pub(crate) mod content_parts;
pub(crate) mod hooked;
pub(crate) mod images;
mod native;
pub(crate) mod pipeline;
pub(crate) mod routing;
mod stream_text;
pub(crate) mod token_bounds;

use std::time::Instant;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use llm_formats::chat::{chat_message, chat_tool};
use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::error::ErrorBody;
use protocol::message::Message;
use protocol::model::{
    CountTokens, CountedTokens, LlmInvokeResult, LlmRequest, LlmStreamEvent, LlmTool, ModelList,
    ReasoningLevel,
};
use protocol::resources::ModelOperation;
use serde_json::{Value, json};

use allowed_parameters::check_parameters;
use body::ModelBody;
use content_parts::check_urls;
use models::Model;
use native::NativeFace;
use pipeline::{Delivery, call_model};
use routing::conversation_key;
use token_bounds::{check_token_limits, prompt_texts};
use web::auth::{AuditedCall, LiveCaller, RunCaller};
use web::error::{ApiError, ApiResult};
use web::query::PathOf;
use web::state::ApiState;

const MAX_MESSAGES: usize = 10_000;
const MAX_TOOLS: usize = 512;
/// Fields that `extra_args` must not contain: separate request fields, and fields that change the shape of the
/// answer.
const NOT_EXTRA: [&str; 7] = [
    "model",
    "messages",
    "tools",
    "stream",
    "stream_options",
    "n",
    "best_of",
];

/// Lists the granted models and the operations allowed on each.
#[utoipa::path(get, path = "/host/v1/models", tag = "host", security(("run_token" = [])), responses(
    (status = 200, description = "All items", body = ModelList),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody)))]
pub(crate) async fn list_granted_models(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
) -> ApiResult<Json<ModelList>> {
    let call = AuditedCall {
        action: "models_list",
        resource: "models",
        operation: "list",
    };
    // The list is part of the token's grant, so no permission is checked.
    caller.record(&state, call, None).await?;
    Ok(Json(ModelList {
        models: caller.grant.snapshot.resources.models.clone(),
    }))
}

/// Invokes a model and returns the complete answer.
///
/// An image URL `artifact:ID` refers to an artifact that the run may read. Images are PNG, JPEG, GIF or WebP, at
/// most 32, and at most 15 MiB together.
#[utoipa::path(post, path = "/host/v1/models/{model_id}/invoke", tag = "host", security(("run_token" = [])),
    params(("model_id" = String, Path, description = "Percent-encoded")), request_body = LlmRequest, responses(
    (status = 200, description = "The answer", body = LlmInvokeResult),
    (status = 400, description = "The request is not valid, or exceeds the model's context window (`details.reason`: context_length_exceeded)", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The model was not granted, or an image needs `artifacts:read`", body = ErrorBody),
    (status = 404, description = "An image refers to an artifact that the run cannot see (`details.pointer`)", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody),
    (status = 413, description = "The request or its images are too large", body = ErrorBody),
    (status = 429, description = "A limit is reached: the provider's rate limit, a limit of tokens, a budget, or the memory for large requests (`details.reason`)", body = ErrorBody),
    (status = 502, description = "The provider failed", body = ErrorBody),
    (status = 504, description = "The provider did not respond in time, or the run is past its deadline", body = ErrorBody)))]
pub(crate) async fn invoke_model(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
    ModelBody {
        value: request,
        permit: _permit,
    }: ModelBody<LlmRequest>,
) -> ApiResult<Response> {
    let face = NativeFace(request);
    call_model(&caller, &state, &id, Delivery::Complete, face).await
}

/// Invokes a model and streams the answer. Images work as in `invoke`.
///
/// Events:
/// - `chunk`: an `LlmStreamEvent` with a chunk; the last has `is_final`.
/// - `usage`: an `LlmStreamEvent` with the token counts, if known.
/// - `error`: the error that ended the stream.
#[utoipa::path(post, path = "/host/v1/models/{model_id}/stream", tag = "host", security(("run_token" = [])),
    params(("model_id" = String, Path, description = "Percent-encoded")), request_body = LlmRequest, responses(
    (status = 200, description = "The answer", content_type = "text/event-stream", body = LlmStreamEvent),
    (status = 400, description = "The request is not valid, or exceeds the model's context window", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The model was not granted, or an image needs `artifacts:read`", body = ErrorBody),
    (status = 404, description = "An image refers to an artifact that the run cannot see (`details.pointer`)", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody),
    (status = 413, description = "The request or its images are too large", body = ErrorBody),
    (status = 429, description = "A limit is reached: the provider's rate limit, a limit of tokens, a budget, or the memory for large requests (`details.reason`)", body = ErrorBody),
    (status = 502, description = "The provider failed", body = ErrorBody),
    (status = 504, description = "The provider did not respond in time, or the run is past its deadline", body = ErrorBody)))]
pub(crate) async fn stream_model(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
    ModelBody {
        value: request,
        permit: _permit,
    }: ModelBody<LlmRequest>,
) -> ApiResult<Response> {
    let face = NativeFace(request);
    call_model(&caller, &state, &id, Delivery::Stream, face).await
}

/// Encodes a server-sent event of the native API.
pub fn frame(event: &str, data: &Value) -> Bytes {
    format!("event: {event}\ndata: {data}\n\n").into()
}

/// Counts the tokens of a request.
///
/// The gateway computes an upper bound of the model's count without a call to the provider.
#[utoipa::path(post, path = "/host/v1/models/{model_id}/count-tokens", tag = "host", security(("run_token" = [])),
    params(("model_id" = String, Path, description = "Percent-encoded")), request_body = CountTokens, responses(
    (status = 200, description = "The count", body = CountedTokens),
    (status = 400, description = "The request is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The model was not granted", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody)))]
pub(crate) async fn count_model_tokens(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
    request: ModelBody<CountTokens>,
) -> ApiResult<Json<CountedTokens>> {
    let model = counting_model(&caller, &state, &id).await?;
    check_max_items("/messages", request.messages.len(), MAX_MESSAGES)?;
    check_max_items("/tools", request.tools.len(), MAX_TOOLS)?;
    let CountTokens {
        messages,
        tools,
        extra_args,
    } = &*request;
    let tokens = counted_tokens(model, messages, tools, extra_args);
    Ok(Json(CountedTokens { tokens }))
}

/// Counts the tokens of a request, with the texts of its extra fields.
fn counted_tokens(
    model: &Model,
    messages: &[Message],
    tools: &[LlmTool],
    extra_args: &JsonObject,
) -> u64 {
    let extra_texts = prompt_texts(extra_args);
    model.count.of_request(messages, tools) + model.count.of_texts(extra_texts.iter())
}

/// Authorizes and audits a token count, and returns the granted model; of a route, the one that is called first.
pub(crate) async fn counting_model<'a>(
    caller: &RunCaller,
    state: &'a ApiState,
    id: &str,
) -> ApiResult<&'a Model> {
    let operation = ModelOperation::CountTokens;
    let call = AuditedCall {
        action: "models_count_tokens",
        resource: id,
        operation: operation.as_str(),
    };
    let permission = caller.grant.snapshot.model(id, operation).map(drop);
    caller.granted(state, call, permission).await?;
    let candidates = state
        .models
        .candidates(id, &conversation_key(caller), Instant::now());
    match candidates.first() {
        Some(first) => Ok(first.model),
        None => Ok(state.models.find(id)?),
    }
}

/// Converts a request to a chat completion body.
pub fn chat_body(request: &LlmRequest, model: &Model, id: &str) -> ApiResult<JsonObject> {
    check_count("/messages", request.messages.len(), MAX_MESSAGES)?;
    check_max_items("/tools", request.tools.len(), MAX_TOOLS)?;
    let mut body = extra_args(&request.extra_args, &NOT_EXTRA, model)?;
    let messages = request.messages.iter();
    let messages: Vec<_> = messages.map(|message| chat_message(message, id)).collect();
    body.insert("messages".to_owned(), json!(messages));
    if !request.tools.is_empty() {
        let tools: Vec<_> = request.tools.iter().map(chat_tool).collect();
        body.insert("tools".to_owned(), json!(tools));
    }
    if let Some(effort) = request.reasoning_level.and_then(ReasoningLevel::effort) {
        body.insert("reasoning_effort".to_owned(), json!(effort));
    }
    // Providers in the operator's network fetch from inside of it, so URLs must pass the egress rules.
    check_urls(&body, |url| model.check_fetch_url(url))
        .map_err(|fault| ApiError::faults(&[fault]))?;
    Ok(body)
}

/// Takes the extra fields of a request, without the gateway's own fields.
fn extra_args(args: &JsonObject, excluded: &[&str], model: &Model) -> ApiResult<JsonObject> {
    if let Some(key) = excluded.iter().find(|key| args.contains_key(**key)) {
        let pointer = format!("/extra_args/{key}");
        return Err(ApiError::invalid(
            pointer,
            "is not allowed in extra_args: it is a field of its own, or the gateway sets it",
        ));
    }
    let checked =
        check_parameters(args, &model.extra_members).and_then(|()| check_token_limits(args));
    checked.map_err(|fault| ApiError::faults(&[fault.under("/extra_args")]))?;
    Ok(args.clone())
}

fn check_max_items(pointer: &str, count: usize, max: usize) -> ApiResult<()> {
    if count <= max {
        return Ok(());
    }
    let message = format!("must have at most {max} items");
    Err(ApiError::invalid(pointer, message))
}

fn check_count(pointer: &str, count: usize, max: usize) -> ApiResult<()> {
    if (1..=max).contains(&count) {
        return Ok(());
    }
    Err(ApiError::faults(&[Fault::new(
        pointer,
        format!("must have 1 to {max} items"),
    )]))
}
