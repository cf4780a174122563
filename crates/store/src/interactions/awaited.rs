//! Answers to questions awaited by a live run. The lock on the run's row orders an answer and the end of the
//! run. An earlier answer is delivered to the run; a later one becomes an event.

use domain::platform_action::ApprovalVerdict;
use protocol::id::{RunId, WorkspaceId};
use sea_orm::{DatabaseTransaction, Value};
use uuid::Uuid;

use super::budget::add_wait;
use super::locked_run::{LockedRun, lock_run};
use super::platform_actions::decide_action;
use crate::approvals::{ApprovalRecord, insert_approval};
use crate::error::{StoreError, signed};
use crate::model::audit::AuditEntry;
use crate::model::ingest::Unanswerable;
use crate::mutation::Mutation;
use crate::repositories::InteractionRepository;
use crate::sql::Sql;

/// A question from the view of the asking run. Times are epoch milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedRecord {
    pub is_awaited: bool,
    pub expires_at: i64,
    /// The question has expired and takes no more answers.
    pub is_closed: bool,
    /// The answer delivered to the run, as JSON.
    pub given: Option<String>,
}

impl InteractionRepository<'_> {
    /// A question of this run, by its runner's id.
    pub async fn find_awaited(
        self,
        run: RunId,
        interaction_id: &str,
    ) -> Result<Option<AwaitedRecord>, StoreError> {
        let sql = "SELECT i.is_awaited, i.expires_at, i.closed_at, i.given_answer FROM interactions i \
            WHERE i.run_id = $1 AND i.interaction_id = $2 AND i.budget IS NULL";
        let values = vec![run.to_string().into(), interaction_id.into()];
        let rows = self.db.readers.query_sql(sql.to_owned(), values).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        Ok(Some(AwaitedRecord {
            is_awaited: row.flag("is_awaited")?,
            expires_at: row.number("expires_at")?,
            is_closed: row.number_if_any("closed_at")?.is_some(),
            given: row.text_if_any("given_answer")?,
        }))
    }
}

/// Delivers an answer to the live run that awaits it.
#[derive(Clone, Debug)]
pub struct DeliverAnswer {
    pub workspace: WorkspaceId,
    /// The gateway's id of the question.
    pub id: String,
    /// The asking run.
    pub run_id: RunId,
    /// Hex SHA-256 of the link's token; `None`: sent with an API key.
    pub token_sha256: Option<String>,
    /// The limit that the answer sets for the run in a question about a budget. `None`: it sets none.
    pub raised_to: Option<u64>,
    /// The decision in a question about a platform action. Without effect on others.
    pub verdict: ApprovalVerdict,
    /// The approval that an answer to a question about a tool call creates. The conversation is that of the run.
    pub approval: Option<ApprovalRecord>,
    /// The answer for the run, as JSON.
    pub answer: String,
    /// Hash that identifies a repeated answer.
    pub answer_sha256: String,
    /// Written if the answer is accepted.
    pub audit: AuditEntry,
    /// Epoch milliseconds.
    pub at: i64,
}

/// Result of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerDelivery {
    /// Stored for the run.
    Stored,
    /// The same answer was stored before.
    Same,
    /// Another answer was stored before.
    Other,
    /// The run ended without an answer: an event may answer now.
    RunEnded,
    /// Refused; nothing is stored.
    Refused(Unanswerable),
}

impl Mutation for DeliverAnswer {
    type Output = AnswerDelivery;
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    fn weight(&self) -> usize {
        self.answer.len()
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<AnswerDelivery, StoreError> {
        // First: this lock orders the answer with the end of the run and with the close of the question.
        let run = lock_run(tx, &self.workspace, self.run_id).await?;
        let sql = "SELECT i.token_sha256, i.expires_at, i.closed_at, i.given_sha256, i.budget, a.id AS action_id \
            FROM interactions i LEFT JOIN platform_actions a ON a.interaction_id = i.id \
            WHERE i.workspace_id = $1 AND i.id = $2 AND i.run_id = $3 AND i.is_awaited";
        let of = || -> Vec<Value> {
            vec![
                self.workspace.as_str().into(),
                self.id.as_str().into(),
                self.run_id.to_string().into(),
            ]
        };
        let rows = tx.query_sql(sql.to_owned(), of()).await?;
        // Deleted with its run, so treated as cancelled.
        let (Some(run), Some(row)) = (run, rows.first()) else {
            return Ok(AnswerDelivery::Refused(Unanswerable::Cancelled));
        };
        let linked = row.text_if_any("token_sha256")?;
        // A link that was replaced must not answer.
        if self.token_sha256.is_some() && self.token_sha256 != linked {
            return Ok(AnswerDelivery::Refused(Unanswerable::LinkReplaced));
        }
        // Before the state of the run: a repeated answer gets the same result after the end.
        match row.text_if_any("given_sha256")? {
            Some(given) if given == self.answer_sha256 => return Ok(AnswerDelivery::Same),
            Some(_) => return Ok(AnswerDelivery::Other),
            None => {}
        }
        let action = row.text_if_any("action_id")?;
        match run {
            LockedRun::Cancelled => return Ok(AnswerDelivery::Refused(Unanswerable::Cancelled)),
            // A platform action outlives its run.
            LockedRun::Ended if action.is_some() => {}
            LockedRun::Ended => return Ok(AnswerDelivery::RunEnded),
            LockedRun::Lives => {}
        }
        // The run was notified of the close, so it holds even if this clock is slow.
        if row.number_if_any("closed_at")?.is_some() || row.number("expires_at")? <= self.at {
            return Ok(AnswerDelivery::Refused(Unanswerable::Expired));
        }
        if let Some(action) = action
            && !decide_action(tx, self.run_id, &action, self.verdict, self.at).await?
        {
            return Ok(AnswerDelivery::Refused(Unanswerable::Expired));
        }
        let sql = "UPDATE interactions SET given_answer = $4, given_sha256 = $5, given_at = $6, raised_to = $7 \
            WHERE workspace_id = $1 AND id = $2 AND run_id = $3";
        let mut values = of();
        values.extend([
            self.answer.as_str().into(),
            self.answer_sha256.as_str().into(),
            self.at.into(),
            self.raised_to.map(signed).into(),
        ]);
        tx.execute_sql(sql.to_owned(), values).await?;
        if row.text_if_any("budget")?.is_some() {
            add_wait(tx, self.run_id, &self.id, self.at).await?;
        }
        if let Some(approval) = &self.approval {
            // In the transaction of the answer: a repeated call after a crash finds both or neither.
            insert_approval(tx, approval).await?;
        }
        crate::audit::insert(tx, [&self.audit]).await?;
        Ok(AnswerDelivery::Stored)
    }
}

/// Closes an expired question before the run is notified, so a late answer is refused. No effect on an answered
/// question.
#[derive(Clone, Debug)]
pub struct CloseAwaited {
    pub workspace: WorkspaceId,
    pub run_id: RunId,
    /// The runner's id of the question.
    pub interaction_id: String,
    /// Epoch milliseconds.
    pub at: i64,
}

impl Mutation for CloseAwaited {
    type Output = ();
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        // Orders the close with an answer in progress.
        lock_run(tx, &self.workspace, self.run_id).await?;
        let sql = "UPDATE interactions SET closed_at = $1 WHERE run_id = $2 AND interaction_id = $3 \
            AND given_at IS NULL AND closed_at IS NULL AND expires_at <= $1";
        let values = vec![
            self.at.into(),
            self.run_id.to_string().into(),
            self.interaction_id.as_str().into(),
        ];
        tx.execute_sql(sql.to_owned(), values).await
    }
}
