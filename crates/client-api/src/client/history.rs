//! Conversation transcripts, for clients.

use axum::Json;
use axum::extract::State;
use domain::authorization::FrozenConversation;
use protocol::admin::Fault;
use protocol::error::ErrorBody;
use protocol::history::{HistoryFilters, HistorySearch, HistorySearchResult, TranscriptItem};
use protocol::run::Page;
use serde::Deserialize;

use web::auth::ClientCaller;
use web::error::{ApiError, ApiResult};
use web::query::{PathOf, QueryOf, names_of};
use web::state::ApiState;
use web::transcript::{ConversationTranscript, TranscriptQuery};
use web::view::Direction;

/// A conversation and a part of its transcript. An absent `bot_id` or `thread_id` matches only conversations
/// without one.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConversationHistoryQuery {
    bot_id: Option<String>,
    thread_id: Option<String>,
    /// Only items before this cursor: the `next_cursor` of a backward page. Can be combined with `after_cursor`.
    before_cursor: Option<String>,
    /// Only items after this cursor: the `next_cursor` of a forward page.
    after_cursor: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
    #[serde(default)]
    #[param(inline)]
    direction: Direction,
    /// Include `attachment_refs`; otherwise they are empty. Alias: `include_artifacts`.
    #[serde(default, alias = "include_artifacts")]
    include_attachments: bool,
}

fn conversation(
    bot_id: Option<String>,
    conversation_id: String,
    thread_id: Option<String>,
) -> FrozenConversation {
    FrozenConversation {
        bot_id: bot_id.unwrap_or_default(),
        conversation_id,
        thread_id: thread_id.unwrap_or_default(),
    }
}

/// Lists the transcript of a conversation.
///
/// A page may have fewer than `limit` items if they are large. Check `has_more` and continue with `next_cursor`.
#[utoipa::path(get, path = "/v1/conversations/{conversation_id}/history", tag = "client",
    security(("api_key" = [])),
    params(("conversation_id" = String, Path, description = "The conversation, percent-encoded"),
        ConversationHistoryQuery),
    responses(
    (status = 200, description = "A page; empty for a conversation that does not exist", body = Page<TranscriptItem>),
    (status = 400, description = "A cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The API key is restricted to agents (`details.reason`: key_agents)", body = ErrorBody)))]
pub(crate) async fn get_conversation_history(
    caller: ClientCaller,
    State(state): State<ApiState>,
    PathOf(conversation_id): PathOf<String>,
    QueryOf(query): QueryOf<ConversationHistoryQuery>,
) -> ApiResult<Json<Page<TranscriptItem>>> {
    let conversation = conversation(query.bot_id, conversation_id, query.thread_id);
    let transcript = ConversationTranscript {
        state: &state,
        workspace: &caller.workspace,
        conversation: Some(&conversation),
        begins_after: 0,
        memory: &caller.answer,
    };
    let part = TranscriptQuery {
        before_cursor: query.before_cursor,
        after_cursor: query.after_cursor,
        limit: query.limit,
        direction: query.direction,
        include_attachments: query.include_attachments,
    };
    Ok(Json(transcript.page(&part).await?))
}

/// A conversation and a search. An absent `bot_id` or `thread_id` matches only conversations without one.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct SearchQuery {
    bot_id: Option<String>,
    thread_id: Option<String>,
    /// Words that must all occur, in any order. `"Quoted words"` must be adjacent. At most 1,000 characters and
    /// 64 words.
    #[serde(default)]
    query: String,
    /// Only items with these roles, separated by commas, at most 16.
    roles: Option<String>,
    /// Only items of these types, separated by commas, at most 16.
    item_types: Option<String>,
    /// 1 to 100, default 10.
    #[param(minimum = 1, maximum = 100)]
    top_k: Option<u64>,
    /// Only items before this cursor. Use the cursor of the last result to find older items.
    before_cursor: Option<String>,
    /// Only items after this cursor.
    after_cursor: Option<String>,
}

/// Searches the transcript of a conversation, newest first.
///
/// The search matches complete words and ignores case, width and accents. In Chinese, Japanese and Korean text it
/// matches any substring. It covers the first 4,000 characters of each item.
#[utoipa::path(get, path = "/v1/conversations/{conversation_id}/history/search", tag = "client",
    security(("api_key" = [])),
    params(("conversation_id" = String, Path, description = "The conversation, percent-encoded"),
        SearchQuery),
    responses(
    (status = 200, description = "The matching items, with attachments", body = HistorySearchResult),
    (status = 400, description = "The query, a filter or a cursor is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The API key is restricted to agents (`details.reason`: key_agents)", body = ErrorBody)))]
pub(crate) async fn search_conversation_history(
    caller: ClientCaller,
    State(state): State<ApiState>,
    PathOf(conversation_id): PathOf<String>,
    QueryOf(query): QueryOf<SearchQuery>,
) -> ApiResult<Json<HistorySearchResult>> {
    let search = HistorySearch {
        query: query.query,
        filters: Some(HistoryFilters {
            roles: names_of("roles", query.roles.as_deref())?,
            item_types: names_of("item_types", query.item_types.as_deref())?,
            before_cursor: query.before_cursor,
            after_cursor: query.after_cursor,
        }),
        top_k: query.top_k,
        ..HistorySearch::default()
    };
    let conversation = conversation(query.bot_id, conversation_id, query.thread_id);
    let valid_search = domain::history::check_search(&search);
    let valid_search = valid_search.map_err(|faults| ApiError::faults(&in_query(faults)))?;
    let transcript = ConversationTranscript {
        state: &state,
        workspace: &caller.workspace,
        conversation: Some(&conversation),
        begins_after: 0,
        memory: &caller.answer,
    };
    Ok(Json(transcript.search(search.query, valid_search).await?))
}

/// In a query string the filters are parameters next to the query.
fn in_query(mut faults: Vec<Fault>) -> Vec<Fault> {
    for fault in &mut faults {
        // `/filters/roles` in a body is the parameter `roles` here.
        if let Some(plain) = fault.pointer.strip_prefix("/filters") {
            fault.pointer = plain.to_owned();
        }
    }
    faults
}
