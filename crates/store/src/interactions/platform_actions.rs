//! Platform actions. A host call or a result of the run opens one, a program claims it and reports its result.
//!
//! The lock on the run's row orders all changes of its actions. A question for approval is written with its action, and
//! its answer opens or declines the action in one transaction.

mod claim;
mod list;

use domain::platform_action::ApprovalVerdict;
use protocol::id::{AgentId, RunId, WorkspaceId};
use protocol::platform_action::{MAX_RUN_ACTIONS, PlatformActionStatus};
use sea_orm::{DatabaseTransaction, Value};
use uuid::Uuid;

use super::gateway_question::{GatewayQuestion, insert_gateway_questions};
use super::locked_run::lock_run;
use crate::error::{StoreError, parsed, signed, unsigned};
use crate::model::append::Append;
use crate::model::platform_action::NewPlatformAction;
use crate::mutation::Mutation;
use crate::page::Columns;
use crate::repositories::InteractionRepository;
use crate::sql::{Sql, SqlRow, executed, text};
use crate::state::lock_live_run;
use crate::webhooks;

pub use claim::{
    ActionClaim, ActionResultStored, ClaimPlatformAction, ClaimPurpose, FinishPlatformAction,
};
pub use list::{ActionFilter, ActionPosition, ActionsFound};

/// Maximum unannounced actions of one read.
const UNANNOUNCED: u64 = 8;

/// A platform action. Times are epoch milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlatformActionRecord {
    pub id: String,
    pub run_id: RunId,
    pub agent_id: AgentId,
    /// The event of the run.
    pub event_id: String,
    /// Of its event in the ledger. `None`: not written yet.
    pub sequence: Option<u64>,
    pub action: String,
    /// `target` and `payload` as JSON.
    pub request: String,
    pub interaction_id: Option<String>,
    pub created_at: i64,
    pub expires_at: i64,
    pub claimed_at: Option<i64>,
    /// `output` or `error` as JSON.
    pub result: Option<String>,
    pub finished_at: Option<i64>,
    stored: PlatformActionStatus,
    is_run_cancelled: bool,
    request_sha256: String,
    claim_sha256: Option<String>,
    result_sha256: Option<String>,
}

impl PlatformActionRecord {
    /// Status at this time. A row changes only by an act, so the end of a period shows by its time.
    pub fn status_at(&self, now: i64) -> PlatformActionStatus {
        let is_over = self.expires_at <= now;
        match self.stored {
            PlatformActionStatus::AwaitingApproval | PlatformActionStatus::Open
                if self.is_run_cancelled =>
            {
                PlatformActionStatus::Cancelled
            }
            status if is_over && !status.is_final() => PlatformActionStatus::Expired,
            status => status,
        }
    }

    /// True if its period has ended and the row does not say so yet.
    pub fn has_lapsed(&self, now: i64) -> bool {
        self.status_at(now) == PlatformActionStatus::Expired && !self.stored.is_final()
    }
}

const COLUMNS: Columns = Columns {
    variable: &[
        "a.id",
        "a.run_id",
        "r.agent_id",
        "r.event_id",
        "a.action",
        "a.request",
        "a.interaction_id",
        "a.result",
        "a.status",
        "a.request_sha256",
        "a.claim_sha256",
        "a.result_sha256",
    ],
    fixed: &[
        "a.sequence",
        "a.created_at",
        "a.expires_at",
        "a.claimed_at",
        "a.finished_at",
        "(r.status = 'cancelled' OR r.cancel_requested_at IS NOT NULL) AS is_cancelled",
    ],
};

const FROM: &str = "platform_actions a JOIN runs r ON r.id = a.run_id";

fn record(row: &SqlRow) -> Result<PlatformActionRecord, StoreError> {
    let id = row.text("id")?;
    let status = PlatformActionStatus::parse(&row.text("status")?);
    let sequence = row.number_if_any("sequence")?;
    let sequence = sequence.map(|number| unsigned("platform_actions.sequence", &id, number));
    Ok(PlatformActionRecord {
        run_id: parsed("platform_actions.run_id", &id, &row.text("run_id")?)?,
        agent_id: parsed("runs.agent_id", &id, &row.text("agent_id")?)?,
        event_id: row.text("event_id")?,
        sequence: sequence.transpose()?,
        action: row.text("action")?,
        request: row.text("request")?,
        interaction_id: row.text_if_any("interaction_id")?,
        created_at: row.number("created_at")?,
        expires_at: row.number("expires_at")?,
        claimed_at: row.number_if_any("claimed_at")?,
        result: row.text_if_any("result")?,
        finished_at: row.number_if_any("finished_at")?,
        stored: status.ok_or_else(|| StoreError::Corrupt {
            column: "platform_actions.status",
            row: id.clone(),
        })?,
        is_run_cancelled: row.flag("is_cancelled")?,
        request_sha256: row.text("request_sha256")?,
        claim_sha256: row.text_if_any("claim_sha256")?,
        result_sha256: row.text_if_any("result_sha256")?,
        id,
    })
}

/// The records of a statement after `WHERE`.
async fn found(
    conn: &impl Sql,
    condition: &str,
    values: Vec<Value>,
) -> Result<Vec<PlatformActionRecord>, StoreError> {
    let columns = COLUMNS.selected();
    let sql = format!("SELECT {columns} FROM {FROM} WHERE {condition}");
    let rows = conn.query_sql(sql, values).await?;
    rows.iter().map(record).collect()
}

async fn find(
    conn: &impl Sql,
    workspace: &WorkspaceId,
    id: &str,
) -> Result<Option<PlatformActionRecord>, StoreError> {
    let values = vec![workspace.as_str().into(), id.into()];
    let rows = found(conn, "a.workspace_id = $1 AND a.id = $2", values).await?;
    Ok(rows.into_iter().next())
}

impl InteractionRepository<'_> {
    pub async fn find_platform_action(
        self,
        workspace: &WorkspaceId,
        id: &str,
    ) -> Result<Option<PlatformActionRecord>, StoreError> {
        find(&self.db.readers, workspace, id).await
    }

    /// Actions that host calls of a run requested and whose events are not in its ledger, at most 8.
    pub async fn unannounced_actions(
        self,
        run: RunId,
    ) -> Result<Vec<PlatformActionRecord>, StoreError> {
        let condition = format!(
            "a.run_id = $1 AND a.sequence IS NULL ORDER BY a.created_at, a.id LIMIT {UNANNOUNCED}"
        );
        found(&self.db.readers, &condition, vec![text(run)]).await
    }
}

/// Opens an action of a live run by its host call.
#[derive(Clone, Debug)]
pub struct RequestPlatformAction {
    pub workspace: WorkspaceId,
    pub run_id: RunId,
    pub action: NewPlatformAction,
    /// Epoch milliseconds.
    pub at: i64,
}

/// Result of [`RequestPlatformAction`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionOpened {
    /// Stored now or by an earlier request with the same key.
    Stored,
    /// Another request has the same idempotency key.
    Mismatch,
    /// The run has requested as many actions as it may.
    Full,
    RunEnded,
}

impl Mutation for RequestPlatformAction {
    type Output = ActionOpened;
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    fn weight(&self) -> usize {
        self.action.action.request.len()
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<ActionOpened, StoreError> {
        if !lock_live_run(tx, self.run_id).await? {
            return Ok(ActionOpened::RunEnded);
        }
        let id = self.action.id.to_string();
        // Found also after a commit whose reply was lost.
        if let Some(earlier) = find(tx, &self.workspace, &id).await? {
            let is_same = earlier.request_sha256 == self.action.request_sha256();
            return Ok(if is_same {
                ActionOpened::Stored
            } else {
                ActionOpened::Mismatch
            });
        }
        let count = "SELECT CAST(COUNT(*) AS BIGINT) AS n FROM platform_actions WHERE run_id = $1";
        let count = tx
            .query_sql(count.to_owned(), vec![text(self.run_id)])
            .await?;
        let count = count.first().map_or(Ok(0), |row| row.number("n"))?;
        // Those of results count too, so a run has twice as many at most.
        if count >= signed(MAX_RUN_ACTIONS as u64) {
            return Ok(ActionOpened::Full);
        }
        let new = OpenedAction {
            workspace: &self.workspace,
            run: self.run_id,
            action: &self.action,
            at: self.at,
        };
        insert(tx, vec![new]).await?;
        Ok(ActionOpened::Stored)
    }
}

struct OpenedAction<'a> {
    workspace: &'a WorkspaceId,
    run: RunId,
    action: &'a NewPlatformAction,
    /// Epoch milliseconds.
    at: i64,
}

/// Inserts actions with their questions. A key that the run has used before inserts nothing.
async fn insert(tx: &impl Sql, opened: Vec<OpenedAction<'_>>) -> Result<(), StoreError> {
    let mut questions = Vec::new();
    let rows = opened.iter().map(|one| {
        let OpenedAction { action, at, .. } = one;
        let question = action.question(*at);
        // An action that waits for approval lasts as long as its question.
        let expires_at = match &question {
            Some((_, question)) => question.expires_at.saturating_mul(1000),
            None => at.saturating_add(action.timeout_ms()),
        };
        let question_id = question.as_ref().map(|(id, _)| id.to_string());
        questions.extend(question.map(|(id, question)| GatewayQuestion {
            id,
            workspace: one.workspace.clone(),
            run_id: one.run,
            question,
            at: *at,
        }));
        [
            Value::from(action.id.to_string()),
            one.workspace.as_str().into(),
            text(one.run),
            action.key().into(),
            action.sequence.map(signed).into(),
            action.action.action.as_str().into(),
            action.action.request.as_str().into(),
            action.request_sha256().into(),
            action.status().as_str().into(),
            question_id.into(),
            action.timeout_ms().into(),
            expires_at.into(),
            (*at).into(),
        ]
    });
    let rows = rows.collect();
    let sql = "INSERT INTO platform_actions (id, workspace_id, run_id, idempotency_key, sequence, action, request, \
        request_sha256, status, interaction_id, timeout_ms, expires_at, created_at) VALUES rows \
        ON CONFLICT (run_id, idempotency_key) DO NOTHING";
    executed(tx, rows, sql).await?;
    let open = opened
        .iter()
        .filter(|one| one.action.status() == PlatformActionStatus::Open);
    let open: Vec<_> = open.map(|one| (one, one.action.id.to_string())).collect();
    let messages = open
        .iter()
        .map(|(one, id)| webhooks::requested_action(one.run, id, one.at));
    webhooks::note_rows(tx, messages.collect()).await?;
    insert_gateway_questions(tx, &questions).await
}

/// Writes the actions of results, and the sequences of events that announce actions of host calls.
pub(crate) async fn write_platform_actions(
    tx: &impl Sql,
    appends: &[&Append],
) -> Result<(), StoreError> {
    let opened = appends.iter().flat_map(|append| {
        append.actions.iter().map(|action| OpenedAction {
            workspace: &append.workspace,
            run: append.run_id,
            action,
            at: append.at,
        })
    });
    insert(tx, opened.collect()).await?;
    let announced = appends.iter().flat_map(|append| &append.announced);
    let rows = announced.map(|(id, sequence)| [id.as_str().into(), signed(*sequence).into()]);
    let sql = "UPDATE platform_actions SET sequence = ?2 FROM rows WHERE platform_actions.id = ?1";
    executed(tx, rows.collect(), sql).await
}

/// Applies the answer to a question for approval. False: the action does not wait for it any more.
pub(super) async fn decide_action(
    tx: &impl Sql,
    run: RunId,
    id: &str,
    verdict: ApprovalVerdict,
    at: i64,
) -> Result<bool, StoreError> {
    let change = match verdict {
        ApprovalVerdict::Approved => "status = 'open', expires_at = $2 + timeout_ms",
        ApprovalVerdict::Declined => "status = 'declined', finished_at = $2",
    };
    let sql = format!(
        "UPDATE platform_actions SET {change} WHERE id = $1 AND status = 'awaiting_approval' RETURNING id"
    );
    let changed = tx.query_sql(sql, vec![id.into(), at.into()]).await?;
    let is_changed = !changed.is_empty();
    if is_changed && verdict == ApprovalVerdict::Approved {
        let message = webhooks::requested_action(run, id, at);
        webhooks::note_rows(tx, vec![message]).await?;
    }
    Ok(is_changed)
}

/// Makes the end of a period final before the run receives it, so that no late act follows.
#[derive(Clone, Debug)]
pub struct CloseExpiredAction {
    pub workspace: WorkspaceId,
    pub run_id: RunId,
    pub id: String,
    /// Epoch milliseconds.
    pub at: i64,
}

impl Mutation for CloseExpiredAction {
    type Output = ();
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        lock_run(tx, &self.workspace, self.run_id).await?;
        let sql = "UPDATE platform_actions SET status = 'expired', finished_at = $1 WHERE id = $2 AND run_id = $3 \
            AND status IN ('awaiting_approval', 'open', 'claimed') AND expires_at <= $1";
        let values = vec![self.at.into(), self.id.as_str().into(), text(self.run_id)];
        tx.execute_sql(sql.to_owned(), values).await
    }
}

/// Deletes the actions of a run with a deleted ledger.
pub(super) async fn delete_of_run(tx: &DatabaseTransaction, run: &str) -> Result<(), StoreError> {
    let sql = "DELETE FROM platform_actions WHERE run_id = $1";
    tx.execute_sql(sql.to_owned(), vec![run.into()]).await
}
