//! The feed of a workspace: changes as a stream, messages as pages.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use protocol::error::ErrorBody;
use protocol::feed::FeedEvent;
use protocol::webhook::MessagePage;
use serde::Deserialize;
use web::auth::ScopedCaller;
use web::error::cursor::feed_expired;
use web::error::{ApiError, ApiResult};
use web::query::{QueryOf, page_limit};
use web::state::ApiState;
use web::stream::stream_feed;

/// Maximum wait of a request for messages, in seconds.
const MAX_WAIT_SECONDS: u64 = 60;

/// Begin of the messages.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct FeedQuery {
    /// Answer with the messages after this position, as JSON: 0, or `next_after` of the last page. Absent: a stream of
    /// changes.
    after: Option<u64>,
    /// 1 to 100, default 50. With `after` only.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
    /// Wait for a message for this long if there is none; 0 to 60, default 0. With `after` only.
    #[param(minimum = 0, maximum = 60)]
    wait_seconds: Option<u64>,
}

/// Streams what changes in the workspace, by id.
///
/// With `after`, the answer is that of `GET /v1/feed/messages`. Without it, the answer is a stream of server-sent events.
/// Each has its `type` as its name, and a `FeedEvent` as its data: `run` for a run that was created, has another status or
/// is to end; `interaction` for a question that was opened or answered; `action` for a platform action that was opened,
/// claimed or finished. Repeated changes of a run within a tenth of a second are one event. A question that expires, or ends with its run, has no event.
///
/// The stream begins with a `reset`: read your lists now. It sends another one if events were lost, for example because the
/// client reads slowly, and every 30 seconds. There is no replay: after a reconnect, the first `reset` makes up for it.
/// `Last-Event-ID` is ignored.
///
/// The key of the request restricts messages and events as it restricts the lists. The stream ends within two seconds after
/// its revocation. A gateway that stops sends `gateway.draining` without data, and ends the stream.
#[utoipa::path(get, path = "/v1/feed", tag = "client", security(("api_key" = [])), params(FeedQuery), responses(
    (status = 200, description = "The changes from now on", content_type = "text/event-stream", body = FeedEvent),
    (status = 400, description = "A parameter is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 410, description = "Messages after `after` were deleted: read your lists, and continue from `details.after`", body = ErrorBody),
    (status = 429, description = "A limit is reached. `details.reason`: refused_too_often, key_streams. Retry after `Retry-After` seconds", body = ErrorBody)))]
pub(crate) async fn stream_workspace_feed(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<FeedQuery>,
) -> ApiResult<Response> {
    let Some(after) = query.after else {
        if query.limit.is_some() || query.wait_seconds.is_some() {
            let message = "limit and wait_seconds need `after`";
            return Err(ApiError::invalid_argument(message));
        }
        let slot = state.stream_limit().enter(caller.key)?;
        let (workspace, key) = caller.credential();
        let reach = caller.reach().clone();
        return Ok(stream_feed(&state, workspace, key, reach, slot));
    };
    let query = MessagesQuery {
        after,
        limit: query.limit,
        wait_seconds: query.wait_seconds,
    };
    page(&state, &caller, &query)
        .await
        .map(IntoResponse::into_response)
}

/// Begin and size of a page of messages.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessagesQuery {
    /// 0, or `next_after` of the last page.
    after: u64,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
    /// Wait for a message for this long if there is none; 0 to 60, default 0.
    #[param(minimum = 0, maximum = 60)]
    wait_seconds: Option<u64>,
}

/// Lists the messages of the workspace, oldest first.
///
/// They are those of the webhooks of the workspace: a program without an address creates a webhook without `url`, and reads
/// them here. Send `next_after` of each page as `after` of the next request; nothing is lost or repeated in between.
/// Messages are stored for 30 days. The key of the request restricts them as it restricts the lists.
#[utoipa::path(get, path = "/v1/feed/messages", tag = "client", security(("api_key" = [])), params(MessagesQuery), responses(
    (status = 200, description = "A page", body = MessagePage),
    (status = 400, description = "A parameter is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 410, description = "Messages after `after` were deleted: read your lists, and continue from `details.after`", body = ErrorBody),
    (status = 429, description = "A limit is reached. `details.reason`: refused_too_often, key_streams. Retry after `Retry-After` seconds", body = ErrorBody)))]
pub(crate) async fn list_feed_messages(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<MessagesQuery>,
) -> ApiResult<Json<MessagePage>> {
    page(&state, &caller, &query).await
}

async fn page(
    state: &ApiState,
    caller: &ScopedCaller,
    query: &MessagesQuery,
) -> ApiResult<Json<MessagePage>> {
    let (after, limit) = (query.after, page_limit(query.limit)?);
    let wait = query.wait_seconds.unwrap_or(0);
    if wait > MAX_WAIT_SECONDS {
        let message = format!("wait_seconds must be 0 to {MAX_WAIT_SECONDS}");
        return Err(ApiError::invalid_argument(message));
    }
    let wait = Duration::from_secs(wait);
    let webhooks = &state.runs.webhooks;
    // A request that waits holds a connection, as a stream does.
    let _slot = match wait {
        Duration::ZERO => None,
        _ => Some(state.stream_limit().enter(caller.key)?),
    };
    let bounds = webhooks.feed_bounds().await?;
    // A reader that begins has missed nothing.
    if after > 0 && after < bounds.deleted_through {
        return Err(feed_expired(bounds.deleted_through));
    }
    if after > bounds.last {
        let message = "after is larger than the last position; send `next_after` of the last page";
        return Err(ApiError::invalid_argument(message));
    }
    let (workspace, _) = caller.credential();
    let found = webhooks
        .feed_page(workspace, caller.reach(), after, limit, wait)
        .await?;
    let page = MessagePage {
        items: found.items.iter().map(runs::webhooks::thin).collect(),
        next_after: found.through,
        has_more: found.has_more,
    };
    Ok(Json(page))
}
