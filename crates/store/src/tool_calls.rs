//! Tool calls with an idempotency key: the intent is committed before the call, the result after it.

use std::sync::Arc;
use std::time::Duration;

use domain::tool_call::{EarlierCall, RepeatedCallDecision, decide};
use protocol::id::{AgentId, RunId};
use protocol::resources::ToolEffect;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveValue::Set, ColumnTrait, DatabaseTransaction, EntityTrait, ExprTrait, PaginatorTrait,
    QueryFilter, QuerySelect,
};
use secrets::digest::sha256_hex;
use uuid::Uuid;

use crate::database_clock::{millis, read_now};
use crate::entity::tool_calls;
use crate::error::StoreError;
use crate::mutation::Mutation;
use crate::repositories::RetentionRepository;
use crate::state::lock_live_run;

/// Maximum keys of one run: each stores a result.
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

/// The intent to call a tool.
pub struct BeginToolCall {
    pub run_id: RunId,
    pub key_of: KeyOf,
    pub key: String,
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
}

/// Result of an intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolCallBegun {
    /// Make the call and finish it with this id.
    Call,
    /// The result of an earlier call, as JSON text.
    Stored(String),
    Refused(RepeatedCallDecision),
    /// The run has used the maximum number of keys.
    TooMany,
    RunEnded,
}

impl Mutation for BeginToolCall {
    type Output = ToolCallBegun;
    const CHANGES_AGENTS: bool = false;

    fn lock(&self) -> Option<String> {
        self.key_of.lock(self.run_id)
    }

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<ToolCallBegun, StoreError> {
        if !lock_live_run(tx, self.run_id).await? {
            return Ok(ToolCallBegun::RunEnded);
        }
        let id = self.key_of.row(self.run_id, &self.key);
        let sharers = id.0.clone();
        if self.key_of != KeyOf::Run {
            self.forget_old(tx, &sharers).await?;
        }
        let Some(row) = tool_calls::Entity::find_by_id(id).one(tx).await? else {
            let used = tool_calls::Entity::find()
                .filter(tool_calls::Column::RunId.eq(sharers))
                .count(tx)
                .await?;
            if used >= TOOL_CALLS {
                return Ok(ToolCallBegun::TooMany);
            }
            tool_calls::Entity::insert(self.row())
                .exec_without_returning(tx)
                .await?;
            return Ok(ToolCallBegun::Call);
        };
        match (decide(self.standing(&row), self.effect), row.result) {
            (RepeatedCallDecision::Call, _) => {
                tool_calls::Entity::update(self.row()).exec(tx).await?;
                Ok(ToolCallBegun::Call)
            }
            (RepeatedCallDecision::Answer, Some(result)) => Ok(ToolCallBegun::Stored(result)),
            (refused, _) => Ok(ToolCallBegun::Refused(refused)),
        }
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        _output: &Self::Output,
    ) -> Result<bool, StoreError> {
        let id = self.key_of.row(self.run_id, &self.key);
        let row = tool_calls::Entity::find_by_id(id).one(tx).await?;
        Ok(row.is_some_and(|row| row.call_id == self.call_id.to_string()))
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

    fn row(&self) -> tool_calls::ActiveModel {
        let (run_id, key) = self.key_of.row(self.run_id, &self.key);
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
        let goes_on = if row.owner == self.owner {
            let call = Uuid::parse_str(&row.call_id);
            call.is_ok_and(|call| (self.goes_on)(call))
        } else {
            row.expires_at > self.at
        };
        if goes_on {
            EarlierCall::GoesOn
        } else {
            EarlierCall::Unknown
        }
    }
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

/// The end of a begun call.
#[derive(Clone, Debug)]
pub struct FinishToolCall {
    pub run_id: RunId,
    pub key_of: KeyOf,
    pub key: String,
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
        let (run, key) = self.key_of.row(self.run_id, &self.key);
        let run = tool_calls::Column::RunId.eq(run);
        let key = tool_calls::Column::Key.eq(key);
        let call = tool_calls::Column::CallId.eq(self.call_id.to_string());
        let ours = run.and(key).and(call);
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

struct SweepToolCalls;

/// Maximum rows per transaction.
const BATCH: u64 = 200;

impl Mutation for SweepToolCalls {
    type Output = u64;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        let now = read_now(tx).await?;
        let old: Vec<(String, String)> = tool_calls::Entity::find()
            .select_only()
            .column(tool_calls::Column::RunId)
            .column(tool_calls::Column::Key)
            .filter(tool_calls::Column::KeptUntil.lt(now))
            .limit(BATCH)
            .into_tuple()
            .all(tx)
            .await?;
        let count = old.len() as u64;
        for row in old {
            tool_calls::Entity::delete_by_id(row).exec(tx).await?;
        }
        Ok(count)
    }
}

impl RetentionRepository<'_> {
    /// Deletes a batch of expired results of conversations; returns their number.
    pub async fn sweep_tool_calls(self) -> Result<u64, StoreError> {
        self.db.write(SweepToolCalls).await
    }
}
