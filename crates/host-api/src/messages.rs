//! Granted models as Anthropic's Messages API. Coding agents use the run token as API key (`docs/runners/host-api.md`).
//!
//! A provider with this API gets the checked request; other providers get a chat completion. Grants, memory
//! budgets, reservations, timeouts and audit are those of the chat completions API.

pub mod wire_format;

mod answer;
mod face;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use domain::authorization::ModelLimits;
use http::HeaderMap;
use protocol::JsonObject;
use protocol::resources::ModelResource;
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::models::body::ModelBody;
use crate::models::counting_model;
use crate::models::pipeline::{Delivery, call_model};
use crate::models::token_bounds::check_token_limits;
use crate::openai::{LIST, named_model};
use face::{MessagesFace, betas_of};
use web::auth::{LiveCaller, RunCaller};
use web::error::{ApiError, ApiResult};
use web::query::PathOf;
use web::state::ApiState;
use wire_format::MessagesError;

/// Routes below `/host/v1/anthropic`.
pub(crate) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(create_message))
        .routes(routes!(count_message_tokens))
        .routes(routes!(list_anthropic_models))
        .routes(routes!(get_anthropic_model))
}

/// A request in Anthropic's format.
///
/// Fields that only shape the answer are accepted. Other fields are refused unless the operator allows them.
/// Tools must be the run's own: tools executed by the provider are refused.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
struct MessageRequest {
    /// A granted model.
    model: String,
    /// Maximum tokens of the answer.
    max_tokens: u32,
    #[schema(value_type = Vec<Object>)]
    messages: Vec<Value>,
    stream: Option<bool>,
}

/// A request for token counting; `max_tokens` is optional.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
struct MessageCountRequest {
    /// A granted model.
    model: String,
    #[schema(value_type = Vec<Object>)]
    messages: Vec<Value>,
}

/// Token count of a request.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
struct CountedMessage {
    input_tokens: u64,
}

/// Creates a message, in one piece or as a stream: Anthropic's `POST /v1/messages`.
///
/// Set the client's base URL to `{host.base_url}/anthropic`. The run token is also accepted as `x-api-key`.
/// Query parameters are ignored. An image URL `artifact:ID` refers to an artifact that the run may read.
#[utoipa::path(post, path = "/host/v1/anthropic/v1/messages", tag = "host", security(("run_token" = [])),
    request_body = MessageRequest, responses(
    (status = 200, description = "A `message`, or with `stream` its events as server-sent events (`text/event-stream`)", body = Object),
    (status = 400, description = "The request is not valid, cannot be translated for the model's provider, or exceeds the model's context window", body = MessagesError),
    (status = 401, description = "The run token is not valid, or `Authorization` and `x-api-key` differ", body = MessagesError),
    (status = 403, description = "The model was not granted, or an image needs `artifacts:read`", body = MessagesError),
    (status = 404, description = "An image refers to an artifact that the run cannot see", body = MessagesError),
    (status = 409, description = "The run was cancelled", body = MessagesError),
    (status = 413, description = "The request or its images are too large", body = MessagesError),
    (status = 429, description = "A limit is reached: the provider's rate limit, a limit of tokens, a budget, or the memory for large requests", body = MessagesError),
    (status = 502, description = "The provider failed", body = MessagesError),
    (status = 504, description = "The provider did not respond in time, or the run is past its deadline", body = MessagesError),
    (status = 529, description = "The database does not respond; retry", body = MessagesError)))]
async fn create_message(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    headers: HeaderMap,
    ModelBody {
        value: body,
        permit: _permit,
    }: ModelBody<JsonObject>,
) -> ApiResult<Response> {
    let id = named_model(&body)?;
    // Before the call begins: these faults use no permit and no budget.
    check_message(&body)?;
    let (delivery, betas) = (Delivery::of(&body), betas_of(&headers, &caller));
    call_model(&caller, &state, &id, delivery, MessagesFace { body, betas }).await
}

/// Checks the members of a request that need no model.
fn check_message(body: &JsonObject) -> ApiResult<()> {
    if body.get("max_tokens").is_none_or(Value::is_null) {
        return Err(ApiError::invalid(
            "/max_tokens",
            "must be the maximum of tokens of the answer",
        ));
    }
    check_thread(body)?;
    check_token_limits(body).map_err(|fault| ApiError::faults(&[fault]))
}

/// Refuses a conversation that the server would store. By this code, clients send the full conversation instead.
fn check_thread(body: &JsonObject) -> ApiResult<()> {
    if body.get("thread").is_none_or(Value::is_null) {
        return Ok(());
    }
    let message =
        "must be absent: the gateway stores no threads; send the full conversation as messages";
    let refused = ApiError::invalid("/thread", message);
    Err(refused.with("error_code", json!("thread_unsupported_request")))
}

/// Counts the tokens of a request: Anthropic's `POST /v1/messages/count_tokens`.
///
/// The gateway computes an upper bound of the model's count without a call to the provider.
#[utoipa::path(post, path = "/host/v1/anthropic/v1/messages/count_tokens", tag = "host", security(("run_token" = [])),
    request_body = MessageCountRequest, responses(
    (status = 200, description = "The count", body = CountedMessage),
    (status = 400, description = "The request is not valid", body = MessagesError),
    (status = 401, description = "The run token is not valid", body = MessagesError),
    (status = 403, description = "The model was not granted", body = MessagesError),
    (status = 409, description = "The run was cancelled", body = MessagesError)))]
async fn count_message_tokens(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    ModelBody {
        value: mut request,
        permit: _permit,
    }: ModelBody<JsonObject>,
) -> ApiResult<Json<Value>> {
    // A count needs no thread, and its client could not continue without one.
    request.remove("thread");
    let id = named_model(&request)?;
    let model = counting_model(&caller, &state, &id).await?;
    // The same check as for a call, so that a counted request can be sent.
    face::check(&request, model)?;
    let tokens = face::prompt_tokens(model, &request);
    Ok(Json(json!({"input_tokens": tokens})))
}

/// Lists the granted models: Anthropic's `GET /v1/models`. All models are on one page.
#[utoipa::path(get, path = "/host/v1/anthropic/v1/models", tag = "host", security(("run_token" = [])), responses(
    (status = 200, description = "A list of `model` objects", body = Object),
    (status = 401, description = "The run token is not valid", body = MessagesError),
    (status = 409, description = "The run was cancelled", body = MessagesError)))]
async fn list_anthropic_models(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
) -> ApiResult<Json<Value>> {
    caller.record(&state, LIST, None).await?;
    let granted = granted(&caller).iter();
    let models: Vec<_> = granted.map(|model| shown(&state, model)).collect();
    let id_of = |model: Option<&Value>| model.map_or(Value::Null, |model| model["id"].clone());
    Ok(Json(json!({"data": models, "has_more": false,
        "first_id": id_of(models.first()), "last_id": id_of(models.last())})))
}

/// Retrieves a granted model: Anthropic's `GET /v1/models/{model_id}`.
#[utoipa::path(get, path = "/host/v1/anthropic/v1/models/{model_id}", tag = "host", security(("run_token" = [])),
    params(("model_id" = String, Path, description = "Percent-encoded")), responses(
    (status = 200, description = "A `model` object", body = Object),
    (status = 401, description = "The run token is not valid", body = MessagesError),
    (status = 404, description = "No such granted model", body = MessagesError),
    (status = 409, description = "The run was cancelled", body = MessagesError)))]
async fn get_anthropic_model(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
) -> ApiResult<Json<Value>> {
    caller.record(&state, LIST, None).await?;
    let found = granted(&caller).iter().find(|model| model.model_id == id);
    let found = found.map(|model| shown(&state, model));
    Ok(Json(found.ok_or_else(|| ApiError::not_found("model", id))?))
}

fn granted(caller: &RunCaller) -> &[ModelResource] {
    &caller.grant.snapshot.resources.models
}

/// A model in Anthropic's format. The catalog has no dates.
fn shown(state: &ApiState, model: &ModelResource) -> Value {
    let id = &model.model_id;
    let limits = state.runs.catalog().model_limits.get(id).copied();
    let ModelLimits {
        context_window_tokens: window,
        max_output_tokens: max_tokens,
    } = limits.unwrap_or_default();
    // The format requires a date.
    json!({"type": "model", "id": id, "display_name": id, "created_at": "1970-01-01T00:00:00Z",
        "max_input_tokens": window, "max_tokens": max_tokens})
}
