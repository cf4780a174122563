//! Answered questions that runners name as approvals of calls.

use domain::run::Run;
use protocol::id::{RunId, WorkspaceId};
use sea_orm::{DbBackend, Value};

use super::FROM;
use crate::error::{StoreError, parsed};
use crate::repositories::InteractionRepository;
use crate::sql::{Sql, SqlRow, padded};

/// A question, as a runner names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalReference {
    /// The asking run.
    pub run_id: RunId,
    /// The runner's id of the question.
    pub interaction_id: String,
}

/// An answered question without its values, which may be large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerSummary {
    /// The gateway's id of the question.
    pub id: String,
    pub run_id: RunId,
    pub title: String,
    /// The chosen action.
    pub action_id: Option<String>,
    /// The credential of the answer, as JSON.
    pub answered_by: String,
    /// Epoch milliseconds.
    pub answered_at: i64,
}

impl InteractionRepository<'_> {
    /// The gateway's id of an answered question of `caller`, or of another run of its agent in its conversation. `None`:
    /// there is no such question, or retention has deleted it.
    pub async fn find_approval(
        self,
        caller: &Run,
        approval: &ApprovalReference,
    ) -> Result<Option<String>, StoreError> {
        let sql = "SELECT i.id FROM interactions i JOIN runs r ON r.id = i.run_id \
            WHERE i.run_id = $1 AND i.interaction_id = $2 AND i.workspace_id = $3 AND i.budget IS NULL \
            AND (r.id = $4 OR (r.agent_id = $5 AND r.conversation_key = $6)) \
            AND (i.given_at IS NOT NULL OR EXISTS (SELECT 1 FROM events e \
                WHERE e.workspace_id = i.workspace_id AND e.event_id = 'interaction:' || i.id))";
        let values = vec![
            approval.run_id.to_string().into(),
            approval.interaction_id.as_str().into(),
            caller.workspace.as_str().into(),
            caller.id.to_string().into(),
            caller.agent_id.to_string().into(),
            // Null for a run without a conversation, which equals no key.
            caller.conversation_key.clone().into(),
        ];
        let rows = self.db.readers.query_sql(sql.to_owned(), values).await?;
        rows.first().map(|row| row.text("id")).transpose()
    }

    /// Answered questions of the workspace with these ids, in any order.
    pub async fn find_answer_summaries(
        self,
        workspace: &WorkspaceId,
        ids: impl IntoIterator<Item = String>,
    ) -> Result<Vec<AnswerSummary>, StoreError> {
        let ids = padded(ids);
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let readers = &self.db.readers;
        let member = |column: &str, path: &[&str]| json_member(readers.backend(), column, path);
        let mut values: Vec<Value> = vec![workspace.as_str().into()];
        let placeholders = ids.into_iter().map(|id| {
            values.push(id.into());
            format!("${}", values.len())
        });
        let placeholders = placeholders.collect::<Vec<_>>().join(", ");
        let sql = format!(
            "SELECT i.id, i.run_id, {title} AS title, \
             CASE WHEN e.event_id IS NULL THEN {given} ELSE {submitted} END AS action_id, \
             CASE WHEN e.event_id IS NULL THEN {giver} ELSE {submitter} END AS answered_by, \
             coalesce(e.received_at, i.given_at) AS answered_at \
             FROM {FROM} WHERE i.workspace_id = $1 AND i.id IN ({placeholders}) \
             AND (e.event_id IS NOT NULL OR i.given_at IS NOT NULL)",
            title = member("i.request", &["title"]),
            given = member("i.given_answer", &["action_id"]),
            giver = member("i.given_answer", &["actor"]),
            submitted = member("e.envelope", &["input", "interaction", "action_id"]),
            submitter = member("e.envelope", &["data", "answered_by"]),
        );
        let rows = readers.query_sql(sql, values).await?;
        rows.iter().map(summary).collect()
    }
}

/// Expression for a member of a JSON column: its text, or JSON for an object.
fn json_member(backend: DbBackend, column: &str, path: &[&str]) -> String {
    match backend {
        DbBackend::Postgres => format!("CAST({column} AS json) #>> '{{{}}}'", path.join(",")),
        _ => format!("json_extract({column}, '$.{}')", path.join(".")),
    }
}

fn summary(row: &SqlRow) -> Result<AnswerSummary, StoreError> {
    let id = row.text("id")?;
    Ok(AnswerSummary {
        run_id: parsed("interactions.run_id", &id, &row.text("run_id")?)?,
        title: row.text("title")?,
        action_id: row.text_if_any("action_id")?,
        answered_by: row.text_if_any("answered_by")?.unwrap_or_default(),
        answered_at: row.number("answered_at")?,
        id,
    })
}
