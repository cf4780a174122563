//! The list of conversations, for clients.

use axum::Json;
use axum::extract::State;
use protocol::error::ErrorBody;
use protocol::history::ConversationSummary;
use protocol::run::Page;
use serde::Deserialize;
use serde_json::json;
use store::ConversationRecord;

use keys::cursor::CursorKind;
use web::auth::ClientCaller;
use web::error::ApiResult;
use web::event_pages::{position, position_bytes};
use web::query::{QueryOf, page_limit};
use web::state::ApiState;
use web::view::{PREVIEW_READ, present, preview};

/// Cursor and size of a page.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConversationsQuery {
    /// The `next_cursor` of the previous page.
    cursor: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
}

/// Lists conversations, those with the newest events first.
///
/// A request scans at most 10,000 events. A page may then have fewer items than `limit` while `has_more` is true:
/// continue with `next_cursor`.
#[utoipa::path(get, path = "/v1/conversations", tag = "client", security(("api_key" = [])),
    params(ConversationsQuery), responses(
    (status = 200, description = "A page", body = Page<ConversationSummary>),
    (status = 400, description = "The cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The API key is restricted to agents (`details.reason`: key_agents)", body = ErrorBody)))]
pub(crate) async fn list_conversations(
    caller: ClientCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<ConversationsQuery>,
) -> ApiResult<Json<Page<ConversationSummary>>> {
    let limit = page_limit(query.limit)?;
    let list = json!(["conversations", caller.workspace.as_str()]).to_string();
    let cursors = state.runs.cursors();
    let after = match &query.cursor {
        None => None,
        Some(cursor) => Some(position(&cursors.decode(
            CursorKind::Conversations,
            &list,
            cursor,
        )?)?),
    };
    let page = caller.answer.page(limit);
    let found = (state.runs.store().conversations())
        .list_conversations(&caller.workspace, after, page, PREVIEW_READ)
        .await?;
    let next = found.next.map(|next| {
        let position_bytes = position_bytes(next.received_at, &next.event_id);
        cursors.encode(CursorKind::Conversations, &list, &position_bytes)
    });
    Ok(Json(Page {
        items: found.conversations.into_iter().map(summary).collect(),
        has_more: next.is_some(),
        next_cursor: next,
        prev_cursor: None,
        total_count: None,
    }))
}

fn summary(record: ConversationRecord) -> ConversationSummary {
    ConversationSummary {
        conversation_id: record.conversation_id,
        bot_id: present(&record.bot_id),
        thread_id: present(&record.thread_id),
        event_count: record.events,
        message_count: record.messages,
        is_busy: record.is_busy,
        last_event_id: record.newest.event_id,
        last_event_at: record.newest.received_at.div_euclid(1000),
        input_preview: record.input.map(preview),
    }
}
