//! Transcripts as they are written: each item with its terms in the full-text index.

use domain::text_index::index_terms;
use protocol::id::RunId;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveValue::Set, ColumnTrait, ConnectionTrait, DatabaseTransaction, DbBackend, EntityTrait,
    QueryFilter, QueryOrder, QuerySelect, Statement,
};
use uuid::Uuid;

use crate::connect::Store;
use crate::entity::transcript_items;
use crate::error::StoreError;
use crate::writer::Work;

/// The terms that this binary makes.
const TERMS_VERSION: i64 = 1;

/// A transcript item; its place in the conversation is found inside the transaction.
#[derive(Clone, Debug)]
pub struct TranscriptWrite {
    pub id: Uuid,
    pub conversation_key: String,
    pub event_id: String,
    pub role: &'static str,
    pub content: Option<String>,
    pub content_json: String,
    /// A JSON list.
    pub attachment_refs: String,
}

/// Allocates the next place under the conversation row's lock and writes the item there.
pub(crate) async fn write_transcript(
    conn: &impl ConnectionTrait,
    run_id: RunId,
    item: &TranscriptWrite,
    at: i64,
) -> Result<(), StoreError> {
    let key = item.conversation_key.as_str();
    let next = "UPDATE conversations SET last_transcript_seq = last_transcript_seq + 1 \
        WHERE key = $1 RETURNING last_transcript_seq";
    let next = Statement::from_sql_and_values(conn.get_database_backend(), next, [key.into()]);
    let row = conn.query_one_raw(next).await?;
    let row = row.ok_or_else(|| StoreError::Corrupt {
        column: "runs.conversation_key",
        row: run_id.to_string(),
    })?;
    let seq: i64 = row.try_get("", "last_transcript_seq")?;
    let row = transcript_items::ActiveModel {
        conversation_key: Set(key.to_owned()),
        seq: Set(seq),
        id: Set(item.id.to_string()),
        run_id: Set(run_id.to_string()),
        event_id: Set(item.event_id.clone()),
        role: Set(item.role.to_owned()),
        item_type: Set("message".to_owned()),
        content: Set(item.content.clone()),
        content_json: Set(Some(item.content_json.clone())),
        attachment_refs: Set(item.attachment_refs.clone()),
        created_at: Set(at),
        terms_version: Set(TERMS_VERSION),
    };
    transcript_items::Entity::insert(row)
        .exec_without_returning(conn)
        .await?;
    enter_terms(conn, key, seq, item.content.as_deref()).await
}

/// Enters what a search finds the item by. Items without words have no row.
async fn enter_terms(
    conn: &impl ConnectionTrait,
    conversation_key: &str,
    seq: i64,
    content: Option<&str>,
) -> Result<(), StoreError> {
    let terms = index_terms(conversation_key, content.unwrap_or_default());
    if terms.is_empty() {
        return Ok(());
    }
    let backend = conn.get_database_backend();
    let value = match backend {
        DbBackend::Postgres => "array_to_tsvector(string_to_array($1, ' '))",
        _ => "$1",
    };
    let sql = format!(
        "INSERT INTO transcript_terms (terms, conversation_key, seq) VALUES ({value}, $2, $3)"
    );
    let values = [terms.join(" ").into(), conversation_key.into(), seq.into()];
    conn.execute_raw(Statement::from_sql_and_values(backend, sql, values))
        .await?;
    Ok(())
}

/// Enters items that have no terms yet: those of an older gateway.
struct EnterBacklog;

/// Items of one commit: others wait behind it.
const BACKLOG: u64 = 32;

fn is_not_entered() -> Expr {
    // As the partial index says it, or it is not used.
    Expr::cust("terms_version = 0")
}

impl Work for EnterBacklog {
    type Output = u64;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        let rows: Vec<(String, i64, Option<String>)> = transcript_items::Entity::find()
            .select_only()
            .column(transcript_items::Column::ConversationKey)
            .column(transcript_items::Column::Seq)
            .column(transcript_items::Column::Content)
            .filter(is_not_entered())
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
                .filter(is_not_entered())
                .exec(tx)
                .await?;
            // Else another replica was here in this very moment.
            if entered.rows_affected == 1 {
                enter_terms(tx, key, *seq, content.as_deref()).await?;
            }
        }
        Ok(rows.len() as u64)
    }
}

impl Store {
    /// Enters some items that an older gateway wrote into the full-text index. False: none are left.
    pub async fn enter_some_terms(&self) -> Result<bool, StoreError> {
        let some: Option<i64> = transcript_items::Entity::find()
            .select_only()
            .column(transcript_items::Column::Seq)
            .filter(is_not_entered())
            .limit(1)
            .into_tuple()
            .one(&self.readers)
            .await?;
        Ok(some.is_some() && self.write(EnterBacklog).await? == BACKLOG)
    }
}
