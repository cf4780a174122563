//! Transcripts.

use domain::authorization::FrozenConversation;
use protocol::id::WorkspaceId;
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QueryOrder, QuerySelect};
use serde_json::Value;

use crate::connect::Store;
use crate::entity::{conversations, transcript_items};
use crate::error::{StoreError, parsed_json};

/// Which items of one conversation.
#[derive(Clone, Copy, Debug, Default)]
pub struct HistoryQuery {
    /// Only items before this place.
    pub before: Option<i64>,
    /// Only items after this place.
    pub after: Option<i64>,
    /// Oldest first; else newest first.
    pub forward: bool,
    pub limit: u64,
}

/// A transcript item.
#[derive(Clone, Debug)]
pub struct TranscriptRecord {
    pub id: String,
    pub seq: i64,
    pub run_id: String,
    pub event_id: String,
    pub role: String,
    pub item_type: String,
    pub content: Option<String>,
    pub content_json: Option<Value>,
    pub attachment_refs: Vec<Value>,
    pub created_at: i64,
}

impl Store {
    /// The key of a conversation of the workspace, by all three of its parts.
    pub async fn find_conversation_key(
        &self,
        workspace: &WorkspaceId,
        conversation: &FrozenConversation,
    ) -> Result<Option<String>, StoreError> {
        let row = conversations::Entity::find()
            .filter(conversations::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(conversations::Column::BotId.eq(conversation.bot_id.as_str()))
            .filter(conversations::Column::ConversationId.eq(conversation.conversation_id.as_str()))
            .filter(conversations::Column::ThreadId.eq(conversation.thread_id.as_str()))
            .one(&self.readers)
            .await?;
        Ok(row.map(|row| row.key))
    }

    /// A page of a transcript.
    pub async fn page_history(
        &self,
        conversation_key: &str,
        page: HistoryQuery,
    ) -> Result<Vec<TranscriptRecord>, StoreError> {
        let mut query = transcript_items::Entity::find()
            .filter(transcript_items::Column::ConversationKey.eq(conversation_key));
        if let Some(before) = page.before {
            query = query.filter(transcript_items::Column::Seq.lt(before));
        }
        if let Some(after) = page.after {
            query = query.filter(transcript_items::Column::Seq.gt(after));
        }
        query = if page.forward {
            query.order_by_asc(transcript_items::Column::Seq)
        } else {
            query.order_by_desc(transcript_items::Column::Seq)
        };
        let rows = query.limit(page.limit).all(&self.readers).await?;
        rows.into_iter().map(to_record).collect()
    }
}

fn to_record(row: transcript_items::Model) -> Result<TranscriptRecord, StoreError> {
    let content_json = row.content_json.as_deref();
    Ok(TranscriptRecord {
        content_json: content_json
            .map(|text| parsed_json("transcript_items.content_json", &row.id, text))
            .transpose()?,
        attachment_refs: parsed_json(
            "transcript_items.attachment_refs",
            &row.id,
            &row.attachment_refs,
        )?,
        id: row.id,
        seq: row.seq,
        run_id: row.run_id,
        event_id: row.event_id,
        role: row.role,
        item_type: row.item_type,
        content: row.content,
        created_at: row.created_at,
    })
}
