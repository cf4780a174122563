//! Interactions: questions of runs to users. The ledger event and its question are written together. An answer
//! is an event with a reserved key, so each question has one answer.

mod approval;
mod awaited;
mod budget;
mod call_question;
mod gateway_question;
mod list;
mod locked_run;
mod platform_actions;

use domain::event::ANSWER_ID_PREFIX;
use protocol::id::{AgentId, RunId, WorkspaceId};
use sea_orm::DatabaseTransaction;

use crate::error::{StoreError, parsed, signed, unsigned};
use crate::model::append::Append;
use crate::model::ingest::{AnyIngest, Unanswerable};
use crate::mutation::Mutation;
use crate::page::Columns;
use crate::repositories::InteractionRepository;
use crate::sql::{Sql, SqlRow, inserted};

pub use approval::{AnswerSummary, ApprovalReference};
pub use awaited::{AnswerDelivery, AwaitedRecord, CloseAwaited, DeliverAnswer};
pub(crate) use budget::raised_to;
pub use budget::{AskBudget, BudgetQuestion, CloseBudgetQuestion, QuestionedBudget, RunWaits};
pub use call_question::{AskAboutCall, AskedAboutCall};
pub use gateway_question::{AskAboutRun, GATEWAY_QUESTION};
pub use list::{
    ExpiryPosition, InteractionFilter, InteractionOrder, InteractionStatus, InteractionsFound,
};

pub(crate) use platform_actions::write_platform_actions;
pub use platform_actions::{
    ActionClaim, ActionFilter, ActionOpened, ActionPosition, ActionResultStored, ActionsFound,
    ClaimPlatformAction, ClaimPurpose, CloseExpiredAction, FinishPlatformAction,
    PlatformActionRecord, RequestPlatformAction,
};

/// A stored question. Times are epoch milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InteractionRecord {
    pub id: String,
    pub run_id: RunId,
    /// Of the ledger event that asks, or [`GATEWAY_QUESTION`].
    pub sequence: u64,
    /// As JSON.
    pub request: String,
    pub asked_at: i64,
    pub expires_at: i64,
    /// The asking agent.
    pub agent_id: AgentId,
    /// The asking run was cancelled or has a cancel request, or has ended with a question about a budget; it takes no
    /// answer.
    pub cancelled: bool,
    /// The event of the asking run.
    pub event_id: String,
    /// The live run awaits the answer itself.
    pub is_awaited: bool,
    /// The run was notified of the expiry: no more answers, regardless of clocks.
    pub is_closed: bool,
    /// The budget of a question of the gateway. `None`: a runner asks.
    pub budget: Option<QuestionedBudget>,
    /// Tool and parameters of the call that the gateway asks about, as canonical JSON. `None`: another question.
    pub held_call: Option<String>,
    pub answered: Option<AnsweredInteraction>,
}

/// An accepted answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnsweredInteraction {
    pub at: i64,
    pub taken: TakenAs,
    /// The answer as stored, as JSON: the envelope of its event, or the answer for the run.
    pub stored: String,
}

/// Form of an accepted answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakenAs {
    /// An event with a run of its own. `answer`: the response to its sender, as JSON.
    Event { event_id: String, answer: String },
    /// Delivered to the live run that awaited it.
    AnswerDelivery,
}

/// Id and dedupe key of the event that answers a question.
pub fn answer_event_id(interaction: &str) -> String {
    format!("{ANSWER_ID_PREFIX}{interaction}")
}

const COLUMNS: Columns = Columns {
    variable: &[
        "i.id",
        "i.run_id",
        "i.request",
        "r.agent_id",
        "r.event_id",
        "e.event_id AS answer_event_id",
        "e.answer",
        "e.envelope",
        "i.given_answer",
        "i.budget",
        "i.budget_measure",
        "i.held_call",
    ],
    fixed: &[
        "i.sequence",
        "i.asked_at",
        "i.expires_at",
        "i.is_awaited",
        "i.given_at",
        "i.closed_at",
        "i.budget_limit",
        "(r.status = 'cancelled' OR r.cancel_requested_at IS NOT NULL \
            OR (i.budget IS NOT NULL AND r.finished_at IS NOT NULL)) AS is_cancelled",
        "e.received_at",
    ],
};

const FROM: &str = "interactions i JOIN runs r ON r.id = i.run_id \
    LEFT JOIN events e ON e.workspace_id = i.workspace_id AND e.event_id = 'interaction:' || i.id \
    AND e.dedupe_key = 'interaction:' || i.id";

impl InteractionRepository<'_> {
    pub async fn find_interaction(
        self,
        workspace: &WorkspaceId,
        id: &str,
    ) -> Result<Option<InteractionRecord>, StoreError> {
        let columns = COLUMNS.selected();
        let sql = format!("SELECT {columns} FROM {FROM} WHERE i.workspace_id = $1 AND i.id = $2");
        let values = vec![workspace.as_str().into(), id.into()];
        let rows = self.db.readers.query_sql(sql, values).await?;
        rows.first().map(record).transpose()
    }

    /// The question of a link, with its workspace.
    pub async fn find_interaction_of_link(
        self,
        token_sha256: &str,
    ) -> Result<Option<(WorkspaceId, InteractionRecord)>, StoreError> {
        let sql = "SELECT workspace_id, id FROM interactions WHERE token_sha256 = $1";
        let values = vec![token_sha256.into()];
        let rows = self.db.readers.query_sql(sql.to_owned(), values).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let workspace = WorkspaceId(row.text("workspace_id")?);
        let found = self.find_interaction(&workspace, &row.text("id")?).await?;
        Ok(found.map(|found| (workspace, found)))
    }
}

fn record(row: &SqlRow) -> Result<InteractionRecord, StoreError> {
    let id = row.text("id")?;
    Ok(InteractionRecord {
        run_id: parsed("interactions.run_id", &id, &row.text("run_id")?)?,
        sequence: unsigned("interactions.sequence", &id, row.number("sequence")?)?,
        request: row.text("request")?,
        asked_at: row.number("asked_at")?,
        expires_at: row.number("expires_at")?,
        agent_id: parsed("runs.agent_id", &id, &row.text("agent_id")?)?,
        cancelled: row.flag("is_cancelled")?,
        event_id: row.text("event_id")?,
        is_awaited: row.flag("is_awaited")?,
        is_closed: row.number_if_any("closed_at")?.is_some(),
        budget: QuestionedBudget::of(row, &id)?,
        held_call: row.text_if_any("held_call")?,
        answered: answered(row)?,
        id,
    })
}

fn answered(row: &SqlRow) -> Result<Option<AnsweredInteraction>, StoreError> {
    // An answer event takes precedence over an answer that was delivered to the run.
    if let Some(event_id) = row.text_if_any("answer_event_id")? {
        return Ok(Some(AnsweredInteraction {
            at: row.number("received_at")?,
            stored: row.text("envelope")?,
            taken: TakenAs::Event {
                event_id,
                answer: row.text("answer")?,
            },
        }));
    }
    let given = row.number_if_any("given_at")?;
    given
        .map(|at| {
            Ok(AnsweredInteraction {
                at,
                stored: row.text("given_answer")?,
                taken: TakenAs::AnswerDelivery,
            })
        })
        .transpose()
}

/// Inserts the questions of a commit.
pub(crate) async fn insert_interactions(
    tx: &impl Sql,
    appends: &[&Append],
) -> Result<(), StoreError> {
    let questions = appends.iter();
    let questions =
        questions.flat_map(|append| append.interactions.iter().map(move |new| (append, new)));
    let rows = questions.map(|(append, new)| {
        [
            new.id.to_string().into(),
            append.workspace.as_str().into(),
            append.run_id.to_string().into(),
            signed(new.sequence).into(),
            new.question.interaction_id.as_str().into(),
            new.question.request.as_str().into(),
            new.question.expires_at.saturating_mul(1000).into(),
            append.at.into(),
            new.question.is_awaited.into(),
        ]
    });
    let into = "interactions (id, workspace_id, run_id, sequence, interaction_id, request, expires_at, asked_at, \
        is_awaited)";
    inserted(tx, into, rows.collect()).await
}

impl AnyIngest {
    /// Checks the answered question again, in the transaction that stores the answer.
    pub(crate) async fn unanswerable(
        &self,
        tx: &impl Sql,
    ) -> Result<Option<Unanswerable>, StoreError> {
        let Some(answers) = &self.answers else {
            return Ok(None);
        };
        let sql = "SELECT i.token_sha256, (r.status = 'cancelled' OR r.cancel_requested_at IS NOT NULL) \
            AS is_cancelled, (i.is_awaited AND (r.finished_at IS NULL OR i.given_at IS NOT NULL)) AS belongs_to_run \
            FROM interactions i JOIN runs r ON r.id = i.run_id \
            WHERE i.workspace_id = $1 AND i.id = $2";
        let values = vec![
            self.workspace.as_str().into(),
            answers.interaction.as_str().into(),
        ];
        let rows = tx.query_sql(sql.to_owned(), values).await?;
        // Deleted with its run, so treated as cancelled.
        let Some(row) = rows.first() else {
            return Ok(Some(Unanswerable::Cancelled));
        };
        let linked = row.text_if_any("token_sha256")?;
        // A link that was replaced must not answer.
        if answers.token_sha256.is_some() && answers.token_sha256 != linked {
            return Ok(Some(Unanswerable::LinkReplaced));
        }
        if row.flag("is_cancelled")? {
            return Ok(Some(Unanswerable::Cancelled));
        }
        let belongs_to_run = row.flag("belongs_to_run")?;
        Ok(belongs_to_run.then_some(Unanswerable::Awaited))
    }
}

/// Replaces the link of a question. The previous link becomes invalid.
#[derive(Clone, Debug)]
pub struct LinkInteraction {
    pub workspace: WorkspaceId,
    pub id: String,
    pub token_sha256: String,
}

impl Mutation for LinkInteraction {
    type Output = ();
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        let sql = "UPDATE interactions SET token_sha256 = $1 WHERE workspace_id = $2 AND id = $3";
        let values = vec![
            self.token_sha256.as_str().into(),
            self.workspace.as_str().into(),
            self.id.as_str().into(),
        ];
        tx.execute_sql(sql.to_owned(), values).await
    }
}

/// Deletes the questions and platform actions of runs with a deleted ledger.
pub(crate) async fn delete_of_runs(
    tx: &DatabaseTransaction,
    runs: &[String],
) -> Result<(), StoreError> {
    for run in runs {
        let sql = "DELETE FROM interactions WHERE run_id = $1";
        tx.execute_sql(sql.to_owned(), vec![run.as_str().into()])
            .await?;
        platform_actions::delete_of_run(tx, run).await?;
    }
    Ok(())
}
