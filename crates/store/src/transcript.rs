//! Transcript writes: each item with its terms in the full-text index.

use std::collections::{BTreeSet, HashMap};

use domain::text_index::index_terms;
use protocol::id::RunId;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ColumnTrait, DatabaseTransaction, DbBackend, EntityTrait, QueryFilter, QueryOrder, QuerySelect,
};

use crate::entity::transcript_items;
use crate::error::StoreError;
use crate::model::append::TranscriptWrite;
use crate::mutation::Mutation;
use crate::repositories::ConversationRepository;
use crate::sql::{Sql, executed, inserted};

/// Version of the terms made by this binary.
const TERMS_VERSION: i64 = 1;

/// Index terms of an item of this conversation. Empty for a text without words.
pub fn terms_of(conversation_key: &str, content: Option<&str>) -> String {
    index_terms(conversation_key, content.unwrap_or_default()).join(" ")
}

/// An item and the run that received or wrote it.
pub(crate) struct TranscriptRow {
    pub(crate) run: RunId,
    pub(crate) item: TranscriptWrite,
    pub(crate) at: i64,
}

/// Allocates sequences in each conversation and inserts the items, in the order of `rows`. `last`: the newest
/// sequence of each conversation, read under its lock.
pub(crate) async fn write_transcripts(
    conn: &impl Sql,
    rows: Vec<TranscriptRow>,
    mut last: HashMap<String, i64>,
) -> Result<(), StoreError> {
    let placed = assign_sequences(rows, &mut last)?;
    let advanced = placed.iter().map(|(row, _)| &row.item.conversation_key);
    let advanced: BTreeSet<_> = advanced.collect();
    let advanced = advanced
        .into_iter()
        .map(|key| [key.as_str().into(), last.get(key).copied().into()]);
    let advance = "UPDATE conversations SET last_transcript_seq = ?2 FROM rows WHERE key = ?1";
    executed(conn, advanced.collect(), advance).await?;
    let items = placed.iter().map(|(row, seq)| {
        [
            row.item.conversation_key.as_str().into(),
            (*seq).into(),
            row.item.id.to_string().into(),
            row.run.to_string().into(),
            row.item.event_id.as_str().into(),
            row.item.role.into(),
            "message".into(),
            row.item.content.clone().into(),
            row.item.content_json.as_str().into(),
            row.item.attachment_refs.as_str().into(),
            row.at.into(),
            TERMS_VERSION.into(),
            row.item.author.clone().into(),
        ]
    });
    let into = "transcript_items (conversation_key, seq, id, run_id, event_id, role, item_type, \
        content, content_json, attachment_refs, created_at, terms_version, author)";
    inserted(conn, into, items.collect()).await?;
    let terms = placed.into_iter().map(|(row, seq)| {
        let TranscriptWrite {
            conversation_key,
            terms,
            ..
        } = row.item;
        (conversation_key, seq, terms)
    });
    insert_terms(conn, terms).await
}

/// Assigns each row its sequence in the conversation, after `last`.
fn assign_sequences(
    rows: Vec<TranscriptRow>,
    last: &mut HashMap<String, i64>,
) -> Result<Vec<(TranscriptRow, i64)>, StoreError> {
    let placed = rows.into_iter().map(|row| {
        let last = last.get_mut(&row.item.conversation_key);
        let last = last.ok_or_else(|| StoreError::Corrupt {
            column: "runs.conversation_key",
            row: row.run.to_string(),
        })?;
        *last += 1;
        Ok((row, *last))
    });
    placed.collect()
}

/// Adds items to the full-text index: conversation, sequence, terms. Items without words have no row.
async fn insert_terms(
    conn: &impl Sql,
    items: impl Iterator<Item = (String, i64, String)>,
) -> Result<(), StoreError> {
    let items = items.filter(|(_, _, terms)| !terms.is_empty());
    let rows = items.map(|(key, seq, terms)| [terms.into(), key.into(), seq.into()]);
    let insert = match conn.backend() {
        DbBackend::Postgres => {
            "INSERT INTO transcript_terms (terms, conversation_key, seq) \
             SELECT array_to_tsvector(string_to_array(?1, ' ')), ?2, ?3 FROM rows"
        }
        _ => "INSERT INTO transcript_terms (terms, conversation_key, seq) VALUES rows",
    };
    conn.index_rows(insert, rows.collect()).await
}

/// Indexes items without terms, written by an older gateway.
struct IndexBacklog;

/// Items of one commit; other writes wait for it.
const BACKLOG: u64 = 32;

fn is_unindexed() -> Expr {
    // Must match the partial index's condition.
    Expr::cust("terms_version = 0")
}

impl Mutation for IndexBacklog {
    type Output = u64;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        let rows: Vec<(String, i64, Option<String>)> = transcript_items::Entity::find()
            .select_only()
            .column(transcript_items::Column::ConversationKey)
            .column(transcript_items::Column::Seq)
            .column(transcript_items::Column::Content)
            .filter(is_unindexed())
            .order_by_asc(transcript_items::Column::ConversationKey)
            .order_by_asc(transcript_items::Column::Seq)
            .limit(BACKLOG)
            .into_tuple()
            .all(tx)
            .await?;
        for (key, seq, content) in &rows {
            let entered = transcript_items::Entity::update_many()
                .col_expr(
                    transcript_items::Column::TermsVersion,
                    Expr::value(TERMS_VERSION),
                )
                .filter(transcript_items::Column::ConversationKey.eq(key.as_str()))
                .filter(transcript_items::Column::Seq.eq(*seq))
                .filter(is_unindexed())
                .exec(tx)
                .await?;
            // Otherwise another replica has indexed it concurrently.
            if entered.rows_affected == 1 {
                let terms = terms_of(key, content.as_deref());
                insert_terms(tx, std::iter::once((key.clone(), *seq, terms))).await?;
            }
        }
        Ok(rows.len() as u64)
    }
}

impl ConversationRepository<'_> {
    /// Indexes a batch of items from an older gateway. False: none are left.
    pub async fn index_backlog(self) -> Result<bool, StoreError> {
        let some: Option<i64> = transcript_items::Entity::find()
            .select_only()
            .column(transcript_items::Column::Seq)
            .filter(is_unindexed())
            .limit(1)
            .into_tuple()
            .one(&self.db.readers)
            .await?;
        Ok(some.is_some() && self.db.write(IndexBacklog).await? == BACKLOG)
    }
}
