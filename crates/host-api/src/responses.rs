//! Granted models as OpenAI's Responses API for agents without chat completions (`docs/runners/host-api.md`).
//! Grants, budgets, images and audit are those of the chat completions API.

mod answer;
mod face;
mod turn;

use axum::Json;
use axum::extract::State;
use axum::middleware::map_response;
use axum::response::Response;
use llm_formats::chat::responses::{ProviderApi, read_request, wants_stream};
use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::error::ErrorBody;
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::models::body::ModelBody;
use crate::models::counting_model;
use crate::models::pipeline::{Delivery, call_model};
use crate::openai::named_model;
use face::{ResponsesFace, input_tokens};
use turn::Turn;
use web::auth::LiveCaller;
use web::error::openai::in_openai_form;
use web::error::{ApiError, ApiResult};
use web::query::PathOf;
use web::state::ApiState;

/// Routes of the Responses API. Errors have OpenAI's fields.
pub(crate) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(create_response))
        .routes(routes!(count_response_tokens))
        .routes(routes!(get_response))
        .layer(map_response(in_openai_form))
}

/// A request in OpenAI's format.
///
/// `conversation`, `prompt` and `background` are refused. Unless `store` is false, later requests of the run may
/// refer to the response by `previous_response_id`, and to its items by `item_reference`.
/// Tools have type `function`, `custom` or `namespace`.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
struct ResponseRequest {
    /// A granted model.
    model: String,
    /// A string or a list of items.
    #[schema(value_type = Object)]
    input: Value,
    stream: Option<bool>,
}

/// Creates a response, in one piece or as a stream: OpenAI's `POST /responses`.
///
/// An image URL `artifact:ID` refers to an artifact that the run may read. After the first event, an error
/// arrives as the last event `response.failed`. Errors have OpenAI's `type` and `param`, too; `param` is a JSON
/// pointer.
#[utoipa::path(post, path = "/host/v1/openai/v1/responses", tag = "host", security(("run_token" = [])),
    request_body = ResponseRequest, responses(
    (status = 200, description = "A `response`, or with `stream` its events as server-sent events (`text/event-stream`)", body = Object),
    (status = 400, description = "The request is not valid, or refers to a response that the gateway does not hold", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The model was not granted, or an image needs `artifacts:read`", body = ErrorBody),
    (status = 404, description = "An image refers to an artifact that the run cannot see (`details.pointer`)", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody),
    (status = 413, description = "The request or its images are too large", body = ErrorBody),
    (status = 429, description = "A limit is reached: the provider's rate limit, a limit of tokens, a budget, or the memory for large requests (`details.reason`)", body = ErrorBody),
    (status = 502, description = "The provider failed", body = ErrorBody),
    (status = 504, description = "The provider did not respond in time, or the run is past its deadline", body = ErrorBody)))]
async fn create_response(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    ModelBody {
        value: body,
        permit: _permit,
    }: ModelBody<JsonObject>,
) -> ApiResult<Response> {
    let id = named_model(&body)?;
    let delivery = if wants_stream(&body).map_err(refused)? {
        Delivery::Stream
    } else {
        Delivery::Complete
    };
    call_model(&caller, &state, &id, delivery, ResponsesFace(body)).await
}

/// Counts the tokens of a request: OpenAI's `POST /responses/input_tokens`.
///
/// The gateway computes an upper bound of the model's count without a call to the provider.
#[utoipa::path(post, path = "/host/v1/openai/v1/responses/input_tokens", tag = "host", security(("run_token" = [])),
    request_body = ResponseRequest, responses(
    (status = 200, description = "A `response.input_tokens`", body = Object),
    (status = 400, description = "The request is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The model was not granted", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody)))]
async fn count_response_tokens(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    ModelBody {
        value: mut request,
        permit: _permit,
    }: ModelBody<JsonObject>,
) -> ApiResult<Json<Value>> {
    let id = named_model(&request)?;
    let model = counting_model(&caller, &state, &id).await?;
    // The items of earlier turns count, too.
    let turn = Turn::of(&caller, &state, &mut request)?;
    let responses_request =
        read_request(&request, &id, ProviderApi::Responses, &model.extra_members);
    let responses_request =
        responses_request.map_err(|fault| refused(fault).moved(|at| turn.pointer(at)))?;
    let tokens = input_tokens(model, &responses_request);
    Ok(Json(
        json!({"object": "response.input_tokens", "input_tokens": tokens}),
    ))
}

/// Always fails: the gateway keeps responses for references of later requests only.
#[utoipa::path(get, path = "/host/v1/openai/v1/responses/{response_id}", tag = "host", security(("run_token" = [])),
    params(("response_id" = String, Path, description = "The id of a response")), responses(
    (status = 400, description = "Responses cannot be read again", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody)))]
async fn get_response(LiveCaller(_caller): LiveCaller, PathOf(_id): PathOf<String>) -> ApiError {
    ApiError::invalid(
        "/response_id",
        "names a response, and responses cannot be read again here; keep the answer",
    )
}

fn refused(fault: Fault) -> ApiError {
    ApiError::faults(&[fault])
}
