//! Transcript writes: each item with its terms in the full-text index.

use std::collections::HashMap;

use domain::text_index::index_terms;
use protocol::id::RunId;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ColumnTrait, DatabaseTransaction, DbBackend, EntityTrait, QueryFilter, QueryOrder, QuerySelect,
    Value,
};

use crate::entity::transcript_items;
use crate::error::StoreError;
use crate::model::append::TranscriptWrite;
use crate::mutation::Mutation;
use crate::repositories::ConversationRepository;
use crate::sql::{Sql, executed, inserted, returned};

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

/// Allocates sequences in each conversation under its row lock and inserts the items, in the order of `rows`.
pub(crate) async fn write_transcripts(
    conn: &impl Sql,
    rows: Vec<TranscriptRow>,
) -> Result<(), StoreError> {
    let placed = assign_sequences(conn, rows).await?;
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

/// Assigns each row its sequence in the conversation.
async fn assign_sequences(
    conn: &impl Sql,
    rows: Vec<TranscriptRow>,
) -> Result<Vec<(TranscriptRow, i64)>, StoreError> {
    // In the order of `rows`, which is the lock order.
    let mut counts: Vec<(&str, i64)> = Vec::new();
    let mut at: HashMap<&str, usize> = HashMap::new();
    for row in &rows {
        let key = row.item.conversation_key.as_str();
        let index = *at.entry(key).or_insert_with(|| {
            counts.push((key, 0));
            counts.len() - 1
        });
        counts[index].1 += 1;
    }
    let adding: Vec<[Value; 2]> = counts
        .iter()
        .map(|(key, count)| [(*key).into(), (*count).into()])
        .collect();
    let next = "UPDATE conversations SET last_transcript_seq = last_transcript_seq + ?2 \
                FROM rows WHERE key = ?1";
    // On `SQLite` a query costs less than `RETURNING`.
    let placed = if conn.backend() == DbBackend::Sqlite {
        let keys: Vec<[Value; 1]> = counts.iter().map(|(key, _)| [(*key).into()]).collect();
        executed(conn, adding, next).await?;
        let select =
            "SELECT c.key, c.last_transcript_seq FROM rows, conversations c WHERE c.key = ?1";
        returned(conn, keys, select).await?
    } else {
        let next = format!("{next} RETURNING key, last_transcript_seq");
        returned(conn, adding, &next).await?
    };
    let counts: HashMap<String, i64> = counts
        .into_iter()
        .map(|(key, count)| (key.to_owned(), count))
        .collect();
    let mut last_before = HashMap::new();
    for row in placed {
        let key = row.text("key")?;
        let before = row.number("last_transcript_seq")? - counts.get(&key).copied().unwrap_or(0);
        last_before.insert(key, before);
    }
    let placed = rows.into_iter().map(|row| {
        let last = last_before.get_mut(&row.item.conversation_key);
        let last = last.ok_or_else(|| StoreError::Corrupt {
            column: "runs.conversation_key",
            row: row.run.to_string(),
        })?;
        *last += 1;
        let sequence = *last;
        Ok((row, sequence))
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
