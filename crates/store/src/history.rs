//! Transcripts.

use std::collections::HashMap;

use domain::authorization::FrozenConversation;
use protocol::id::WorkspaceId;
use sea_orm::sea_query::Expr;
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QueryOrder, QuerySelect, Select};
use serde_json::Value;

use crate::connect::Store;
use crate::entity::{conversations, transcript_items};
use crate::error::{StoreError, parsed_json};
use crate::sql::padded;

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
    /// With the attachments of each; else those are not read.
    pub attachments: bool,
}

/// Items of a page, and whether more follow.
#[derive(Clone, Debug, Default)]
pub struct HistorySlice {
    pub items: Vec<TranscriptRecord>,
    pub has_more: bool,
}

/// Bytes of the items of one answer; the first item comes however large it is.
pub const MOST_BYTES: i64 = 4 * 1024 * 1024;

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
    /// The actor of its event.
    pub author: Option<Value>,
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

    /// A page of a transcript: `limit` items, or fewer that are large.
    pub async fn page_history(
        &self,
        conversation_key: &str,
        page: HistoryQuery,
    ) -> Result<HistorySlice, StoreError> {
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
        let sizes: Vec<(i64, i64)> = sizes(query.limit(page.limit + 1), page.attachments)
            .into_tuple()
            .all(&self.readers)
            .await?;
        let most = usize::try_from(page.limit).unwrap_or(usize::MAX);
        let kept = fitting(&sizes[..sizes.len().min(most)]);
        let items = self
            .items_at(conversation_key, &kept, page.attachments)
            .await?;
        Ok(HistorySlice {
            has_more: sizes.len() > kept.len(),
            items,
        })
    }

    /// The items at these places, with their attachments: the first ones that fit an answer.
    pub(crate) async fn fitting_items_at(
        &self,
        conversation_key: &str,
        places: &[i64],
    ) -> Result<Vec<TranscriptRecord>, StoreError> {
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let query = items_of(conversation_key)
            .filter(transcript_items::Column::Seq.is_in(padded(places.iter().copied())));
        let sizes: HashMap<i64, i64> = sizes(query, true)
            .into_tuple::<(i64, i64)>()
            .all(&self.readers)
            .await?
            .into_iter()
            .collect();
        let sizes = places.iter().filter_map(|seq| sizes.get_key_value(seq));
        let sizes: Vec<_> = sizes.map(|(seq, bytes)| (*seq, *bytes)).collect();
        self.items_at(conversation_key, &fitting(&sizes), true)
            .await
    }

    /// The items at these places, in this order.
    async fn items_at(
        &self,
        conversation_key: &str,
        places: &[i64],
        attachments: bool,
    ) -> Result<Vec<TranscriptRecord>, StoreError> {
        let mut query = items_of(conversation_key)
            .filter(transcript_items::Column::Seq.is_in(padded(places.iter().copied())));
        if !attachments {
            query = query
                .select_only()
                .columns(WITHOUT_ATTACHMENTS)
                .expr_as(Expr::value("[]"), "attachment_refs");
        }
        let rows = query.all(&self.readers).await?;
        let mut rows: HashMap<i64, transcript_items::Model> =
            rows.into_iter().map(|row| (row.seq, row)).collect();
        let in_order = places.iter().filter_map(|seq| rows.remove(seq));
        in_order.map(to_record).collect()
    }
}

const WITHOUT_ATTACHMENTS: [transcript_items::Column; 12] = [
    transcript_items::Column::ConversationKey,
    transcript_items::Column::Seq,
    transcript_items::Column::Id,
    transcript_items::Column::RunId,
    transcript_items::Column::EventId,
    transcript_items::Column::Role,
    transcript_items::Column::ItemType,
    transcript_items::Column::Content,
    transcript_items::Column::ContentJson,
    transcript_items::Column::CreatedAt,
    transcript_items::Column::TermsVersion,
    transcript_items::Column::Author,
];

fn items_of(conversation_key: &str) -> Select<transcript_items::Entity> {
    transcript_items::Entity::find()
        .filter(transcript_items::Column::ConversationKey.eq(conversation_key))
}

/// Place and bytes of each item. The database knows the bytes of a text without reading it.
fn sizes(
    items: Select<transcript_items::Entity>,
    attachments: bool,
) -> Select<transcript_items::Entity> {
    let refs = if attachments {
        " + octet_length(attachment_refs)"
    } else {
        ""
    };
    let bytes = "coalesce(octet_length(content), 0) + coalesce(octet_length(content_json), 0)";
    let bytes = format!("CAST({bytes}{refs} AS BIGINT)");
    items
        .select_only()
        .column(transcript_items::Column::Seq)
        .expr_as(Expr::cust(bytes), "bytes")
}

/// The places of the first items that fit an answer; the first one fits always.
fn fitting(sizes: &[(i64, i64)]) -> Vec<i64> {
    let mut left = MOST_BYTES;
    let sizes = sizes.iter().enumerate();
    let fitting = sizes.take_while(|(place, (_, bytes))| {
        left -= bytes;
        *place == 0 || left >= 0
    });
    fitting.map(|(_, (seq, _))| *seq).collect()
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
