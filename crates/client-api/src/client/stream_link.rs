//! Links to the stream of one run, for browsers: an `EventSource` sends no `Authorization` header.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use domain::run::Run;
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use keys::api_key::link_token;
use protocol::error::ErrorBody;
use protocol::id::RunId;
use protocol::run::AgentRunEvent;
use runs::watch::WatchFrom;
use serde::Serialize;
use store::{AuditEntry, CreateStreamLink, OpenStreamLink, StreamLink, sha256_hex};
use uuid::Uuid;

use super::runs::cursor;
use web::auth::ScopedCaller;
use web::auth_rate_limit::ClientNetwork;
use web::error::routing::no_method;
use web::error::{ApiError, ApiResult};
use web::query::PathOf;
use web::run_pages::{StreamRest, stream_rest};
use web::state::ApiState;
use web::stream::{stream_run, wants_stream};

/// Time in which the stream of a link must be opened. A stream can be resumed for as long after the run's
/// deadline.
const LIFE_MS: i64 = 60_000;

/// A link to the stream of one run.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct RunStreamLink {
    /// URL for an `EventSource`. Its last part is a secret token of 256 random bits, shown only once.
    url: String,
    /// Epoch seconds: the stream must be opened before this.
    expires_at: i64,
}

/// Creates a link to the stream of a run, for a browser.
///
/// `new EventSource(url)` reads the stream without a key. The link grants reading of this run only. It must be
/// opened within a minute and opens one stream. The stream can be resumed with `Last-Event-ID`, as an
/// `EventSource` does, until a minute after the run's deadline. The revocation or expiry of the API key that
/// created the link ends it. List the page's origin in `server.cors_origins`.
#[utoipa::path(post, path = "/v1/runs/{run_id}/stream-link", tag = "client", security(("api_key" = [])),
    params(("run_id" = String, Path, description = "The run")), responses(
    (status = 200, description = "The link", body = RunStreamLink),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such run", body = ErrorBody)))]
pub(crate) async fn link_run_stream(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
) -> ApiResult<Json<RunStreamLink>> {
    let run = caller.find_run(&state, id).await?;
    let token = link_token();
    let at = state.runs.clock().now_ms();
    let link = StreamLink {
        workspace: run.workspace,
        run_id: run.id,
        key: caller.key,
    };
    let create = CreateStreamLink {
        token_sha256: sha256_hex(token.as_bytes()),
        expires_at: at + LIFE_MS,
        audit: audit(&link, "create", at),
        link,
    };
    state.runs.store().write(create).await?;
    let host = state.runs.keys().tokens.audience();
    let root = host.strip_suffix("/host/v1").unwrap_or(host);
    Ok(Json(RunStreamLink {
        url: format!("{root}/v1/run-streams/{token}"),
        expires_at: (at + LIFE_MS).div_euclid(1000),
    }))
}

/// Streams the events of a run by a link. The token is the only credential.
///
/// The stream is that of `GET /v1/runs/{run_id}/stream`. It begins with a frame that has only an `id`, so that an
/// `EventSource` can resume it from the start.
#[utoipa::path(get, path = "/v1/run-streams/{token}", tag = "client",
    params(("token" = String, Path, description = "The token of a link"),
        ("Last-Event-ID" = Option<String>, Header, description = "Resumes the opened stream after this sequence")),
    responses(
    (status = 200, description = "The event stream", content_type = "text/event-stream", body = AgentRunEvent),
    (status = 204, description = "The cursor is the terminal event"),
    (status = 400, description = "The cursor is not a sequence of this run, or `Accept` is not `text/event-stream`", body = ErrorBody),
    (status = 401, description = "The link is not valid: it was opened before, or has expired", body = ErrorBody),
    (status = 410, description = "Retention has deleted these events", body = ErrorBody),
    (status = 429, description = "A limit is reached. `details.reason`: refused_too_often, key_streams", body = ErrorBody)))]
pub(crate) async fn stream_by_link(
    State(state): State<ApiState>,
    PathOf(token): PathOf<String>,
    method: Method,
    headers: HeaderMap,
    request: Parts,
) -> ApiResult<Response> {
    // HEAD, as sent for previews of a link, must not open it.
    if method != Method::GET {
        return Err(no_method());
    }
    let source = ClientNetwork::of(&request);
    let now = state.runs.clock().now_seconds();
    // Before the look-up: guessed tokens over the limit must not load the database.
    let _queue_permit = state.auth_rate_limit().pass(source, now).await?;
    let opened = open(&state, &token, &headers).await?;
    let refuse = || state.auth_rate_limit().refuse(source, now, || {}).of_link();
    let (link, run) = opened.ok_or_else(refuse)?;
    Ok(match stream_rest(&run, cursor(&headers, None)?)? {
        StreamRest::After(after) => {
            // Counts against the key that created the link, so that links do not add streams.
            let slot = state.stream_limit().enter(link.key)?;
            // `Joining` sends an `id` first: an EventSource that lost the connection early resumes from there.
            let from = WatchFrom::Joining(after);
            stream_run(&state, &link.workspace, link.key, run.id, from, slot)
        }
        StreamRest::Over => StatusCode::NO_CONTENT.into_response(),
    })
}

/// Opens or resumes the stream of a valid link. `None`: the link is not valid.
async fn open(
    // The key is checked at each opening: its revocation ends the links that it created.
    state: &ApiState,
    token: &str,
    headers: &HeaderMap,
) -> ApiResult<Option<(StreamLink, Run)>> {
    let store = state.runs.store();
    let token_sha256 = sha256_hex(token.as_bytes());
    let at = state.runs.clock().now_ms();
    let found = store.runs().find_stream_link(&token_sha256).await?;
    let Some(stored) = found.filter(|stored| stored.expires_at > at) else {
        return Ok(None);
    };
    let link = stored.link;
    let (workspace, key) = (&link.workspace, link.key);
    let creator = store.access().find_api_key_by_id(workspace, key).await?;
    let run = store.runs().find_run(workspace, link.run_id).await?;
    let is_valid = creator.is_some_and(|key| key.is_valid(at));
    let Some(run) = run.filter(|_| is_valid) else {
        return Ok(None);
    };
    // Loading the link as a page must not open it, either.
    if !wants_stream(headers) {
        let message = "send `Accept: text/event-stream`, as an EventSource does";
        return Err(ApiError::invalid_argument(message));
    }
    // An EventSource sends this header when it resumes, and a second reader does not.
    let is_open = if stored.is_opened {
        headers.contains_key("last-event-id")
    } else {
        let open = OpenStreamLink {
            token_sha256,
            resumable_until: run.deadline_at.max(at) + LIFE_MS,
            at,
            audit: audit(&link, "open", at),
        };
        // The write decides: of two openings at the same time, one succeeds.
        store.write(open).await?
    };
    Ok(is_open.then_some((link, run)))
}

fn audit(link: &StreamLink, operation: &'static str, at: i64) -> AuditEntry {
    AuditEntry {
        id: Uuid::now_v7(),
        workspace: link.workspace.clone(),
        run_id: link.run_id,
        action: "stream_link",
        resource: "run".to_owned(),
        operation,
        allowed: true,
        rule: format!("link of API key {}", link.key).into(),
        interaction_id: None,
        bytes: 0,
        at,
        is_shared: false,
    }
}
