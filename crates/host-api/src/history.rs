//! The transcript of the run's conversation.

use axum::Json;
use axum::extract::State;
use domain::authorization::{AuthorizationSnapshot, FrozenConversation};
use protocol::error::ErrorBody;
use protocol::history::{HistorySearch, HistorySearchResult, TranscriptItem};
use protocol::resources::HistoryOperation;
use protocol::run::Page;
use serde::Deserialize;

use web::auth::{AuditedCall, LiveCaller, RunCaller};
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::QueryOf;
use web::state::ApiState;
use web::transcript::{ConversationTranscript, TranscriptQuery};
use web::view::Direction;

/// A part of the transcript of the run's conversation.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct OwnHistoryQuery {
    /// Another conversation, if the run was granted it. Default: the run's own.
    pub conversation_id: Option<String>,
    /// Bot of another conversation, if it has one.
    #[serde(default)]
    pub bot_id: Option<String>,
    /// Thread of another conversation, if it has one.
    #[serde(default)]
    pub thread_id: Option<String>,
    /// Only items before this cursor: the `next_cursor` of a backward page. Can be combined with `after_cursor`.
    pub before_cursor: Option<String>,
    /// Only items after this cursor: the `next_cursor` of a forward page.
    pub after_cursor: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    pub limit: Option<u64>,
    #[serde(default)]
    #[param(inline)]
    direction: Direction,
    /// Include `attachment_refs`; otherwise they are empty. Alias: `include_artifacts`.
    #[serde(default, alias = "include_artifacts")]
    include_attachments: bool,
}

/// Lists the transcript of the run's conversation and thread, or of another one that the run was granted.
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

/// Returns the conversation that a request names, unless it is the run's own. An id without bot and thread names the
/// own one if the ids are equal.
fn other_conversation(
    snapshot: &AuthorizationSnapshot,
    [conversation_id, bot_id, thread_id]: [Option<String>; 3],
) -> Option<FrozenConversation> {
    let is_id_alone = bot_id.is_none() && thread_id.is_none();
    let other = FrozenConversation {
        conversation_id: conversation_id?,
        bot_id: bot_id.unwrap_or_default(),
        thread_id: thread_id.unwrap_or_default(),
    };
    let is_own = snapshot.conversation.as_ref().is_some_and(|own| {
        other == *own || is_id_alone && other.conversation_id == own.conversation_id
    });
    (!is_own).then_some(other)
}

/// Returns the transcript that a granted call reads, and audits the call.
async fn readable<'a>(
    caller: &'a RunCaller,
    state: &'a ApiState,
    call: AuditedCall<'_>,
    operation: HistoryOperation,
    other: Option<&'a FrozenConversation>,
) -> ApiResult<ConversationTranscript<'a>> {
    let snapshot = &caller.grant.snapshot;
    let is_open =
        |other: &FrozenConversation| snapshot.other_history(&other.conversation_id).is_ok();
    let permission = snapshot.history(operation);
    let (conversation, begins_after) = match other {
        Some(other) if is_open(other) => {
            caller.record(state, call, None).await?;
            (Some(other), 0)
        }
        // The grant covers the own conversation only. Without any grant, the next case denies the call.
        Some(_) if permission.is_ok() => return caller.refuse_foreign(state, call).await,
        _ => {
            let own = caller.own_conversation_if_any(state, call, permission, None);
            (own.await?, snapshot.transcript_after())
        }
    };
    Ok(ConversationTranscript {
        state,
        workspace: &caller.grant.run.workspace,
        conversation,
        begins_after,
        memory: &caller.answer,
    })
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
    // Models often pass an empty string for an omitted argument.
    let non_empty = |text: Option<String>| text.filter(|text| !text.is_empty());
    let named = [query.conversation_id, query.bot_id, query.thread_id].map(non_empty);
    let other = other_conversation(&caller.grant.snapshot, named);
    let transcript = readable(caller, state, call, HistoryOperation::Page, other.as_ref());
    let transcript = transcript.await?;
    let part = TranscriptQuery {
        before_cursor: non_empty(query.before_cursor),
        after_cursor: non_empty(query.after_cursor),
        limit: query.limit,
        direction: query.direction,
        include_attachments: query.include_attachments,
    };
    transcript.page(&part).await
}

/// Searches the transcript of the run's conversation and thread, or of another one that the run was granted,
/// newest first.
///
/// The search matches complete words and ignores case, width and accents. In Chinese, Japanese and Korean text it
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
    let named = [&search.conversation_id, &search.bot_id, &search.thread_id].map(Clone::clone);
    let other = other_conversation(&caller.grant.snapshot, named);
    let operation = HistoryOperation::Search;
    let transcript = readable(&caller, &state, call, operation, other.as_ref()).await?;
    let valid_search = domain::history::check_search(&search);
    let valid_search = valid_search.map_err(|faults| ApiError::faults(&faults))?;
    Ok(Json(transcript.search(search.query, valid_search).await?))
}
