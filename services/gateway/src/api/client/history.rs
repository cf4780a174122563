//! The transcript of a conversation, for clients.

use axum::Json;
use axum::extract::State;
use domain::authorization::FrozenConversation;
use protocol::error::ErrorBody;
use protocol::history::TranscriptItem;
use protocol::run::Page;
use serde::Deserialize;

use crate::api::ApiState;
use crate::api::auth::ClientCaller;
use crate::api::error::ApiResult;
use crate::api::host::history::{HistoryQuery, read_history};
use crate::api::query::{PathOf, QueryOf};

/// Which conversation of that id: absent parts equal absent parts only.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct ConversationQuery {
    bot_id: Option<String>,
    thread_id: Option<String>,
}

/// Reads the transcript of a conversation.
#[utoipa::path(get, path = "/v1/conversations/{conversation_id}/history", tag = "client",
    security(("api_key" = [])),
    params(("conversation_id" = String, Path, description = "The conversation"), ConversationQuery, HistoryQuery),
    responses(
    (status = 200, description = "A page; empty for a conversation that does not exist", body = Page<TranscriptItem>),
    (status = 400, description = "A cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(in crate::api) async fn get_conversation_history(
    caller: ClientCaller,
    State(state): State<ApiState>,
    PathOf(conversation_id): PathOf<String>,
    QueryOf(which): QueryOf<ConversationQuery>,
    QueryOf(query): QueryOf<HistoryQuery>,
) -> ApiResult<Json<Page<TranscriptItem>>> {
    let conversation = FrozenConversation {
        bot_id: which.bot_id.unwrap_or_default(),
        conversation_id,
        thread_id: which.thread_id.unwrap_or_default(),
    };
    Ok(Json(
        read_history(&state, &caller.workspace, &conversation, &query).await?,
    ))
}
