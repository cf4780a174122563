//! Granted models as OpenAI's API. Agent frameworks use the run token as API key (`docs/runners/host-api.md`).
//! Fields that only shape the answer pass through unchanged, and so does the answer.

mod embedded;
mod listing;

use std::convert::Infallible;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::middleware::map_response;
use axum::response::{IntoResponse as _, Response};
use futures_util::{Stream, StreamExt as _, stream};
use http::StatusCode;
use protocol::JsonObject;
use protocol::error::ErrorBody;
use protocol::resources::ModelOperation;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::host_call::{HostCall, Spend};
use crate::models::allowed_parameters::check_parameters;
use crate::models::begin_call;
use crate::models::body::ModelBody;
use crate::models::content_parts::{check_urls, without_data};
use crate::models::images::with_images;
use crate::models::reading::embed;
use crate::models::token_bounds::{chat_spend, check_token_limits, generated_bytes, prompt_texts};
use crate::responses::errors::{in_openai_form, openai_error};
use egress::upstream::UpstreamError;
use embedded::EmbeddingResponse;
pub(crate) use listing::LIST;
pub use listing::shown_model;
use models::{Chunks, Model};
use web::auth::{LiveCaller, RunCaller};
use web::error::{ApiError, ApiResult};
use web::memory_budget::MemoryPermit;
use web::state::ApiState;
use web::stream::event_stream;

/// Routes of the chat completions API. Errors have OpenAI's fields.
pub(crate) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(create_chat_completion))
        .routes(routes!(create_embeddings))
        .routes(routes!(listing::list_openai_models))
        .routes(routes!(listing::get_openai_model))
        .layer(map_response(in_openai_form))
}

/// A request in OpenAI's format. Further fields that only shape the answer are passed to the provider. Other
/// fields are refused unless the operator allows them.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
pub(crate) struct ChatCompletionRequest {
    /// A granted model.
    model: String,
    #[schema(value_type = Vec<Object>)]
    messages: Vec<Value>,
    stream: Option<bool>,
}

/// A request in OpenAI's format.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
pub(crate) struct EmbeddingRequest {
    /// A granted model.
    model: String,
    input: EmbeddingInput,
    /// `float` or `base64`.
    encoding_format: Option<String>,
}

/// A text or a list of 1 to 2,048 texts.
#[derive(Serialize, utoipa::ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its documentation is used")]
pub(crate) enum EmbeddingInput {
    One(String),
    Many(Vec<String>),
}

/// Maximum texts of a request.
const MAX_TEXTS: usize = 2048;

/// Creates a chat completion, in one piece or as a stream: OpenAI's `POST /chat/completions`.
///
/// An image URL `artifact:ID` refers to an artifact that the run may read.
#[utoipa::path(post, path = "/host/v1/openai/v1/chat/completions", tag = "host", security(("run_token" = [])),
    request_body = ChatCompletionRequest, responses(
    (status = 200, description = "A `chat.completion`, or with `stream` its chunks as server-sent events (`text/event-stream`)", body = Object),
    (status = 400, description = "The request is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The model was not granted, or an image needs `artifacts:read`", body = ErrorBody),
    (status = 404, description = "An image refers to an artifact that the run cannot see (`details.pointer`)", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody),
    (status = 413, description = "The request or its images are too large", body = ErrorBody),
    (status = 429, description = "A limit is reached: the provider's rate limit, a budget, or the memory for large requests (`details.reason`)", body = ErrorBody),
    (status = 502, description = "The provider failed", body = ErrorBody),
    (status = 504, description = "The provider did not respond in time, or the run is past its deadline", body = ErrorBody)))]
pub(crate) async fn create_chat_completion(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    ModelBody {
        value: body,
        permit,
    }: ModelBody<JsonObject>,
) -> ApiResult<Response> {
    let _permit = permit;
    let id = named_model(&body)?;
    if !body.get("messages").is_some_and(Value::is_array) {
        return Err(ApiError::invalid("/messages", "must be a list"));
    }
    check_token_limits(&body).map_err(|fault| ApiError::faults(&[fault]))?;
    // Before the stream begins: later, this fault would have no status of its own.
    if body
        .get("stream_options")
        .is_some_and(|options| !options.is_object() && !options.is_null())
    {
        return Err(ApiError::invalid("/stream_options", "must be an object"));
    }
    if body.get("stream").and_then(Value::as_bool) == Some(true) {
        return stream_chat(&caller, &state, id, body).await;
    }
    let operation = ModelOperation::Invoke;
    let (mut call, model) = begin_call(&caller, &state, "models_invoke", &id, operation).await?;
    let response = async {
        let (body, _images) = prepare(
            &caller,
            &state,
            &mut call,
            (&id, model),
            CompletionInput::of(body),
        )
        .await?;
        let mut completion = call.within(model.provider.complete(body)).await?;
        // Clients know only the catalog's name of the model.
        complete(&mut completion, &id, "chat.completion");
        call.count(domain::usage::usage_of(&completion));
        call.count_text(generated_bytes(&completion, "message"));
        let response = Value::Object(completion);
        call.add_bytes(response.to_string().len());
        Ok(response)
    };
    let response = response.await;

    Ok(Json(call.end(response)?).into_response())
}

async fn stream_chat(
    caller: &RunCaller,
    state: &ApiState,
    id: String,
    body: JsonObject,
) -> ApiResult<Response> {
    let operation = ModelOperation::Stream;
    let (mut call, model) = begin_call(caller, state, "models_stream", &id, operation).await?;
    let wants_usage = body
        .get("stream_options")
        .and_then(|options| options.get("include_usage"))
        .and_then(Value::as_bool)
        .unwrap_or(false);
    let chunks = async {
        let (body, _images) = prepare(
            caller,
            state,
            &mut call,
            (&id, model),
            CompletionInput::of(body),
        )
        .await?;
        call.within(model.provider.stream(body)).await
    };
    match chunks.await {
        Ok(chunks) => {
            let frames = frames(call, chunks, id, wants_usage);
            Ok(event_stream(Body::from_stream(frames)))
        }
        Err(failed) => call.end(Err(failed)),
    }
}

/// Input of a completion.
pub(crate) struct CompletionInput<'a> {
    pub(crate) body: JsonObject,
    /// Texts that the provider gets in addition to the body.
    pub(crate) extra_texts: &'a [String],
}

impl CompletionInput<'_> {
    fn of(body: JsonObject) -> Self {
        Self {
            body,
            extra_texts: &[],
        }
    }
}

/// Builds the provider's body within the budgets, with the memory permits of its images.
pub(crate) async fn prepare(
    caller: &RunCaller,
    state: &ApiState,
    call: &mut HostCall,
    (id, model): (&str, &Model),
    CompletionInput { body, extra_texts }: CompletionInput<'_>,
) -> ApiResult<(JsonObject, Vec<MemoryPermit>)> {
    let checked = check_parameters(&body, &model.extra_members)
        .and_then(|()| check_urls(&body, |url| model.check_fetch_url(url)));
    checked.map_err(|fault| ApiError::faults(&[fault]))?;
    let mut body = model.completion_body(body);
    // Images count by their number, so they need not be read for this.
    let spend = spend(id, model, &mut body, extra_texts);
    // Before the reservation: unreadable images must not reserve a budget.
    let images = with_images(caller, state, &mut body).await?;
    call.reserve(spend).await?;
    Ok((body, images))
}

/// The upper bound of a completion. Texts count as they are in the body, images as in the native API.
fn spend(id: &str, model: &Model, body: &mut JsonObject, extra_texts: &[String]) -> Spend {
    let (texts, non_text) = without_data(body, prompt_texts);
    let texts = model.count.of_texts(texts.iter().chain(extra_texts));
    let data = model.count.of_data(non_text.images, non_text.file_bytes);
    chat_spend(id, model, texts.saturating_add(data), body)
}

/// Streams the chunks with the catalog's model name, then `[DONE]`. Usage is sent only on request.
fn frames(
    call: HostCall,
    chunks: Chunks,
    id: String,
    wants_usage: bool,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let chunks = Box::pin(call.while_live(chunks));
    let frames = stream::unfold(
        (chunks, Some(call), id, false),
        move |(mut chunks, call, id, mut has_finished)| async move {
            let mut call = call?;
            let frame = match chunks.next().await {
                Some(Ok(mut chunk)) => {
                    complete(&mut chunk, &id, "chat.completion.chunk");
                    call.count(domain::usage::usage_of(&chunk));
                    call.count_text(generated_bytes(&chunk, "delta"));
                    // A stream without a finish reason was cut, even if the connection ended normally.
                    has_finished |= finishes(&chunk);
                    let frame = shown(chunk, wants_usage)
                        .map(|chunk| chunk_frame(&chunk))
                        .unwrap_or_default();
                    call.add_bytes(frame.len());
                    // The last item: without the call, the next poll ends the stream.
                    return Some((frame, (chunks, Some(call), id, has_finished)));
                }
                Some(Err(failed)) => failure(call, failed),
                None if !has_finished => {
                    let cut = "the stream ended before the answer did".to_owned();
                    failure(call, UpstreamError::Malformed(cut).into())
                }
                None => {
                    let _ = call.end(Ok(()));
                    Bytes::from_static(b"data: [DONE]\n\n")
                }
            };
            Some((frame, (chunks, None, id, has_finished)))
        },
    );
    frames
        .filter(|frame| std::future::ready(!frame.is_empty()))
        .map(Ok)
}

/// True if a choice ends with this chunk.
fn finishes(chunk: &JsonObject) -> bool {
    let choices = chunk.get("choices").and_then(Value::as_array);
    let mut choices = choices.into_iter().flatten();
    choices.any(|choice| llm_formats::chat::finish_reason(choice).is_some())
}

/// Builds the error frame. The call has ended.
fn failure(call: HostCall, failed: ApiError) -> Bytes {
    let failed = call.end::<()>(Err(failed)).err();
    let (status, error) = failed.unwrap_or_else(ApiError::internal).into_parts();
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    chunk_frame(&openai_error(status, error))
}

/// Sets the catalog's model name, and the object type that some servers omit and OpenAI clients require.
pub fn complete(answer: &mut JsonObject, id: &str, object: &str) {
    answer.insert("model".to_owned(), json!(id));
    answer
        .entry("object")
        .or_insert_with(|| Value::from(object));
}

/// Removes usage that was not requested. `None` if nothing else is left.
fn shown(mut chunk: JsonObject, wants_usage: bool) -> Option<Value> {
    if !wants_usage && chunk.remove("usage").is_some_and(|usage| !usage.is_null()) {
        let choices = chunk.get("choices").and_then(Value::as_array);
        if choices.is_none_or(Vec::is_empty) {
            return None;
        }
    }
    Some(Value::Object(chunk))
}

pub fn chunk_frame(data: &Value) -> Bytes {
    format!("data: {data}\n\n").into()
}

/// Creates embeddings: OpenAI's `POST /embeddings`.
#[utoipa::path(post, path = "/host/v1/openai/v1/embeddings", tag = "host", security(("run_token" = [])),
    request_body = EmbeddingRequest, responses(
    (status = 200, description = "A list of `embedding` objects", body = Object),
    (status = 400, description = "The request is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The model was not granted for `invoke`", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody),
    (status = 429, description = "A limit is reached: the provider's rate limit, a budget, or the memory for large requests (`details.reason`)", body = ErrorBody),
    (status = 502, description = "The provider failed", body = ErrorBody),
    (status = 504, description = "The provider did not respond in time, or the run is past its deadline", body = ErrorBody)))]
pub(crate) async fn create_embeddings(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    ModelBody {
        value: body,
        mut permit,
    }: ModelBody<JsonObject>,
) -> ApiResult<Response> {
    let id = named_model(&body)?;
    let texts = texts_of(&body)?;
    let as_base64 = match body.get("encoding_format").and_then(Value::as_str) {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => {
            return Err(ApiError::invalid(
                "/encoding_format",
                "must be float or base64",
            ));
        }
    };
    let operation = ModelOperation::Invoke;
    let (mut call, model) = begin_call(&caller, &state, "models_embed", &id, operation).await?;
    // Without `within`: `embed` ends each of its batches with the run.
    let (vectors, usage) = match embed(&mut call, model, &id, &texts, &mut permit).await {
        Ok(embedded) => embedded,
        Err(failed) => return call.end(Err(failed)),
    };
    let embedded = EmbeddingResponse {
        model: &id,
        vectors: &vectors,
        usage,
        as_base64,
    };
    call.end(embedded.to_json()).map(|json| permit.answer(json))
}

fn texts_of(body: &JsonObject) -> ApiResult<Vec<String>> {
    let refused = || {
        ApiError::invalid(
            "/input",
            format!("must be a text or a list of 1 to {MAX_TEXTS} texts"),
        )
    };
    match body.get("input") {
        Some(Value::String(text)) => Ok(vec![text.clone()]),
        Some(Value::Array(texts)) if (1..=MAX_TEXTS).contains(&texts.len()) => {
            let text = |text: &Value| text.as_str().map(str::to_owned).ok_or_else(refused);
            texts.iter().map(text).collect()
        }
        _ => Err(refused()),
    }
}

pub fn named_model(body: &JsonObject) -> ApiResult<String> {
    let named = body.get("model").and_then(Value::as_str).map(str::to_owned);
    named.ok_or_else(|| ApiError::invalid("/model", "must be the id of a granted model"))
}
