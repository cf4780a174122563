//! The feed of a workspace.

use axum::extract::State;
use axum::response::Response;
use protocol::error::ErrorBody;
use protocol::feed::FeedEvent;
use web::auth::ScopedCaller;
use web::error::ApiResult;
use web::state::ApiState;
use web::stream::stream_feed;

/// Streams what changes in the workspace, by id.
///
/// The answer is a stream of server-sent events. Each has its `type` as its name, and a `FeedEvent` as its data: `run` for
/// a run that was created, has another status or is to end; `interaction` for a question that was opened or answered.
/// Repeated changes of a run within a tenth of a second are one event. A question that expires, or ends with its run, has no
/// event.
///
/// The stream begins with a `reset`: read your lists now. It sends another one if events were lost, for example because the
/// client reads slowly, and every 30 seconds. There is no replay: after a reconnect, the first `reset` makes up for it.
/// `Last-Event-ID` is ignored.
///
/// The key of the request restricts the events as it restricts the lists. The stream ends within two seconds after its
/// revocation. A gateway that stops sends `gateway.draining` without data, and ends the stream.
#[utoipa::path(get, path = "/v1/feed", tag = "client", security(("api_key" = [])), responses(
    (status = 200, description = "The changes from now on", content_type = "text/event-stream", body = FeedEvent),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 429, description = "A limit is reached. `details.reason`: refused_too_often, key_streams. Retry after `Retry-After` seconds", body = ErrorBody)))]
pub(crate) async fn stream_workspace_feed(
    caller: ScopedCaller,
    State(state): State<ApiState>,
) -> ApiResult<Response> {
    let slot = state.stream_limit().enter(caller.key)?;
    let (workspace, key) = caller.credential();
    let reach = caller.reach().clone();
    Ok(stream_feed(&state, workspace, key, reach, slot))
}
