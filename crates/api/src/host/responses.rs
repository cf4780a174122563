//! The granted models behind OpenAI's Responses API, for agents that speak no chat completions (host API §3). Rights,
//! budgets, images and audit are those of the chat face.

mod asking;
mod errors;
mod frames;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::middleware::map_response;
use axum::response::{IntoResponse as _, Response};
use domain::chat::responses::{Target, asks_for_stream, read_request};
use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::error::ErrorBody;
use protocol::resources::ModelOperation;
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::ApiState;
use crate::auth::{Call, LiveCaller};
use crate::error::{ApiError, ApiResult};
use crate::host::models::begin_call;
use crate::host::models::room::ModelBody;
use crate::host::openai::named_model;
use crate::query::PathOf;
use crate::stream::event_stream;
use asking::{Asking, input_tokens};
use errors::in_openai_form;

/// The routes of the face, whose errors have the members of OpenAI's.
pub(crate) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(create_response))
        .routes(routes!(count_response_tokens))
        .routes(routes!(get_response))
        .layer(map_response(in_openai_form))
}

/// As OpenAI documents it, without stored responses: `previous_response_id`, `conversation`, `prompt` and `background`
/// are refused, and `store` is taken as false. Tools are of type `function`, `custom` or `namespace`.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
struct ResponseRequest {
    /// A granted model.
    model: String,
    /// A text, or a list of items.
    #[schema(value_type = Object)]
    input: Value,
    stream: Option<bool>,
}

/// Answers a request for a response, whole or as a stream: OpenAI's `POST /responses`.
///
/// An image whose URL is `artifact:` and an id is the artifact of that id, if the run may read it. An error after the
/// first event is a last event `response.failed`. Errors have the members of OpenAI's, `type` and `param`, too; `param`
/// is a JSON pointer.
#[utoipa::path(post, path = "/host/v1/openai/v1/responses", tag = "host", security(("run_token" = [])),
    request_body = ResponseRequest, responses(
    (status = 200, description = "A `response`, or with `stream` its events as server-sent events", content(
        (Object = "application/json"), (String = "text/event-stream"))),
    (status = 400, description = "The request is not valid, or would need stored responses", body = ErrorBody),
    (status = 401, description = "The token opens nothing", body = ErrorBody),
    (status = 403, description = "The model was not granted, or artifacts:read for an image", body = ErrorBody),
    (status = 404, description = "An image is an artifact that is not within reach (`details.pointer`)", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody),
    (status = 413, description = "The request or its images are too large", body = ErrorBody),
    (status = 429, description = "The provider or a budget asks to wait, or there is no room for a large request (`details.reason`)", body = ErrorBody),
    (status = 502, description = "The provider failed", body = ErrorBody),
    (status = 504, description = "The provider was silent, or the run is past its deadline", body = ErrorBody)))]
async fn create_response(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    ModelBody { value: body, room }: ModelBody<JsonObject>,
) -> ApiResult<Response> {
    let _room = room;
    let id = named_model(&body)?;
    let is_stream = asks_for_stream(&body).map_err(refused)?;
    let (action, operation) = if is_stream {
        ("models_stream", ModelOperation::Stream)
    } else {
        ("models_invoke", ModelOperation::Invoke)
    };
    let (mut call, model) = begin_call(&caller, &state, action, &id, operation).await?;
    let asking = Asking {
        caller: &caller,
        state: &state,
        model,
        id: &id,
    };
    if !is_stream {
        let said = asking.whole(&mut call, body).await;
        return Ok(Json(call.end(said)?).into_response());
    }
    match asking.stream(&mut call, body).await {
        Ok(answer) => Ok(event_stream(Body::from_stream(answer.frames(call)))),
        Err(failed) => call.end(Err(failed)),
    }
}

/// Counts the tokens of a request for a response, as `count-tokens` does: OpenAI's `POST /responses/input_tokens`.
#[utoipa::path(post, path = "/host/v1/openai/v1/responses/input_tokens", tag = "host", security(("run_token" = [])),
    request_body = ResponseRequest, responses(
    (status = 200, description = "A `response.input_tokens`", body = Object),
    (status = 400, description = "The request is not valid", body = ErrorBody),
    (status = 401, description = "The token opens nothing", body = ErrorBody),
    (status = 403, description = "The model was not granted", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody)))]
async fn count_response_tokens(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    request: ModelBody<JsonObject>,
) -> ApiResult<Json<Value>> {
    let id = named_model(&request)?;
    let operation = ModelOperation::CountTokens;
    let call = Call {
        action: "models_count_tokens",
        resource: &id,
        operation: operation.as_str(),
    };
    let asked = caller.grant.snapshot.model(&id, operation).map(drop);
    caller.granted(&state, call, asked).await?;
    let model = state.models.find(&id)?;
    let asked = read_request(&request, &id, Target::Responses, &model.extra_members);
    let tokens = input_tokens(model, &asked.map_err(refused)?);
    Ok(Json(
        json!({"object": "response.input_tokens", "input_tokens": tokens}),
    ))
}

/// Refuses to give a response again: none is stored.
#[utoipa::path(get, path = "/host/v1/openai/v1/responses/{response_id}", tag = "host", security(("run_token" = [])),
    params(("response_id" = String, Path, description = "Of any response")), responses(
    (status = 400, description = "Responses are not stored", body = ErrorBody),
    (status = 401, description = "The token opens nothing", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody)))]
async fn get_response(LiveCaller(_caller): LiveCaller, PathOf(_id): PathOf<String>) -> ApiError {
    ApiError::invalid(
        "/response_id",
        "names a stored response, and responses are not stored here; keep what was answered, and send it as input",
    )
}

fn refused(fault: Fault) -> ApiError {
    ApiError::faults(&[fault])
}
