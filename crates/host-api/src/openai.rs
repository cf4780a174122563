//! Granted models as OpenAI's API. Agent frameworks use the run token as API key (`docs/runners/host-api.md`).
//! Fields that only shape the answer pass through unchanged, and so does the answer.

mod chat;
mod embedded;
mod listing;

use axum::extract::State;
use axum::middleware::map_response;
use axum::response::Response;
use protocol::JsonObject;
use protocol::error::ErrorBody;
use protocol::resources::ModelOperation;
use serde::Serialize;
use serde_json::Value;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::models::body::ModelBody;
use crate::models::pipeline::{Delivery, call_model};
use crate::models::reading::embed;
use crate::models::routing::{answered_by, begin_call};
pub(crate) use chat::PreparedChat;
use chat::{ChatFace, check_chat};
pub use chat::{chunk_frame, complete};
use embedded::EmbeddingResponse;
pub(crate) use listing::LIST;
pub use listing::shown_model;
use web::auth::LiveCaller;
use web::error::openai::in_openai_form;
use web::error::{ApiError, ApiResult};
use web::state::ApiState;

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
    (status = 429, description = "A limit is reached: the provider's rate limit, a limit of tokens, a budget, or the memory for large requests (`details.reason`)", body = ErrorBody),
    (status = 502, description = "The provider failed", body = ErrorBody),
    (status = 504, description = "The provider did not respond in time, or the run is past its deadline", body = ErrorBody)))]
pub(crate) async fn create_chat_completion(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    ModelBody {
        value: body,
        permit: _permit,
    }: ModelBody<JsonObject>,
) -> ApiResult<Response> {
    let id = named_model(&body)?;
    check_chat(&body)?;
    call_model(&caller, &state, &id, Delivery::of(&body), ChatFace(body)).await
}

/// Creates embeddings: OpenAI's `POST /embeddings`.
#[utoipa::path(post, path = "/host/v1/openai/v1/embeddings", tag = "host", security(("run_token" = [])),
    request_body = EmbeddingRequest, responses(
    (status = 200, description = "A list of `embedding` objects", body = Object),
    (status = 400, description = "The request is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The model was not granted for `invoke`", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody),
    (status = 429, description = "A limit is reached: the provider's rate limit, a limit of tokens, a budget, or the memory for large requests (`details.reason`)", body = ErrorBody),
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
    let answer = call.end(embedded.to_json());
    answer.map(|json| answered_by(&id, permit.answer(json)))
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
