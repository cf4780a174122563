//! Transcript reads.

use domain::authorization::FrozenConversation;
use protocol::id::WorkspaceId;
use protocol::raw::RawJson;
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QueryOrder, Select};
use serde_json::Value;

use crate::entity::{conversations, transcript_items};
use crate::error::{StoreError, parsed_json};
use crate::page::{ListPage, PageBound, PageOf, ReadBudget};
use crate::repositories::ConversationRepository;
use crate::sql::padded;

/// Selects items of one conversation.
#[derive(Clone, Copy, Debug, Default)]
pub struct HistoryQuery<'a> {
    /// Only items before this sequence.
    pub before: Option<i64>,
    /// Only items after this sequence.
    pub after: Option<i64>,
    /// True: oldest first; false: newest first.
    pub forward: bool,
    pub limit: u64,
    /// True: include the attachments of each item.
    pub attachments: bool,
    pub budget: ReadBudget<'a>,
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
    pub content_json: Option<RawJson>,
    pub attachment_refs: Vec<RawJson>,
    /// The actor of its event.
    pub author: Option<Value>,
    pub created_at: i64,
}

impl ConversationRepository<'_> {
    /// Key of a conversation of the workspace, by bot, conversation and thread.
    pub async fn find_conversation_key(
        self,
        workspace: &WorkspaceId,
        conversation: &FrozenConversation,
    ) -> Result<Option<String>, StoreError> {
        let row = conversations::Entity::find()
            .filter(conversations::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(conversations::Column::BotId.eq(conversation.bot_id.as_str()))
            .filter(conversations::Column::ConversationId.eq(conversation.conversation_id.as_str()))
            .filter(conversations::Column::ThreadId.eq(conversation.thread_id.as_str()))
            .one(&self.db.readers)
            .await?;
        Ok(row.map(|row| row.key))
    }

    /// A page of a transcript: `limit` items, fewer if they are large.
    pub async fn page_history(
        self,
        conversation_key: &str,
        page: HistoryQuery<'_>,
    ) -> Result<ListPage<TranscriptRecord>, StoreError> {
        let mut query = items_of(conversation_key);
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
        let bound = PageBound {
            budget: page.budget,
            ..page.limit.into()
        };
        let items = page_of(conversation_key, query, page.attachments);
        items
            .read::<i64>(&self.db.readers, bound)
            .await?
            .try_map(to_record)
    }

    /// Items at these sequences with attachments, newest first, up to the limit of a page.
    pub(crate) async fn fitting_items_at(
        self,
        conversation_key: &str,
        sequences: &[i64],
        budget: ReadBudget<'_>,
    ) -> Result<Vec<TranscriptRecord>, StoreError> {
        if sequences.is_empty() {
            return Ok(Vec::new());
        }
        let query = items_of(conversation_key)
            .filter(transcript_items::Column::Seq.is_in(padded(sequences.iter().copied())))
            .order_by_desc(transcript_items::Column::Seq);
        let bound = PageBound {
            budget,
            ..(sequences.len() as u64).into()
        };
        let items = page_of(conversation_key, query, true);
        let found = items.read::<i64>(&self.db.readers, bound).await?;
        Ok(found.try_map(to_record)?.items)
    }
}

fn items_of(conversation_key: &str) -> Select<transcript_items::Entity> {
    transcript_items::Entity::find()
        .filter(transcript_items::Column::ConversationKey.eq(conversation_key))
}

fn page_of(
    conversation_key: &str,
    rows: Select<transcript_items::Entity>,
    attachments: bool,
) -> PageOf<transcript_items::Entity> {
    PageOf {
        rows,
        key: transcript_items::Column::Seq,
        owner: transcript_items::Column::ConversationKey
            .eq(conversation_key)
            .into(),
        without: (!attachments).then_some(transcript_items::Column::AttachmentRefs),
    }
}

fn to_record(row: transcript_items::Model) -> Result<TranscriptRecord, StoreError> {
    Ok(TranscriptRecord {
        content_json: row
            .content_json
            .map(|text| {
                RawJson::parse(text).map_err(|_| StoreError::Corrupt {
                    column: "transcript_items.content_json",
                    row: row.id.clone(),
                })
            })
            .transpose()?,
        attachment_refs: parsed_json(
            "transcript_items.attachment_refs",
            &row.id,
            &row.attachment_refs,
        )?,
        author: row
            .author
            .map(|author| parsed_json("transcript_items.author", &row.id, &author))
            .transpose()?,
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
