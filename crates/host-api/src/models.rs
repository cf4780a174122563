//! Granted models: invoke, stream and count tokens (`docs/runners/host-api.md`).

pub(crate) mod body;
pub(crate) mod reading;

pub(crate) mod allowed_parameters;
pub(crate) mod content_parts;
pub(crate) mod face_errors;
pub(crate) mod images;
pub(crate) mod token_bounds;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use futures_util::{Stream, StreamExt as _, stream};
use llm_formats::chat::{ChunkReader, answer, chat_message, chat_tool, mark_model};
use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::error::ErrorBody;
use protocol::model::{
    CountTokens, CountedTokens, LlmInvokeResult, LlmRequest, LlmStreamEvent, ModelList,
    ReasoningLevel,
};
use protocol::resources::ModelOperation;
use serde_json::{Value, json};

use crate::host_call::HostCall;
use allowed_parameters::check_parameters;
use body::ModelBody;
use content_parts::check_urls;
use egress::upstream::UpstreamError;
use images::with_images;
use models::{Chunks, Model};
pub(crate) use token_bounds::generated_bytes;
use token_bounds::{chat_spend, check_token_limits, prompt_texts};
use web::auth::{AuditedCall, LiveCaller, RunCaller};
use web::error::{ApiError, ApiResult};
use web::memory_budget::MemoryPermit;
use web::query::PathOf;
use web::state::ApiState;
use web::stream::event_stream;

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

const FULL: (&str, &str) = (
    "model_calls",
    "the run has reached its limit of concurrent model calls; wait until one has ended",
);

/// Begins an audited call to a granted model.
pub(super) async fn begin_call<'a>(
    caller: &RunCaller,
    state: &'a ApiState,
    action: &'static str,
    id: &str,
    operation: ModelOperation,
) -> ApiResult<(HostCall, &'a Model)> {
    let call = AuditedCall {
        action,
        resource: id,
        operation: operation.as_str(),
    };
    let permission = caller.grant.snapshot.model(id, operation).map(drop);
    let (mut call, ()) = HostCall::begin(caller, state, call, permission).await?;
    // Held by the call until its end.
    let permit = state.runs.calls.begin_model_call(&caller.grant);
    if let Err(refused) = call.keep(permit, FULL) {
        return call.end(Err(refused));
    }
    match state.models.find(id) {
        Ok(model) => {
            call.trace_model(action, id, model);
            Ok((call, model))
        }
        Err(gone) => call.end(Err(gone.into())),
    }
}

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
    (status = 429, description = "A limit is reached: the provider's rate limit, a budget, or the memory for large requests (`details.reason`)", body = ErrorBody),
    (status = 502, description = "The provider failed", body = ErrorBody),
    (status = 504, description = "The provider did not respond in time, or the run is past its deadline", body = ErrorBody)))]
pub(crate) async fn invoke_model(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
    request: ModelBody<LlmRequest>,
) -> ApiResult<Json<LlmInvokeResult>> {
    let operation = ModelOperation::Invoke;
    let (mut call, model) = begin_call(&caller, &state, "models_invoke", &id, operation).await?;
    let invocation = ModelInvocation {
        caller: &caller,
        state: &state,
        model,
        id: &id,
    };
    let response = invocation.invoke(&mut call, &request).await;
    call.end(response).map(Json)
}

/// A request to a model.
struct ModelInvocation<'a> {
    caller: &'a RunCaller,
    state: &'a ApiState,
    model: &'a Model,
    id: &'a str,
}

impl ModelInvocation<'_> {
    async fn invoke(
        &self,
        call: &mut HostCall,
        request: &LlmRequest,
    ) -> ApiResult<LlmInvokeResult> {
        let (body, _images) = self.prepare(call, request).await?;
        let completion = call.within(self.model.provider.complete(body)).await?;
        // Counted before the answer is read: the provider bills it in any case.
        call.count_text(generated_bytes(&completion, "message"));
        call.count(domain::usage::usage_of(&completion));
        let response = answer(&completion, request.remove_think);
        let mut response = response
            .ok_or_else(|| UpstreamError::Malformed("a completion without a message".to_owned()))?;
        let message = &mut response.message;
        let calls = message.tool_calls.as_mut();
        mark_model(message.provider_specific_fields.as_mut(), calls, self.id);
        call.add_bytes(response.message.plain_text().len());
        Ok(response)
    }

    async fn stream(&self, call: &mut HostCall, request: &LlmRequest) -> ApiResult<Chunks> {
        let (body, _images) = self.prepare(call, request).await?;
        call.within(self.model.provider.stream(body)).await
    }

    /// Builds the provider's body within the budgets, with the memory permits of its images.
    async fn prepare(
        &self,
        call: &mut HostCall,
        request: &LlmRequest,
    ) -> ApiResult<(JsonObject, Vec<MemoryPermit>)> {
        let Self { model, id, .. } = self;
        let mut body = chat_body(request, model, id)?;
        let images = with_images(self.caller, self.state, &mut body).await?;
        let body = model.completion_body(body);
        let extra_texts = prompt_texts(&request.extra_args);
        let prompt = model.count.of_request(&request.messages, &request.tools)
            + model.count.of_texts(extra_texts.iter());
        call.reserve(chat_spend(id, model, prompt, &body)).await?;
        Ok((body, images))
    }
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
    (status = 429, description = "A limit is reached: the provider's rate limit, a budget, or the memory for large requests (`details.reason`)", body = ErrorBody),
    (status = 502, description = "The provider failed", body = ErrorBody),
    (status = 504, description = "The provider did not respond in time, or the run is past its deadline", body = ErrorBody)))]
pub(crate) async fn stream_model(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
    request: ModelBody<LlmRequest>,
) -> ApiResult<Response> {
    let operation = ModelOperation::Stream;
    let (mut call, model) = begin_call(&caller, &state, "models_stream", &id, operation).await?;
    let invocation = ModelInvocation {
        caller: &caller,
        state: &state,
        model,
        id: &id,
    };
    match invocation.stream(&mut call, &request).await {
        Ok(chunks) => {
            let reader = ChunkReader::new(request.remove_think).of_model(&id);
            Ok(event_stream(Body::from_stream(frames(
                call, chunks, reader,
            ))))
        }
        Err(failed) => call.end(Err(failed)),
    }
}

/// State of a stream.
enum ModelStreamState {
    Chunks(Box<(HostCall, ChunkReader)>),
    Over,
}

/// Frames of a model's stream. It ends with the run or the first error.
fn frames(
    call: HostCall,
    chunks: Chunks,
    reader: ChunkReader,
) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> {
    let chunks = Box::pin(call.while_live(chunks));
    let begun = (chunks, ModelStreamState::Chunks(Box::new((call, reader))));
    let frames = stream::unfold(begun, |(mut chunks, stream_state)| async move {
        let ModelStreamState::Chunks(mut stream_state) = stream_state else {
            return None;
        };
        let (call, reader) = &mut *stream_state;
        let frame = match chunks.next().await {
            Some(Ok(chunk)) => {
                call.count_text(generated_bytes(&chunk, "delta"));
                let chunk = reader.read(&chunk);
                let frame = chunk.map(|chunk| frame("chunk", &json!({"chunk": chunk})));
                let frame = frame.unwrap_or_default();
                call.add_bytes(frame.len());
                return Some((frame, (chunks, ModelStreamState::Chunks(stream_state))));
            }
            Some(Err(failed)) => error_frame(stream_state.0, failed),
            None if !reader.has_finished() => {
                let cut = "the stream ended before the answer did";
                error_frame(
                    stream_state.0,
                    UpstreamError::Malformed(cut.to_owned()).into(),
                )
            }
            None => {
                // The last frame has the final chunk and the usage, because clients stop after `is_final`.
                let (mut call, reader) = *stream_state;
                let (last, usage) = reader.finish();
                call.count(usage.clone());
                let mut end = frame("chunk", &json!({"chunk": last})).to_vec();
                if let Some(usage) = usage {
                    end.extend_from_slice(&frame("usage", &json!({"usage": usage})));
                }
                let _ = call.end(Ok(()));
                end.into()
            }
        };
        Some((frame, (chunks, ModelStreamState::Over)))
    });
    frames
        .filter(|frame| std::future::ready(!frame.is_empty()))
        .map(Ok)
}

/// Builds the error event. The call has ended.
fn error_frame(call: HostCall, failed: ApiError) -> Bytes {
    let failed = call.end::<()>(Err(failed)).err();
    let error = failed.map(|failed| failed.into_parts().1);
    frame("error", &json!({"error": error}))
}

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
    let operation = ModelOperation::CountTokens;
    let call = AuditedCall {
        action: "models_count_tokens",
        resource: &id,
        operation: operation.as_str(),
    };
    let permission = caller.grant.snapshot.model(&id, operation).map(drop);
    caller.granted(&state, call, permission).await?;
    check_max_items("/messages", request.messages.len(), MAX_MESSAGES)?;
    check_max_items("/tools", request.tools.len(), MAX_TOOLS)?;
    let count = state.models.find(&id)?.count;
    let extra_texts = prompt_texts(&request.extra_args);
    let tokens =
        count.of_request(&request.messages, &request.tools) + count.of_texts(extra_texts.iter());
    Ok(Json(CountedTokens { tokens }))
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
