//! The transcript of a conversation, for clients.

use axum::Json;
use axum::extract::State;
use domain::authorization::FrozenConversation;
use protocol::admin::Fault;
use protocol::error::ErrorBody;
use protocol::history::{HistoryFilters, HistorySearch, HistorySearchResult, TranscriptItem};
use protocol::run::Page;
use serde::Deserialize;

use crate::ApiState;
use crate::auth::ClientCaller;
use crate::error::{ApiError, ApiResult};
use crate::query::{PathOf, QueryOf, names_of};
use crate::transcript::{HistoryQuery, Transcript};
use crate::view::Direction;

/// Which part of the transcript of which conversation of that id: absent parts equal absent parts only.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConversationHistoryQuery {
    bot_id: Option<String>,
    thread_id: Option<String>,
    /// Only items before this one: the `next_cursor` of a page backward. May stand beside `after_cursor`.
    before_cursor: Option<String>,
    /// Only items after this one: the `next_cursor` of a page forward.
    after_cursor: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
    #[serde(default)]
    #[param(inline)]
    direction: Direction,
    /// With `attachment_refs`; else they are empty.
    #[serde(default)]
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

/// Reads the transcript of a conversation. Fewer items than `limit` come where they are large;
/// `has_more` and `next_cursor` go on.
#[utoipa::path(get, path = "/v1/conversations/{conversation_id}/history", tag = "client",
    security(("api_key" = [])),
    params(("conversation_id" = String, Path, description = "The conversation, percent-encoded"),
        ConversationHistoryQuery),
    responses(
    (status = 200, description = "A page; empty for a conversation that does not exist", body = Page<TranscriptItem>),
    (status = 400, description = "A cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn get_conversation_history(
    caller: ClientCaller,
    State(state): State<ApiState>,
    PathOf(conversation_id): PathOf<String>,
    QueryOf(query): QueryOf<ConversationHistoryQuery>,
) -> ApiResult<Json<Page<TranscriptItem>>> {
    let conversation = conversation(query.bot_id, conversation_id, query.thread_id);
    let transcript = Transcript {
        state: &state,
        workspace: &caller.workspace,
        conversation: Some(&conversation),
        memory: &caller.answer,
    };
    let part = HistoryQuery {
        before_cursor: query.before_cursor,
        after_cursor: query.after_cursor,
        limit: query.limit,
        direction: query.direction,
        include_attachments: query.include_attachments,
    };
    Ok(Json(transcript.page(&part).await?))
}

/// What to look for in which conversation of that id: absent parts equal absent parts only.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct SearchQuery {
    bot_id: Option<String>,
    thread_id: Option<String>,
    /// Words that must all occur, in any order; `"words in quotes"` one right after the other. At
    /// most 1,000 characters and 64 words.
    #[serde(default)]
    query: String,
    /// Only items of these roles, joined by commas, 16 at most.
    roles: Option<String>,
    /// Only items of these types, joined by commas, 16 at most.
    item_types: Option<String>,
    /// 1 to 100, default 10.
    #[param(minimum = 1, maximum = 100)]
    top_k: Option<u64>,
    /// Only items before this one: the last item of a result goes on with what is older.
    before_cursor: Option<String>,
    /// Only items after this one.
    after_cursor: Option<String>,
}

/// Searches the transcript of a conversation, newest first. Whole words are found, whatever their
/// case, width and accents; in Chinese, Japanese and Korean any part of a sentence. The first 4,000
/// characters of each item are searched.
#[utoipa::path(get, path = "/v1/conversations/{conversation_id}/history/search", tag = "client",
    security(("api_key" = [])),
    params(("conversation_id" = String, Path, description = "The conversation, percent-encoded"),
        SearchQuery),
    responses(
    (status = 200, description = "What was found, with attachments", body = HistorySearchResult),
    (status = 400, description = "The query, a filter or a cursor is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
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
    };
    let conversation = conversation(query.bot_id, conversation_id, query.thread_id);
    let sound = domain::history::check_search(&search);
    let sound = sound.map_err(|faults| ApiError::faults(&in_query(faults)))?;
    let transcript = Transcript {
        state: &state,
        workspace: &caller.workspace,
        conversation: Some(&conversation),
        memory: &caller.answer,
    };
    Ok(Json(transcript.search(search.query, sound).await?))
}

/// In a query string the filters stand beside the query.
fn in_query(mut faults: Vec<Fault>) -> Vec<Fault> {
    for fault in &mut faults {
        if let Some(plain) = fault.pointer.strip_prefix("/filters") {
            fault.pointer = plain.to_owned();
        }
    }
    faults
}
