//! Questions whether a budget is raised for a live run. The gateway asks them, so they have no ledger event. The lock
//! on the run's row orders questions, answers and the end of the run.

use domain::budget::{
    Amount, AskDecision, BudgetExceeded, BudgetReached, PastQuestion, QuestionEnd, decide_question,
    extended_deadline, question,
};
use domain::canonical::canonical_json;
use protocol::id::{RunId, WorkspaceId};
use sea_orm::{DatabaseTransaction, Value};
use uuid::Uuid;

use super::gateway_question::GATEWAY_QUESTION;
use super::locked_run::{LockedRun, lock_run};
use crate::error::{StoreError, signed, unsigned};
use crate::mutation::Mutation;
use crate::repositories::InteractionRepository;
use crate::sql::{Sql, SqlRow};
use crate::usage::BudgetLine;
use crate::webhooks;

/// Column of the time at which a question begins.
const BEGIN: &str = "asked_at";

/// The budget of a question, and its limit in the small unit of `measure`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuestionedBudget {
    pub budget: String,
    /// `calls`, `tokens`, `cost` or `seconds`.
    pub measure: String,
    /// The limit that refused the call.
    pub limit: u64,
}

impl QuestionedBudget {
    /// Reads columns of a question; `None`: it is a runner's.
    pub(super) fn of(row: &SqlRow, id: &str) -> Result<Option<Self>, StoreError> {
        let (Some(budget), Some(measure), Some(limit)) = (
            row.text_if_any("budget")?,
            row.text_if_any("budget_measure")?,
            row.number_if_any("budget_limit")?,
        ) else {
            return Ok(None);
        };
        Ok(Some(Self {
            budget,
            measure,
            limit: unsigned("interactions.budget_limit", id, limit)?,
        }))
    }
}

/// Asks for a raise, or joins the open question of the run about the same budget.
#[derive(Clone, Debug)]
pub struct AskBudget {
    /// Id of a new question.
    pub id: Uuid,
    pub workspace: WorkspaceId,
    pub run_id: RunId,
    /// The line that refused the call.
    pub line: BudgetLine,
    pub exceeded: BudgetExceeded,
    /// Epoch milliseconds.
    pub at: i64,
}

/// Result of [`AskBudget`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BudgetQuestion {
    /// The call waits for this question.
    Open {
        id: String,
        /// Epoch milliseconds.
        expires_at: i64,
    },
    /// A raise was stored after the refusal: the call is tried again.
    Raised,
    /// The budget refuses, or no time is left to wait.
    Refused,
    /// The run was cancelled or has ended.
    RunOver,
}

impl Mutation for AskBudget {
    type Output = BudgetQuestion;

    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<BudgetQuestion, StoreError> {
        let BudgetReached::Pause { max_wait_ms } = self.line.budget.reached else {
            return Ok(BudgetQuestion::Refused);
        };
        // First: this lock orders the question with answers and with other calls of the run.
        let run = lock_run(tx, &self.workspace, self.run_id).await?;
        if !matches!(run, Some(LockedRun::Lives)) {
            return Ok(BudgetQuestion::RunOver);
        }
        let measure = self.exceeded.what;
        let raised = raised_to(tx, self.run_id, &self.line).await?;
        if measured(raised, measure) > self.exceeded.limit {
            return Ok(BudgetQuestion::Raised);
        }
        let past = self.past(tx).await?;
        let questions: Vec<_> = past.iter().map(|(_, question)| *question).collect();
        let last = past.iter().find(|(_, question)| question.is_same);
        match (decide_question(&questions, max_wait_ms, self.at), last) {
            (AskDecision::Join, Some((id, question))) => Ok(BudgetQuestion::Open {
                id: id.clone(),
                expires_at: question.expires_at,
            }),
            (AskDecision::Ask { expires_at }, _) => {
                self.insert(tx, expires_at).await?;
                Ok(BudgetQuestion::Open {
                    id: self.id.to_string(),
                    expires_at,
                })
            }
            (AskDecision::Expire, Some((id, _))) => {
                close(tx, self.run_id, id, self.at).await?;
                Ok(BudgetQuestion::Refused)
            }
            _ => Ok(BudgetQuestion::Refused),
        }
    }
}

impl AskBudget {
    /// Questions of the run about this budget, newest first.
    async fn past(
        &self,
        tx: &DatabaseTransaction,
    ) -> Result<Vec<(String, PastQuestion)>, StoreError> {
        let sql = format!(
            "SELECT id, {BEGIN}, expires_at, closed_at, given_at, raised_to, budget_subject, budget_window \
             FROM interactions WHERE run_id = $1 AND budget = $2 ORDER BY id DESC"
        );
        let budget = self.line.budget.name.as_str();
        let values = vec![self.run_id.to_string().into(), budget.into()];
        let rows = tx.query_sql(sql, values).await?;
        let read = |row: &SqlRow| {
            let given_at = row.number_if_any("given_at")?;
            let closed_at = row.number_if_any("closed_at")?;
            let is_raised = row.number_if_any("raised_to")?.is_some();
            let is_subject =
                row.text_if_any("budget_subject")?.as_ref() == Some(&self.line.subject);
            let is_window = row.number_if_any("budget_window")? == Some(self.line.window_start);
            let end = match (given_at, closed_at) {
                (Some(at), _) if is_raised => Some(QuestionEnd::Raised { at }),
                (Some(_), _) => Some(QuestionEnd::Refused),
                (None, Some(at)) => Some(QuestionEnd::Closed { at }),
                (None, None) => None,
            };
            let question = PastQuestion {
                is_same: is_subject && is_window,
                asked_at: row.number("asked_at")?,
                expires_at: row.number("expires_at")?,
                end,
            };
            Ok((row.text("id")?, question))
        };
        rows.iter().map(read).collect()
    }

    async fn insert(&self, tx: &DatabaseTransaction, expires_at: i64) -> Result<(), StoreError> {
        let id = self.id.to_string();
        // The gateway's id is random, so it meets no id of the runner.
        let request = question(id.clone(), &self.exceeded, self.line.budget.scope);
        let sql = format!(
            "INSERT INTO interactions (id, workspace_id, run_id, sequence, interaction_id, request, expires_at, \
            asked_at, is_awaited, budget, budget_subject, budget_window, budget_measure, budget_limit) \
            VALUES ($1, $2, $3, {GATEWAY_QUESTION}, $1, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
        );
        let values: Vec<Value> = vec![
            id.as_str().into(),
            self.workspace.as_str().into(),
            self.run_id.to_string().into(),
            canonical_json(&request).into(),
            expires_at.into(),
            self.at.into(),
            true.into(),
            self.line.budget.name.as_str().into(),
            self.line.subject.as_str().into(),
            self.line.window_start.into(),
            self.exceeded.what.into(),
            signed(self.exceeded.limit).into(),
        ];
        tx.execute_sql(sql, values).await?;
        let messages = webhooks::question(self.run_id, &id, self.at, webhooks::AWAITED);
        webhooks::note_rows(tx, messages.collect()).await
    }
}

/// The amount of a budget in the small unit of a measure.
fn measured(amount: Amount, measure: &str) -> u64 {
    match measure {
        "calls" => amount.calls,
        "tokens" => amount.tokens,
        "cost" => amount.cost_micros,
        _ => amount.wall_ms,
    }
}

/// The limits that answers have set for a run in this line; zero: not raised.
pub(crate) async fn raised_to(
    tx: &impl Sql,
    run_id: RunId,
    line: &BudgetLine,
) -> Result<Amount, StoreError> {
    let sql = "SELECT budget_measure, MAX(raised_to) AS raised_to FROM interactions \
        WHERE run_id = $1 AND budget = $2 AND budget_subject = $3 AND budget_window = $4 AND raised_to IS NOT NULL \
        GROUP BY budget_measure";
    let values = vec![
        run_id.to_string().into(),
        line.budget.name.as_str().into(),
        line.subject.as_str().into(),
        line.window_start.into(),
    ];
    let mut raised = Amount::default();
    for row in tx.query_sql(sql.to_owned(), values).await? {
        let to = row.number("raised_to")?;
        let to = unsigned("interactions.raised_to", &run_id.to_string(), to)?;
        match row.text("budget_measure")?.as_str() {
            "calls" => raised.calls = to,
            "tokens" => raised.tokens = to,
            "cost" => raised.cost_micros = to,
            _ => raised.wall_ms = to,
        }
    }
    Ok(raised)
}

/// Adds the wait for a question that ends at `at` to the deadline of its run.
pub(super) async fn add_wait(
    tx: &impl Sql,
    run_id: RunId,
    id: &str,
    at: i64,
) -> Result<(), StoreError> {
    // The clock of the replica that closes the question may be behind: a wait never shortens the deadline.
    let sql = "UPDATE runs SET deadline_at = deadline_at + (SELECT CASE WHEN $3 <= i.asked_at THEN 0 \
        WHEN i.expires_at < $3 THEN i.expires_at - i.asked_at ELSE $3 - i.asked_at END FROM interactions i WHERE i.id = $2) WHERE id = $1 AND finished_at IS NULL";
    let values = vec![run_id.to_string().into(), id.into(), at.into()];
    tx.execute_sql(sql.to_owned(), values).await
}

/// Closes an open question. No effect on another.
async fn close(
    tx: &DatabaseTransaction,
    run_id: RunId,
    id: &str,
    at: i64,
) -> Result<(), StoreError> {
    let sql = "UPDATE interactions SET closed_at = $1 WHERE id = $2 AND run_id = $3 AND budget IS NOT NULL \
        AND given_at IS NULL AND closed_at IS NULL RETURNING id";
    let values = vec![at.into(), id.into(), run_id.to_string().into()];
    if tx.query_sql(sql.to_owned(), values).await?.is_empty() {
        return Ok(());
    }
    add_wait(tx, run_id, id, at).await
}

/// Closes a question whose calls need no answer any more. No effect on an answered question.
#[derive(Clone, Debug)]
pub struct CloseBudgetQuestion {
    pub workspace: WorkspaceId,
    pub run_id: RunId,
    /// The gateway's id of the question.
    pub id: String,
    /// Epoch milliseconds.
    pub at: i64,
}

impl Mutation for CloseBudgetQuestion {
    type Output = ();

    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        // Orders the close with an answer in progress.
        if lock_run(tx, &self.workspace, self.run_id).await?.is_some() {
            close(tx, self.run_id, &self.id, self.at).await?;
        }
        Ok(())
    }
}

/// Waits of a run for raises of budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunWaits {
    /// Deadline of the run with its waits so far, in epoch milliseconds. An open question extends it by some seconds
    /// in advance.
    pub deadline_at: i64,
    /// A question is open.
    pub is_waiting: bool,
}

impl RunWaits {
    /// True if a wait ended after an earlier look at the same run.
    pub fn has_waited_since(&self, earlier: &Self) -> bool {
        // The deadline of an open question runs ahead, so its close may move the deadline back.
        earlier.is_waiting || self.deadline_at > earlier.deadline_at
    }
}

impl InteractionRepository<'_> {
    /// Waits of a run, at `now` in epoch milliseconds. `None`: no such run.
    pub async fn waits_of_run(self, run: RunId, now: i64) -> Result<Option<RunWaits>, StoreError> {
        let sql = format!(
            "SELECT r.deadline_at, i.{BEGIN}, i.expires_at FROM runs r LEFT JOIN interactions i \
             ON i.run_id = r.id AND i.budget IS NOT NULL AND i.given_at IS NULL AND i.closed_at IS NULL WHERE r.id = $1"
        );
        let values = vec![run.to_string().into()];
        let rows = self.db.readers.query_sql(sql, values).await?;
        let Some(first) = rows.first() else {
            return Ok(None);
        };
        let mut open = Vec::new();
        for row in &rows {
            let asked_at = row.number_if_any("asked_at")?;
            open.extend(asked_at.zip(row.number_if_any("expires_at")?));
        }
        Ok(Some(RunWaits {
            deadline_at: extended_deadline(first.number("deadline_at")?, &open, now),
            is_waiting: open.iter().any(|(_, expires_at)| *expires_at > now),
        }))
    }

    /// True while a question accepts an answer, by its state and not by its time.
    pub async fn is_question_open(self, run: RunId, id: &str) -> Result<bool, StoreError> {
        let sql = "SELECT id FROM interactions WHERE run_id = $1 AND id = $2 AND given_at IS NULL AND closed_at IS NULL";
        let values = vec![run.to_string().into(), id.into()];
        let rows = self.db.readers.query_sql(sql.to_owned(), values).await?;
        Ok(!rows.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::RunWaits;

    #[test]
    fn question_closed_after_a_look_counts_as_a_wait() {
        let open = RunWaits {
            deadline_at: 15_000,
            is_waiting: true,
        };
        let closed = RunWaits {
            deadline_at: 12_000,
            is_waiting: false,
        };
        assert!(closed.has_waited_since(&open));
        assert!(!closed.has_waited_since(&closed));
        let before = RunWaits {
            deadline_at: 10_000,
            is_waiting: false,
        };
        assert!(closed.has_waited_since(&before));
    }
}
