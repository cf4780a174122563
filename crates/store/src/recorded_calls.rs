//! Tool calls of an ended run that answer the calls of its retry from a result.
//!
//! The retry copies references to the calls; their results stay in `tool_calls` and are never changed.

use domain::tool_call::is_repeatable;
use protocol::id::RunId;
use protocol::resources::ToolEffect;
use sea_orm::{DatabaseTransaction, Value};
use uuid::Uuid;

use crate::audit;
use crate::error::{StoreError, parsed, signed};
use crate::model::audit::AuditEntry;
use crate::mutation::Mutation;
use crate::sql::{Sql, SqlRow, text};
use crate::state::lock_live_run;

/// Stores references to the calls that an earlier run began before its result `from`, and to those of its own record.
/// A call without a result has an unknown outcome.
pub(crate) async fn copy_record(
    tx: &impl Sql,
    retry: RunId,
    origin: RunId,
    from: u64,
) -> Result<(), StoreError> {
    let earlier = "INSERT INTO recorded_calls (run_id, n, origin_run_id, origin_key, request_sha256) \
        SELECT CAST($1 AS TEXT), n, origin_run_id, origin_key, request_sha256 \
        FROM recorded_calls WHERE run_id = $2";
    tx.execute_sql(earlier.to_owned(), vec![text(retry), text(origin)])
        .await?;
    // Ids of calls begin with their time. A call of an older gateway has no sequence: its effect must not be doubled.
    let own = "INSERT INTO recorded_calls (run_id, n, origin_run_id, origin_key, request_sha256) \
        SELECT CAST($1 AS TEXT), ROW_NUMBER() OVER (ORDER BY call_id) + \
        (SELECT COALESCE(MAX(n), 0) FROM recorded_calls WHERE run_id = CAST($1 AS TEXT)), \
        run_id, key, request_sha256 FROM tool_calls \
        WHERE run_id = $2 AND (after_sequence IS NULL OR after_sequence < $3)";
    let values = vec![text(retry), text(origin), signed(from).into()];
    tx.execute_sql(own.to_owned(), values).await
}

/// A tool call of a run that was retried from a result: the next equal call of the record answers it.
#[derive(Clone, Debug)]
pub struct AnswerFromRecord {
    pub run_id: RunId,
    /// SHA-256 of the tool's name and parameters.
    pub request_sha256: String,
    pub effect: Option<ToolEffect>,
    /// Idempotency key in the scope of the run. A repeated call gets the same answer.
    pub key: Option<String>,
    /// Stored if the record has the call. Its rule becomes `recorded in run {id}`.
    pub audit: AuditEntry,
    pub at: i64,
}

/// Answer of the record to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordedAnswer {
    /// The stored result, as JSON text.
    Stored(String),
    /// The record has no such call left, so the tool is called.
    Absent,
    /// The key belongs to another call.
    Mismatch,
    /// The tool may have executed the call.
    Unknown,
    /// The retention has deleted the result.
    Gone,
    RunEnded,
}

/// A call of the record.
struct RecordedToolCall {
    n: i64,
    request_sha256: String,
    origin: RunId,
    /// False: deleted with its run.
    is_present: bool,
    /// `None`: its outcome is unknown.
    result: Option<String>,
}

impl RecordedToolCall {
    fn read(row: &SqlRow) -> Result<Self, StoreError> {
        let origin = row.text("origin_run_id")?;
        Ok(Self {
            n: row.number("n")?,
            request_sha256: row.text("request_sha256")?,
            origin: parsed("recorded_calls.origin_run_id", &origin, &origin)?,
            is_present: row.flag("is_present")?,
            result: row.text_if_any("result")?,
        })
    }
}

impl Mutation for AnswerFromRecord {
    type Output = RecordedAnswer;
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<RecordedAnswer, StoreError> {
        // The lock orders concurrent calls of the run: each takes its own call of the record.
        if !lock_live_run(tx, self.run_id).await? {
            return Ok(RecordedAnswer::RunEnded);
        }
        let Some(call) = self.find(tx).await? else {
            return Ok(RecordedAnswer::Absent);
        };
        let bytes = call.result.as_ref().map_or(0, String::len);
        let answer = if call.request_sha256 == self.request_sha256 {
            self.answer(&call)
        } else {
            RecordedAnswer::Mismatch
        };
        // A call of the tool has its own entry.
        if answer != RecordedAnswer::Absent {
            let entry = AuditEntry {
                rule: format!("recorded in run {}", call.origin).into(),
                bytes: bytes as u64,
                ..self.audit.clone()
            };
            audit::insert(tx, [&entry]).await?;
        }
        Ok(answer)
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        _answer: &RecordedAnswer,
    ) -> Result<bool, StoreError> {
        audit::is_recorded(tx, &self.audit).await
    }
}

impl AnswerFromRecord {
    fn answer(&self, call: &RecordedToolCall) -> RecordedAnswer {
        match &call.result {
            Some(result) => RecordedAnswer::Stored(result.clone()),
            None if !call.is_present => RecordedAnswer::Gone,
            None if is_repeatable(self.effect) => RecordedAnswer::Absent,
            None => RecordedAnswer::Unknown,
        }
    }

    /// The call that this key was answered with, else the next equal call, which it marks as answered.
    async fn find(&self, tx: &impl Sql) -> Result<Option<RecordedToolCall>, StoreError> {
        if let Some(key) = &self.key {
            let values = vec![text(self.run_id), key.as_str().into()];
            let answered = Self::first(tx, "r.answered_key = $2", values.clone()).await?;
            if answered.is_some() {
                return Ok(answered);
            }
            // The tool was called under this key, so its own row has the result.
            let live = "SELECT key FROM tool_calls WHERE run_id = $1 AND key = $2";
            if !tx.query_sql(live.to_owned(), values).await?.is_empty() {
                return Ok(None);
            }
        }
        let next = "r.request_sha256 = $2 AND r.answered_at IS NULL";
        let values = vec![text(self.run_id), self.request_sha256.as_str().into()];
        let Some(call) = Self::first(tx, next, values).await? else {
            return Ok(None);
        };
        let mark = "UPDATE recorded_calls SET answered_at = $3, answered_key = $4 WHERE run_id = $1 AND n = $2";
        let values = vec![
            text(self.run_id),
            call.n.into(),
            self.at.into(),
            self.key.clone().into(),
        ];
        tx.execute_sql(mark.to_owned(), values).await?;
        Ok(Some(call))
    }

    /// The first call of the run's record with this condition.
    async fn first(
        tx: &impl Sql,
        condition: &str,
        values: Vec<Value>,
    ) -> Result<Option<RecordedToolCall>, StoreError> {
        let sql = format!(
            "SELECT r.n, r.request_sha256, r.origin_run_id, c.result, c.key IS NOT NULL AS is_present FROM recorded_calls r \
             LEFT JOIN tool_calls c ON c.run_id = r.origin_run_id AND c.key = r.origin_key \
             WHERE r.run_id = $1 AND {condition} ORDER BY r.n LIMIT 1"
        );
        let rows = tx.query_sql(sql, values).await?;
        rows.first().map(RecordedToolCall::read).transpose()
    }
}
