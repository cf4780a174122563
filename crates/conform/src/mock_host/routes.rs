//! Routes of the mock host API and recording of calls.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use domain::state::StateKeyFault;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{Method, StatusCode};
use protocol::JsonObject;
use protocol::error::{AgentApiError, ErrorBody};
use protocol::history::TranscriptItem;
use protocol::host_api::RenewedToken;
use protocol::resources::HistoryOperation;
use protocol::run::{AgentRun, Page, RunClaim, RunStatus};
use secrecy::ExposeSecret;

use super::appends::{append_results, run_heartbeat};
use super::resources::{
    call_tool, count_model_tokens, create_chat_completion, get_tool, invoke_model,
    list_knowledge_bases, list_models, list_openai_models, list_tools, pull_steering,
    retrieve_knowledge, stream_model,
};
use super::state::{
    delete_state, get_checkpoint, get_state, get_state_body, is_of_event, list_state,
    put_checkpoint, put_state,
};
use super::{
    CallOutcome, MAX_PATH, MAX_TOKENS, MockHost, MockRunPhase, MockRunState, RecordedCall,
};
use host_api::history::OwnHistoryQuery;
use web::auth::bearer;
use web::error::limits::rate_limited;
use web::error::routing::no_such;
use web::error::{ApiError, ApiResult};
use web::json::body_limit;
use web::query::{QueryOf, page_limit};
use web::recheck::{AcceptedCredential, ChecksCredentials};

/// Upper bound of error responses on these routes, in bytes.
const MAX_ERROR_BYTES: usize = 64 * 1024;
const BODY_BYTES: usize = 1024 * 1024;

pub(super) fn router(mock_host: MockHost) -> Router {
    let routes = Router::new()
        .route("/context", get(get_context))
        .route("/run", get(get_run))
        .route("/run/results", post(append_results))
        .route("/run/heartbeat", post(run_heartbeat))
        .route("/token", post(renew_token))
        .route("/checkpoint", get(get_checkpoint).put(put_checkpoint))
        .route("/history", get(page_history))
        .route("/models", get(list_models))
        .route("/models/{model_id}/invoke", post(invoke_model))
        .route("/models/{model_id}/stream", post(stream_model))
        .route("/models/{model_id}/count-tokens", post(count_model_tokens))
        .route("/openai/v1/models", get(list_openai_models))
        .route("/openai/v1/chat/completions", post(create_chat_completion))
        .route("/tools", get(list_tools))
        .route("/tools/{name}", get(get_tool))
        .route("/tools/{name}/call", post(call_tool))
        .route("/knowledge-bases", get(list_knowledge_bases))
        .route(
            "/knowledge-bases/{kb_id}/retrieve",
            post(retrieve_knowledge),
        )
        .route("/steering/pull", post(pull_steering))
        .route("/state/{scope}", get(list_state))
        .route(
            "/state/{scope}/{*key}",
            get(get_state).put(put_state).delete(delete_state),
        )
        .route(
            "/state-bodies/{scope}/{body_id}/{*key}",
            get(get_state_body),
        );
    Router::new()
        .nest("/host/v1", routes)
        .fallback(no_such_route)
        .method_not_allowed_fallback(no_such_route)
        .layer(body_limit(BODY_BYTES))
        .layer(middleware::from_fn_with_state(mock_host.clone(), record))
        .with_state(mock_host)
}

/// A runner with the token of a live mock run.
pub(super) struct MockRunCaller(pub(super) Arc<MockRunState>);

/// Mock runs end with the command, so tokens are checked once, with the headers.
impl ChecksCredentials for MockHost {
    async fn check_again(&self, _accepted: Option<&AcceptedCredential>) -> ApiResult<()> {
        Ok(())
    }
}

impl FromRequestParts<MockHost> for MockRunCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &MockHost) -> Result<Self, ApiError> {
        let part = state.find(bearer(&parts.headers)?);
        let part = part.filter(|part| part.progress().phase == MockRunPhase::Live);
        let part = part.ok_or_else(ApiError::unauthenticated)?;
        if state.0.clock.now_ms() >= part.run.deadline_at {
            return Err(ApiError::deadline_exceeded());
        }
        Ok(Self(part))
    }
}

impl MockRunCaller {
    /// A cancelled run may read its status and save state; other calls fail.
    pub(super) fn not_cancelled(self) -> ApiResult<Arc<MockRunState>> {
        if self.0.progress().cancel_requested_at.is_some() {
            Err(ApiError::cancelled())
        } else {
            Ok(self.0)
        }
    }
}

/// Records a call, waits while responses of its run are held, and records the outcome.
async fn record(State(mock_host): State<MockHost>, request: Request, next: Next) -> Response {
    let token = bearer(request.headers()).ok();
    let part = token.and_then(|token| mock_host.find(token));
    let is_moved = token.is_some_and(|token| mock_host.is_moved(token));
    let over = part
        .as_ref()
        .is_some_and(|part| part.progress().phase == MockRunPhase::Ended);
    let call_index = mock_host.note(RecordedCall {
        run: part.as_ref().map(|part| part.run.snapshot.run_id),
        method: request.method().clone(),
        path: request.uri().path().chars().take(MAX_PATH).collect(),
        outcome: CallOutcome::Open,
    });
    if over {
        mock_host.answered(call_index, CallOutcome::AfterEnd);
        return ApiError::unauthenticated().into_response();
    }
    if is_moved {
        mock_host.answered(call_index, CallOutcome::Answered(401));
        return run_moved();
    }
    if let Some(part) = &part {
        part.released().await;
    }
    let appends = request.uri().path().ends_with("/run/results");
    let lacks_party = part
        .as_ref()
        .is_some_and(|part| is_of_event(part, request.uri().path()));
    let response = next.run(request).await;
    let (response, error) = error_of(response).await;
    let outcome = match (response.status(), error) {
        (StatusCode::NOT_FOUND, Some((_, message))) if message == NO_ROUTE => CallOutcome::NoRoute,
        (_, _) if part.is_none() => CallOutcome::Unauthenticated,
        (StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE, Some((_, message))) => {
            CallOutcome::Invalid(message)
        }
        (StatusCode::CONFLICT, Some((_, message))) if appends => CallOutcome::Invalid(message),
        (StatusCode::FORBIDDEN, Some((_, message)))
            if message == StateKeyFault::Reserved.to_string() =>
        {
            CallOutcome::Invalid(message)
        }
        (StatusCode::FORBIDDEN, Some((_, message))) if !lacks_party => {
            CallOutcome::NotGranted(message)
        }
        (status, _) => CallOutcome::Answered(status.as_u16()),
    };
    mock_host.answered(call_index, outcome);
    response
}

/// Response to a token of an earlier attempt.
fn run_moved() -> Response {
    let error = AgentApiError {
        code: "run_moved".to_owned(),
        message: "another attempt has the run".to_owned(),
        retryable: true,
        details: JsonObject::new(),
    };
    (StatusCode::UNAUTHORIZED, Json(ErrorBody { error })).into_response()
}

/// Code and message of an error response, and the response itself.
async fn error_of(response: Response) -> (Response, Option<(String, String)>) {
    if response.status().as_u16() < 400 {
        return (response, None);
    }
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, MAX_ERROR_BYTES).await.unwrap_or_default();
    let error = serde_json::from_slice::<ErrorBody>(&bytes).ok();
    let error = error.map(|body| (body.error.code, body.error.message));
    (Response::from_parts(parts, Body::from(bytes)), error)
}

const NO_ROUTE: &str = "there is no such host API";

/// Routes about granted resources that the mock lacks.
const NOT_SERVED: [&str; 7] = [
    "/host/v1/mcp",
    "/host/v1/anthropic/",
    "/host/v1/gemini/",
    "/host/v1/openai/v1/responses",
    "/host/v1/openai/v1/embeddings",
    "/host/v1/openai/v1/models/",
    "/host/v1/models/",
];

/// Other routes of the gateway that the mock lacks are not granted to mock runs.
async fn no_such_route(request: Request) -> ApiError {
    let path = request.uri().path();
    if !is_of_the_host_api(request.method(), path) {
        return no_such(NO_ROUTE);
    }
    if NOT_SERVED.iter().any(|prefix| path.starts_with(prefix)) {
        return ApiError::unauthorized(
            "conform does not serve this route: test it with `runnel dev`",
        );
    }
    ApiError::unauthorized("this run was not granted the call: see ctx.context.available_apis")
}

fn is_of_the_host_api(method: &Method, path: &str) -> bool {
    let document = serde_json::to_value(host_api::routes().into_openapi()).unwrap_or_default();
    let method = method.as_str().to_ascii_lowercase();
    let paths = document["paths"].as_object();
    paths.into_iter().flatten().any(|(template, item)| {
        template.starts_with("/host/v1/") && item[&method].is_object() && fits(template, path)
    })
}

/// Matches a path: `{name}` is one segment, `{*name}` the rest.
fn fits(template: &str, path: &str) -> bool {
    let mut parts = path.split('/');
    for expected in template.split('/') {
        let part = parts.next().unwrap_or_default();
        let is_named = expected.starts_with('{') && !part.is_empty();
        if is_named && expected.starts_with("{*") {
            return true;
        }
        if !is_named && expected != part {
            return false;
        }
    }
    parts.next().is_none()
}

async fn get_context(caller: MockRunCaller) -> ApiResult<Response> {
    let part = caller.not_cancelled()?;
    let context = part.run.context.clone();
    Ok(([(CONTENT_TYPE, "application/json")], context).into_response())
}

async fn get_run(MockRunCaller(part): MockRunCaller) -> Json<AgentRun> {
    let snapshot = &part.run.snapshot;
    let conversation = snapshot.conversation.as_ref();
    Json(AgentRun {
        parent_run_id: None,
        agent_name: None,
        input_preview: None,
        duration_ms: None,
        retry_of: None,
        retry_from: None,
        retried_as: None,
        posted_by: None,
        cancelled_by: None,
        id: None,
        binding_id: None,
        updated_at: None,
        claim: RunClaim::default(),
        cost: None,
        run_id: snapshot.run_id,
        event_id: snapshot.event_id.clone(),
        agent_id: snapshot.agent_id,
        runner_id: snapshot.runner_id.clone(),
        conversation_id: conversation.map(|found| found.conversation_id.clone()),
        thread_id: None,
        bot_id: None,
        workspace_id: snapshot.workspace_id.to_string(),
        status: RunStatus::Running,
        status_reason: None,
        created_at: part.started_at,
        started_at: Some(part.started_at),
        finished_at: None,
        deadline_at: Some(part.run.deadline_at.div_euclid(1000)),
        cancel_requested_at: part.progress().cancel_requested_at,
        dispatch_attempts: 1,
        last_sequence: 0,
        output: None,
        error: None,
        usage: None,
        metadata: serde_json::json!({}).into(),
    })
}

async fn renew_token(
    caller: MockRunCaller,
    State(mock_host): State<MockHost>,
) -> ApiResult<Json<RenewedToken>> {
    let part = caller.not_cancelled()?;
    if mock_host.host_state().by_token.len() >= MAX_TOKENS {
        return Err(rate_limited());
    }
    let token_expires_at = part.run.deadline_at.div_euclid(1000);
    let token = mock_host.issue_token(part).expose_secret().to_owned();
    Ok(Json(RenewedToken {
        token,
        token_expires_at,
    }))
}

/// The mock has a single page; pages before and after it are empty.
async fn page_history(
    caller: MockRunCaller,
    QueryOf(query): QueryOf<OwnHistoryQuery>,
) -> ApiResult<Json<Page<TranscriptItem>>> {
    let part = caller.not_cancelled()?;
    let own = part.run.snapshot.history(HistoryOperation::Page)?;
    let own = own.map(|own| own.conversation_id.as_str());
    if query
        .conversation_id
        .is_some_and(|named| own != Some(named.as_str()))
    {
        return Err(ApiError::unauthorized(
            "only the run's own conversation is open to it",
        ));
    }
    page_limit(query.limit)?;
    let items = &part.run.history;
    let cursor = [query.before_cursor, query.after_cursor];
    let mut items = items.clone();
    for cursor in cursor.into_iter().flatten() {
        if !items
            .iter()
            .any(|item| item.cursor.as_ref() == Some(&cursor))
        {
            return Err(ApiError::invalid_argument(
                "the cursor is not valid or belongs to another list; start without one",
            ));
        }
        items.clear();
    }
    Ok(Json(Page {
        prev_cursor: items.first().and_then(|item| item.cursor.clone()),
        next_cursor: None,
        has_more: false,
        total_count: None,
        items,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_gateway_host_api_routes() {
        for (method, path, exists) in [
            (Method::GET, "/host/v1/run", true),
            (Method::PUT, "/host/v1/state/conversation/a/b", true),
            (Method::POST, "/host/v1/steering/pull", true),
            (Method::POST, "/host/v1/run", false),
            (Method::GET, "/host/v1/state", false),
            (Method::GET, "/host/v1/state/conversation/", false),
            (Method::GET, "/v1/runs", false),
            (Method::GET, "/", false),
        ] {
            assert_eq!(is_of_the_host_api(&method, path), exists, "{method} {path}");
        }
    }
}
