//! Granted models as Google's Gemini API. Its clients use the run token as API key (`docs/models.md`).
//!
//! Requests become chat completions, for each provider. Grants, memory budgets, reservations, timeouts and audit are
//! those of the chat completions API.

pub mod wire_format;

mod answer;
mod face;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use domain::authorization::ModelLimits;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Uri};
use llm_formats::gemini::read_request;
use protocol::JsonObject;
use protocol::resources::{ModelOperation, ModelResource};
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::models::allowed_parameters::check_parameters;
use crate::models::body::ModelBody;
use crate::models::chat_tokens::chat_tokens;
use crate::models::counting_model;
use crate::models::pipeline::{Delivery, call_model};
use crate::openai::LIST;
use answer::StreamFraming;
use face::{GeminiFace, refused};
use web::auth::{LiveCaller, RunCaller};
use web::error::{ApiError, ApiResult};
use web::query::PathOf;
use web::state::ApiState;
use wire_format::GeminiError;

/// Prefix of the names of models.
const MODELS: &str = "models/";
/// Methods of a model.
const GENERATE: &str = "generateContent";
const STREAM: &str = "streamGenerateContent";
const COUNT: &str = "countTokens";

/// Routes below `/host/v1/gemini`.
pub(crate) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(list_gemini_models))
        .routes(routes!(get_gemini_model, call_gemini_model))
}

/// A request in Google's format. `countTokens` also takes it as `generateContentRequest`.
///
/// Fields that only shape the answer are accepted; other fields are refused. Tools are functions of the run: tools
/// executed by the provider are refused.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "only its documentation is used")]
struct GenerateContentRequest {
    #[schema(value_type = Vec<Object>)]
    contents: Vec<Value>,
    #[schema(value_type = Option<Object>)]
    generation_config: Option<Value>,
}

/// Calls a model: `generateContent`, `streamGenerateContent` and `countTokens` of Google's Gemini API.
///
/// Set the client's base URL to `{host.base_url}/gemini`. The run token is also accepted as `x-goog-api-key`. A stream
/// is a JSON array, or with `alt=sse` server-sent events; other query parameters are ignored. A `fileUri`
/// `artifact:ID` refers to an image that the run may read.
#[utoipa::path(post, path = "/host/v1/gemini/{version}/models/{*model_id}", tag = "host", security(("run_token" = [])),
    params(("version" = String, Path, description = "`v1`, `v1beta` or `v1alpha`; all are the same"),
        ("model_id" = String, Path, description = "Id of the model, a colon and the method, such as `gpt-large:generateContent`"),
        ("alt" = Option<String>, Query, description = "Of `streamGenerateContent`: `sse` for server-sent events")),
    request_body = GenerateContentRequest, responses(
    (status = 200, description = "A `GenerateContentResponse`, a stream of them (`text/event-stream` or `application/json`), or `totalTokens`", body = Object),
    (status = 400, description = "The request is not valid, cannot be translated for the model's provider, or exceeds the model's context window", body = GeminiError),
    (status = 401, description = "The run token is not valid, or `Authorization` and `x-goog-api-key` differ", body = GeminiError),
    (status = 403, description = "The model was not granted, or an image needs `artifacts:read`", body = GeminiError),
    (status = 404, description = "There is no such method, or an image refers to an artifact that the run cannot see", body = GeminiError),
    (status = 409, description = "The run was cancelled", body = GeminiError),
    (status = 413, description = "The request or its images are too large", body = GeminiError),
    (status = 429, description = "A limit is reached: the provider's rate limit, a limit of tokens, a budget, or the memory for large requests", body = GeminiError),
    (status = 502, description = "The provider failed", body = GeminiError),
    (status = 504, description = "The provider did not respond in time, or the run is past its deadline", body = GeminiError)))]
async fn call_gemini_model(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf((version, target)): PathOf<(String, String)>,
    uri: Uri,
    ModelBody {
        value: body,
        permit: _permit,
    }: ModelBody<JsonObject>,
) -> ApiResult<Response> {
    check_version(&version)?;
    let (id, method) = target.rsplit_once(':').unwrap_or((&target, ""));
    match method {
        GENERATE => {
            let face = GeminiFace {
                body,
                framing: StreamFraming::Events,
            };
            call_model(&caller, &state, id, Delivery::Complete, face).await
        }
        STREAM => {
            let framing = framing_of(&uri);
            let face = GeminiFace { body, framing };
            let answer = call_model(&caller, &state, id, Delivery::Stream, face).await;
            answer.map(|answer| framed(answer, framing))
        }
        COUNT => count_tokens(&caller, &state, id, body).await,
        method => {
            let advice = format!("of models; call {GENERATE}, {STREAM} or {COUNT}");
            Err(ApiError::not_found("method", method).with_advice(&advice))
        }
    }
}

/// Accepts the versions that Google's clients name: that for Python names another one than that for JavaScript.
fn check_version(version: &str) -> ApiResult<()> {
    if ["v1", "v1beta", "v1alpha"].contains(&version) {
        return Ok(());
    }
    let unknown = ApiError::not_found("version", version);
    Err(unknown.with_advice("of the API; use v1beta"))
}

/// Google's clients demand server-sent events by `alt=sse`.
fn framing_of(uri: &Uri) -> StreamFraming {
    let mut parameters = uri.query().unwrap_or_default().split('&');
    if parameters.any(|parameter| parameter == "alt=sse") {
        StreamFraming::Events
    } else {
        StreamFraming::Array
    }
}

/// Declares the content of a stream.
fn framed(mut answer: Response, framing: StreamFraming) -> Response {
    if framing == StreamFraming::Array {
        let json = HeaderValue::from_static("application/json");
        answer.headers_mut().insert(CONTENT_TYPE, json);
    }
    answer
}

/// The gateway computes an upper bound of the model's count without a call to the provider.
async fn count_tokens(
    caller: &RunCaller,
    state: &ApiState,
    id: &str,
    mut body: JsonObject,
) -> ApiResult<Response> {
    let model = counting_model(caller, state, id).await?;
    let mut at = "";
    for name in ["generateContentRequest", "generate_content_request"] {
        if let Some(Value::Object(request)) = body.remove(name) {
            (body, at) = (request, "/generateContentRequest");
        }
    }
    let request = read_request(&body, id).map_err(|fault| refused(fault.under(at)))?;
    // The same check as for a call, so that a counted request can be sent.
    check_parameters(&request.chat, &model.extra_members)
        .map_err(|fault| refused(fault).moved(|chat| format!("{at}{}", request.pointer(chat))))?;
    let tokens = chat_tokens(model, &request.chat, &[]);
    Ok(Json(json!({"totalTokens": tokens})).into_response())
}

/// Lists the granted models: Google's `GET /v1beta/models`. All models are on one page.
#[utoipa::path(get, path = "/host/v1/gemini/{version}/models", tag = "host", security(("run_token" = [])),
    params(("version" = String, Path, description = "`v1`, `v1beta` or `v1alpha`; all are the same")), responses(
    (status = 200, description = "A list of `Model` objects", body = Object),
    (status = 401, description = "The run token is not valid", body = GeminiError),
    (status = 404, description = "There is no such version", body = GeminiError),
    (status = 409, description = "The run was cancelled", body = GeminiError)))]
async fn list_gemini_models(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(version): PathOf<String>,
) -> ApiResult<Json<Value>> {
    check_version(&version)?;
    caller.record(&state, LIST, None).await?;
    let models = caller.grant.snapshot.resources.models.iter();
    let models: Vec<_> = models.map(|model| shown(&state, model)).collect();
    Ok(Json(json!({"models": models})))
}

/// Retrieves a granted model: Google's `GET /v1beta/models/{model}`.
#[utoipa::path(get, path = "/host/v1/gemini/{version}/models/{*model_id}", tag = "host", security(("run_token" = [])),
    params(("version" = String, Path, description = "`v1`, `v1beta` or `v1alpha`; all are the same"),
        ("model_id" = String, Path, description = "Id of the model, percent-encoded")), responses(
    (status = 200, description = "A `Model` object", body = Object),
    (status = 401, description = "The run token is not valid", body = GeminiError),
    (status = 404, description = "No such granted model", body = GeminiError),
    (status = 409, description = "The run was cancelled", body = GeminiError)))]
async fn get_gemini_model(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf((version, id)): PathOf<(String, String)>,
) -> ApiResult<Json<Value>> {
    check_version(&version)?;
    caller.record(&state, LIST, None).await?;
    let mut models = caller.grant.snapshot.resources.models.iter();
    let found = models.find(|model| model.model_id == id);
    let found = found.map(|model| shown(&state, model));
    Ok(Json(found.ok_or_else(|| ApiError::not_found("model", id))?))
}

/// A model in Google's format.
fn shown(state: &ApiState, model: &ModelResource) -> Value {
    let id = &model.model_id;
    let limits = state.runs.catalog().model_limits.get(id).copied();
    let ModelLimits {
        context_window_tokens: window,
        max_output_tokens: max_tokens,
    } = limits.unwrap_or_default();
    let methods = [
        (ModelOperation::Invoke, GENERATE),
        (ModelOperation::Stream, STREAM),
        (ModelOperation::CountTokens, COUNT),
    ];
    let methods = methods
        .iter()
        .filter(|(operation, _)| model.operations.contains(operation));
    let methods: Vec<_> = methods.map(|(_, name)| name).collect();
    let mut shown = json!({"name": format!("{MODELS}{id}"), "displayName": id,
        "supportedGenerationMethods": methods});
    for (name, limit) in [
        ("inputTokenLimit", window),
        ("outputTokenLimit", max_tokens),
    ] {
        // Unknown limits are absent, not null: clients parse them as integers.
        if let Some(limit) = limit {
            shown[name] = json!(limit);
        }
    }
    shown
}
