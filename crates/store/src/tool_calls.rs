//! Tool calls with a ticket: the intent is committed before the call, the result after it.

use std::sync::Arc;
use std::time::Duration;

use domain::tool_call::{
    EarlierCall, RepeatedCallDecision, SameCall, SameCallTicket, decide, next_ticket,
};
use protocol::id::{AgentId, ApprovalId, RunId};
use protocol::resources::ToolEffect;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveValue::{NotSet, Set},
    ColumnTrait, DatabaseTransaction, EntityTrait, ExprTrait, PaginatorTrait, QueryFilter,
};
use secrets::digest::sha256_hex;
use uuid::Uuid;

use crate::approvals::use_approval;
use crate::database_clock::millis;
use crate::entity::tool_calls;
use crate::error::{StoreError, parsed, unsigned};
use crate::mutation::Mutation;
use crate::sql::{Sql as _, text};
use crate::state::lock_live_run_at;

mod sweep;

/// Maximum recorded calls of one run: each stores a result. A call without a key replaces the oldest one of its kind.
pub const TOOL_CALLS: u64 = 1000;

/// True while this process runs the call.
pub type GoesOn = Arc<dyn Fn(Uuid) -> bool + Send + Sync>;

/// Retention of results for later runs of a conversation.
const RETENTION: Duration = Duration::from_hours(7 * 24);

/// Scope of an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyOf {
    /// The calling run.
    Run,
    /// All runs of an agent in a conversation, per tool.
    Conversation {
        conversation_key: String,
        agent: AgentId,
        tool: String,
    },
}

impl KeyOf {
    /// Primary key of a row.
    fn row(&self, run: RunId, key: &str) -> (String, String) {
        match self {
            Self::Run => (run.to_string(), key.to_owned()),
            Self::Conversation {
                conversation_key,
                agent,
                tool,
            } => (
                format!("conversation {conversation_key} {agent}"),
                format!("{tool} {key}"),
            ),
        }
    }

    /// Key that is unique among all scopes, for the service of the tool: runs may use the same keys.
    pub fn unique_key(&self, run: RunId, key: &str) -> String {
        let (scope, key) = self.row(run, key);
        sha256_hex(format!("{scope}\n{key}").as_bytes())
    }

    /// Advisory lock for runs of one conversation with the same key.
    fn lock(&self, run: RunId) -> Option<String> {
        match self {
            Self::Run => None,
            Self::Conversation { .. } => Some(format!("tool calls {}", self.row(run, "").0)),
        }
    }

    /// Expiry of a row that is not deleted with its run.
    fn retention_end(&self, at: i64) -> Option<i64> {
        match self {
            Self::Run => None,
            Self::Conversation { .. } => Some(at.saturating_add(millis(RETENTION))),
        }
    }
}

/// Key of a call in its scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TicketKey {
    /// The runner's idempotency key.
    Given(String),
    /// Without a key: the ordinal of the call among the same calls of the run.
    Counted {
        /// Attempt of the caller.
        attempt: u32,
    },
}

/// The intent to call a tool.
pub struct BeginToolCall {
    pub run_id: RunId,
    pub key_of: KeyOf,
    pub key: TicketKey,
    /// Unique per call.
    pub call_id: Uuid,
    /// SHA-256 of the tool's name and parameters.
    pub request_sha256: String,
    pub effect: Option<ToolEffect>,
    /// The calling process.
    pub owner: String,
    pub goes_on: GoesOn,
    pub at: i64,
    /// Deadline of the call.
    pub expires_at: i64,
    /// Id of an earlier call with an unknown outcome that the tool did not execute: this call replaces it.
    pub replaces: Option<Uuid>,
    /// Approvals that cover the call, one of which it uses. `None`: the call needs none.
    pub approvals: Option<Vec<ApprovalId>>,
}

/// Result of an intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolCallBegun {
    /// Make the call under this key, and finish it with its id. `approval`: the one that the call used.
    Call {
        key: String,
        approval: Option<ApprovalId>,
    },
    /// No approval covers the call any more.
    NeedsApproval,
    /// The result of an earlier call, as JSON text.
    Stored {
        key: String,
        result: String,
    },
    /// Another process makes the call, at most until its deadline.
    Elsewhere,
    /// The call with this id may have been executed.
    Unknown {
        key: String,
        call_id: Uuid,
    },
    /// The key is in use by another request, or by a call of this process.
    Refused(RepeatedCallDecision),
    /// The run has used the maximum number of keys.
    TooMany,
    RunEnded,
}

/// A key of the scope, with the earlier call under it.
struct TicketRow {
    key: String,
    row: Option<tool_calls::Model>,
}

impl Mutation for BeginToolCall {
    type Output = ToolCallBegun;
    const CHANGES_AGENTS: bool = false;

    fn lock(&self) -> Option<String> {
        // Runs of other conversations may use the same approval.
        let approval = self
            .approvals
            .as_ref()
            .and_then(|covering| covering.first());
        let of_approval = approval.map(|id| format!("approval {id}"));
        self.key_of.lock(self.run_id).or(of_approval)
    }

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<ToolCallBegun, StoreError> {
        let Some(after_sequence) = lock_live_run_at(tx, self.run_id).await? else {
            return Ok(ToolCallBegun::RunEnded);
        };
        let sharers = self.key_of.row(self.run_id, "").0;
        if self.key_of != KeyOf::Run {
            self.forget_old(tx, &sharers).await?;
        }
        let TicketRow { key, row } = match &self.key {
            TicketKey::Given(key) => self.find(tx, key.clone()).await?,
            TicketKey::Counted { attempt } => self.find_counted(tx, *attempt).await?,
        };
        let Some(row) = row else {
            if !self.has_space(tx, &sharers).await? {
                return Ok(ToolCallBegun::TooMany);
            }
            // With the ticket: a call that is repeated under its ticket uses no second approval.
            let approval = match &self.approvals {
                Some(covering) => match use_approval(tx, covering, self.at).await? {
                    Some(approval) => Some(approval),
                    None => return Ok(ToolCallBegun::NeedsApproval),
                },
                None => None,
            };
            let mut row = self.row(&key, after_sequence);
            row.approval_id = Set(approval.map(|approval| approval.to_string()));
            tool_calls::Entity::insert(row)
                .exec_without_returning(tx)
                .await?;
            return Ok(ToolCallBegun::Call { key, approval });
        };
        let standing = self.standing(&row);
        match (decide(standing, self.effect), row.result) {
            (RepeatedCallDecision::Call, _) => {
                // The approval of the earlier call stays: this one replaces it.
                let approval = row.approval_id.as_deref();
                let approval = approval.map(|id| parsed("tool_calls.approval_id", &key, id));
                let approval = approval.transpose()?;
                tool_calls::Entity::update(self.row(&key, after_sequence))
                    .exec(tx)
                    .await?;
                Ok(ToolCallBegun::Call { key, approval })
            }
            (RepeatedCallDecision::Answer, Some(result)) => {
                self.note_attempt(tx, &key).await?;
                Ok(ToolCallBegun::Stored { key, result })
            }
            (RepeatedCallDecision::OutcomeUnknown, _) => {
                self.note_attempt(tx, &key).await?;
                let call_id = parsed("tool_calls.call_id", &key, &row.call_id)?;
                Ok(ToolCallBegun::Unknown { key, call_id })
            }
            (RepeatedCallDecision::InProgress, _) if row.owner != self.owner => {
                Ok(ToolCallBegun::Elsewhere)
            }
            (refused, _) => Ok(ToolCallBegun::Refused(refused)),
        }
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        output: &Self::Output,
    ) -> Result<bool, StoreError> {
        let (ToolCallBegun::Call { key, .. }
        | ToolCallBegun::Stored { key, .. }
        | ToolCallBegun::Unknown { key, .. }) = output
        else {
            return Ok(false);
        };
        let Some(row) = self.find(tx, key.clone()).await?.row else {
            return Ok(false);
        };
        Ok(match (output, self.attempt()) {
            (ToolCallBegun::Call { .. }, _) => row.call_id == self.call_id.to_string(),
            // A counted call that is applied again would find its ticket used, and take the next one.
            (_, Some(attempt)) => row.attempt >= Some(attempt),
            (_, None) => false,
        })
    }
}

impl BeginToolCall {
    /// Deletes expired rows of the conversation.
    async fn forget_old(&self, tx: &DatabaseTransaction, sharers: &str) -> Result<(), StoreError> {
        tool_calls::Entity::delete_many()
            .filter(tool_calls::Column::RunId.eq(sharers))
            .filter(tool_calls::Column::KeptUntil.lt(self.at))
            .exec(tx)
            .await?;
        Ok(())
    }

    async fn find(&self, tx: &DatabaseTransaction, key: String) -> Result<TicketRow, StoreError> {
        let id = self.key_of.row(self.run_id, &key);
        let row = tool_calls::Entity::find_by_id(id).one(tx).await?;
        Ok(TicketRow { key, row })
    }

    /// The ticket of a call without a key: that of an earlier same call that it repeats, or a new one.
    async fn find_counted(
        &self,
        tx: &DatabaseTransaction,
        attempt: u32,
    ) -> Result<TicketRow, StoreError> {
        let sql = "SELECT key, call_id, attempt, result IS NOT NULL AS is_done FROM tool_calls \
            WHERE run_id = $1 AND request_sha256 = $2 AND attempt IS NOT NULL";
        let values = vec![text(self.run_id), self.request_sha256.as_str().into()];
        let rows = tx.query_sql(sql.to_owned(), values).await?;
        let mut same = Vec::with_capacity(rows.len());
        for row in &rows {
            let key = row.text("key")?;
            let call_id: Uuid = parsed("tool_calls.call_id", &key, &row.text("call_id")?)?;
            if self.replaces == Some(call_id) {
                return self.find(tx, key).await;
            }
            same.push(SameCall {
                ordinal: ordinal_of(&key)?,
                attempt: unsigned("tool_calls.attempt", &key, row.number("attempt")?)?,
                is_open: !row.flag("is_done")? && !(self.goes_on)(call_id),
            });
        }
        let began = if rows.is_empty() {
            0
        } else {
            self.first_attempt(tx, attempt).await?
        };
        match next_ticket(&same, began) {
            SameCallTicket::Repeated(ordinal) => self.find(tx, self.counted_key(ordinal)).await,
            SameCallTicket::New(ordinal) => Ok(TicketRow {
                key: self.counted_key(ordinal),
                row: None,
            }),
        }
    }

    /// The attempt in which the runner began the run anew. A resume continues the work of the attempt before it, and
    /// has no context.
    async fn first_attempt(
        &self,
        tx: &DatabaseTransaction,
        attempt: u32,
    ) -> Result<u64, StoreError> {
        let sql = "SELECT MAX(attempt) AS attempt FROM run_attempts \
            WHERE run_id = $1 AND attempt <= $2 AND context <> 'null'";
        let values = vec![text(self.run_id), i64::from(attempt).into()];
        let rows = tx.query_sql(sql.to_owned(), values).await?;
        let first = rows
            .first()
            .map(|row| row.number_if_any("attempt"))
            .transpose()?;
        let run = self.run_id.to_string();
        unsigned("run_attempts.attempt", &run, first.flatten().unwrap_or(0))
    }

    /// The key of a counted call. No key of a runner has control characters.
    fn counted_key(&self, ordinal: u64) -> String {
        format!("{}\t{ordinal}", self.request_sha256)
    }

    /// True if the scope has space for another call. A counted call makes its space.
    async fn has_space(&self, tx: &DatabaseTransaction, sharers: &str) -> Result<bool, StoreError> {
        let used = tool_calls::Entity::find()
            .filter(tool_calls::Column::RunId.eq(sharers))
            .count(tx)
            .await?;
        if used < TOOL_CALLS {
            return Ok(true);
        }
        if self.attempt().is_none() {
            return Ok(false);
        }
        // Calls without a result are not deleted: their outcome is still to be found out.
        let sql = "DELETE FROM tool_calls WHERE run_id = $1 AND key = (SELECT key FROM tool_calls \
            WHERE run_id = $1 AND attempt IS NOT NULL AND result IS NOT NULL ORDER BY at, key LIMIT 1) RETURNING key";
        let deleted = tx.query_sql(sql.to_owned(), vec![text(self.run_id)]);
        Ok(!deleted.await?.is_empty())
    }

    /// Notes that the attempt has repeated a counted call, so that its next same call repeats the next one.
    async fn note_attempt(&self, tx: &DatabaseTransaction, key: &str) -> Result<(), StoreError> {
        let Some(attempt) = self.attempt() else {
            return Ok(());
        };
        let sql = "UPDATE tool_calls SET attempt = $3 WHERE run_id = $1 AND key = $2";
        let values = vec![text(self.run_id), key.into(), attempt.into()];
        tx.execute_sql(sql.to_owned(), values).await
    }

    /// The attempt of a counted call.
    fn attempt(&self) -> Option<i64> {
        match self.key {
            TicketKey::Given(_) => None,
            TicketKey::Counted { attempt } => Some(attempt.into()),
        }
    }

    fn row(&self, key: &str, after_sequence: i64) -> tool_calls::ActiveModel {
        let (run_id, key) = self.key_of.row(self.run_id, key);
        tool_calls::ActiveModel {
            run_id: Set(run_id),
            key: Set(key),
            kept_until: Set(self.key_of.retention_end(self.at)),
            call_id: Set(self.call_id.to_string()),
            request_sha256: Set(self.request_sha256.clone()),
            owner: Set(self.owner.clone()),
            expires_at: Set(self.expires_at),
            result: Set(None),
            at: Set(self.at),
            attempt: Set(self.attempt()),
            after_sequence: Set(Some(after_sequence)),
            approval_id: NotSet,
        }
    }

    /// A call of this process is running while its task exists; a call of another process, until its deadline.
    fn standing(&self, row: &tool_calls::Model) -> EarlierCall {
        if row.request_sha256 != self.request_sha256 {
            return EarlierCall::OtherRequest;
        }
        if row.result.is_some() {
            return EarlierCall::Done;
        }
        let call = Uuid::parse_str(&row.call_id).ok();
        let goes_on = if row.owner == self.owner {
            call.is_some_and(|call| (self.goes_on)(call))
        } else {
            row.expires_at > self.at
        };
        if goes_on {
            EarlierCall::GoesOn
        } else if self.replaces.is_some() && self.replaces == call {
            EarlierCall::NotDone
        } else {
            EarlierCall::Unknown
        }
    }
}

fn ordinal_of(key: &str) -> Result<u64, StoreError> {
    let ordinal = key.rsplit('\t').next().unwrap_or_default();
    parsed("tool_calls.key", key, ordinal)
}

/// Outcome of a call.
#[derive(Clone, Debug)]
pub enum ToolCallEnd {
    /// Result as JSON text, returned for this key from now on.
    Done(String),
    /// The call had no effect: the key is free again.
    Undone,
    /// The outcome is unknown.
    Unknown,
}

/// The end of a begun call, or of one with an unknown outcome.
#[derive(Clone, Debug)]
pub struct FinishToolCall {
    pub run_id: RunId,
    pub key_of: KeyOf,
    pub call_id: Uuid,
    pub end: ToolCallEnd,
}

impl Mutation for FinishToolCall {
    type Output = ();
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    fn weight(&self) -> usize {
        match &self.end {
            ToolCallEnd::Done(result) => result.len(),
            ToolCallEnd::Undone | ToolCallEnd::Unknown => 0,
        }
    }

    /// Idempotent.
    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        // Without the key: the call may end before its caller knows the key of a counted call.
        let run = tool_calls::Column::RunId.eq(self.key_of.row(self.run_id, "").0);
        let call = tool_calls::Column::CallId.eq(self.call_id.to_string());
        let ours = run.and(call);
        let changed = tool_calls::Entity::update_many().filter(ours.clone());
        match &self.end {
            ToolCallEnd::Done(result) => {
                let result = Expr::value(result.clone());
                let changed = changed.col_expr(tool_calls::Column::Result, result);
                changed.exec(tx).await?;
            }
            ToolCallEnd::Unknown => {
                let changed = changed.col_expr(tool_calls::Column::ExpiresAt, Expr::value(0_i64));
                changed.exec(tx).await?;
            }
            ToolCallEnd::Undone => {
                let gone = tool_calls::Entity::delete_many().filter(ours);
                gone.exec(tx).await?;
            }
        }
        Ok(())
    }
}
