//! The transcript of the run's conversation.

use axum::Json;
use axum::extract::State;
use protocol::error::ErrorBody;
use protocol::history::{HistorySearch, HistorySearchResult, TranscriptItem};
use protocol::resources::HistoryOperation;
use protocol::run::Page;
use serde::Deserialize;

use crate::auth::{AuditedCall, LiveCaller, RunCaller};
use crate::error::{ApiError, ApiResult};
use crate::json::JsonBody;
use crate::query::QueryOf;
use crate::state::ApiState;
use crate::transcript::{ConversationTranscript, TranscriptQuery};
use crate::view::Direction;

/// A part of the transcript of the run's conversation.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct OwnHistoryQuery {
    /// If given, must be the run's own conversation.
    pub(crate) conversation_id: Option<String>,
    /// Only items before this cursor: the `next_cursor` of a backward page. Can be combined with `after_cursor`.
    pub(crate) before_cursor: Option<String>,
    /// Only items after this cursor: the `next_cursor` of a forward page.
    pub(crate) after_cursor: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    pub(crate) limit: Option<u64>,
    #[serde(default)]
    #[param(inline)]
    direction: Direction,
    /// Include `attachment_refs`; otherwise they are empty. Alias: `include_artifacts`.
    #[serde(default, alias = "include_artifacts")]
    include_attachments: bool,
}

/// Lists the transcript of the run's conversation and thread.
///
/// It is empty for a run without a conversation. A page may have fewer than `limit` items if they are large.
/// Check `has_more` and continue with `next_cursor`.
#[utoipa::path(get, path = "/host/v1/history", tag = "host", security(("run_token" = [])),
    params(OwnHistoryQuery), responses(
    (status = 200, description = "A page", body = Page<TranscriptItem>),
    (status = 400, description = "A cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "Not granted, or another conversation", body = ErrorBody)))]
pub(crate) async fn page_history(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<OwnHistoryQuery>,
) -> ApiResult<Json<Page<TranscriptItem>>> {
    Ok(Json(read_page(&caller, &state, query).await?))
}

/// Reads a page of the run's transcript, for all APIs that offer it.
pub(super) async fn read_page(
    caller: &RunCaller,
    state: &ApiState,
    query: OwnHistoryQuery,
) -> ApiResult<Page<TranscriptItem>> {
    let call = AuditedCall {
        action: "history_page",
        resource: "conversation",
        operation: "page",
    };
    let asked = caller.grant.snapshot.history(HistoryOperation::Page);
    // Models often pass an empty string for an omitted argument.
    let said = |text: Option<String>| text.filter(|text| !text.is_empty());
    let named = said(query.conversation_id);
    let conversation = caller
        .own_conversation_if_any(state, call, asked, named.as_deref())
        .await?;
    let transcript = ConversationTranscript {
        state,
        workspace: &caller.grant.run.workspace,
        conversation,
        begins_after: caller.grant.snapshot.transcript_after(),
        memory: &caller.answer,
    };
    let part = TranscriptQuery {
        before_cursor: said(query.before_cursor),
        after_cursor: said(query.after_cursor),
        limit: query.limit,
        direction: query.direction,
        include_attachments: query.include_attachments,
    };
    transcript.page(&part).await
}

/// Searches the transcript of the run's conversation and thread, newest first.
///
/// The search matches whole words and ignores case, width and accents. In Chinese, Japanese and Korean text it
/// matches any substring. It covers the first 4,000 characters of each item.
#[utoipa::path(post, path = "/host/v1/history/search", tag = "host", security(("run_token" = [])),
    request_body = HistorySearch, responses(
    (status = 200, description = "The matching items, with attachments", body = HistorySearchResult),
    (status = 400, description = "The query, a filter or a cursor is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "Not granted", body = ErrorBody)))]
pub(crate) async fn search_history(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    JsonBody(search): JsonBody<HistorySearch>,
) -> ApiResult<Json<HistorySearchResult>> {
    let call = AuditedCall {
        action: "history_search",
        resource: "conversation",
        operation: "search",
    };
    let asked = caller.grant.snapshot.history(HistoryOperation::Search);
    let conversation = caller
        .own_conversation_if_any(&state, call, asked, None)
        .await?;
    let sound = domain::history::check_search(&search);
    let sound = sound.map_err(|faults| ApiError::faults(&faults))?;
    let transcript = ConversationTranscript {
        state: &state,
        workspace: &caller.grant.run.workspace,
        conversation,
        begins_after: caller.grant.snapshot.transcript_after(),
        memory: &caller.answer,
    };
    Ok(Json(transcript.search(search.query, sound).await?))
}
