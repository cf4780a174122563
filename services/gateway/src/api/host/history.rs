//! The transcript of the run's own conversation.

use axum::Json;
use axum::extract::State;
use domain::authorization::FrozenConversation;
use protocol::error::ErrorBody;
use protocol::history::TranscriptItem;
use protocol::id::WorkspaceId;
use protocol::run::Page;
use serde::Deserialize;
use store::HistoryQuery as StoreQuery;

use crate::api::ApiState;
use crate::api::auth::{Call, LiveCaller};
use crate::api::error::ApiResult;
use crate::api::query::{QueryOf, page_limit};
use crate::api::view::{Direction, history_page};
use crate::cursor::history_place;

/// Which part of a transcript.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct HistoryQuery {
    /// Must be the run's own conversation, when it is given.
    conversation_id: Option<String>,
    /// Only items before this one.
    before_cursor: Option<String>,
    /// Only items after this one.
    after_cursor: Option<String>,
    /// 1 to 100, default 50.
    limit: Option<u64>,
    #[serde(default)]
    #[param(inline)]
    direction: Direction,
    #[serde(default)]
    include_attachments: bool,
}

/// Reads the transcript of the run's conversation and thread.
#[utoipa::path(get, path = "/host/v1/history", tag = "host", security(("run_token" = [])),
    params(HistoryQuery), responses(
    (status = 200, description = "A page", body = Page<TranscriptItem>),
    (status = 400, description = "A cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "The token opens nothing", body = ErrorBody),
    (status = 403, description = "Not granted, or another conversation", body = ErrorBody)))]
pub(in crate::api) async fn page_history(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<HistoryQuery>,
) -> ApiResult<Json<Page<TranscriptItem>>> {
    let call = Call {
        action: "history_page",
        resource: "conversation",
        operation: "page",
    };
    let asked = caller.grant.snapshot.history_page();
    let named = query.conversation_id.as_deref();
    let conversation = caller.own_conversation(&state, call, asked, named).await?;
    let workspace = &caller.grant.run.workspace;
    Ok(Json(
        read_history(&state, workspace, conversation, &query).await?,
    ))
}

/// A page of a conversation's transcript, the same for runners and clients.
pub(in crate::api) async fn read_history(
    state: &ApiState,
    workspace: &WorkspaceId,
    conversation: &FrozenConversation,
    query: &HistoryQuery,
) -> ApiResult<Page<TranscriptItem>> {
    let limit = page_limit(query.limit)?;
    let cursors = state.runs.cursors();
    let place = |cursor: &Option<String>| {
        let place = |text: &String| history_place(cursors, workspace, conversation, text);
        cursor.as_ref().map(place).transpose()
    };
    let page = StoreQuery {
        before: place(&query.before_cursor)?,
        after: place(&query.after_cursor)?,
        forward: query.direction == Direction::Forward,
        limit: limit + 1,
    };
    let store = state.runs.store();
    let records = match store.find_conversation_key(workspace, conversation).await? {
        Some(key) => store.page_history(&key, page).await?,
        None => Vec::new(),
    };
    let kept = usize::try_from(limit).unwrap_or(usize::MAX);
    let attachments = query.include_attachments;
    Ok(history_page(
        records,
        kept,
        attachments,
        cursors,
        workspace,
        conversation,
    ))
}
