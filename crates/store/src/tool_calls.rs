//! Calls of tools under an idempotency key: the intent is committed before the call, the result after it.

use std::sync::Arc;

use domain::tool_call::{Decision, Earlier, decide};
use protocol::id::RunId;
use protocol::resources::ToolEffect;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveValue::Set, ColumnTrait, DatabaseTransaction, EntityTrait, ExprTrait, PaginatorTrait,
    QueryFilter,
};
use uuid::Uuid;

use crate::entity::tool_calls;
use crate::error::StoreError;
use crate::state::hold_live_run;
use crate::writer::Work;

/// Keys that one run may use: each keeps a result.
pub const TOOL_CALLS: u64 = 1000;

/// Whether a call of this process still goes on.
pub type GoesOn = Arc<dyn Fn(Uuid) -> bool + Send + Sync>;

/// The intent to call a tool.
pub struct BeginToolCall {
    pub run_id: RunId,
    pub key: String,
    /// Never the same for two calls.
    pub call_id: Uuid,
    /// Of the tool's name and its parameters.
    pub request_sha256: String,
    pub effect: Option<ToolEffect>,
    /// The process that calls.
    pub owner: String,
    pub goes_on: GoesOn,
    pub at: i64,
    /// When the call is over at the latest.
    pub expires_at: i64,
}

/// What became of the intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolCallBegun {
    /// Call it, and finish with the id of this call.
    Call,
    /// An earlier call brought this, as JSON text.
    Kept(String),
    Refused(Decision),
    /// The run has used as many keys as it may.
    TooMany,
    RunEnded,
}

impl Work for BeginToolCall {
    type Output = ToolCallBegun;
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<ToolCallBegun, StoreError> {
        if !hold_live_run(tx, self.run_id).await? {
            return Ok(ToolCallBegun::RunEnded);
        }
        let id = (self.run_id.to_string(), self.key.clone());
        let Some(row) = tool_calls::Entity::find_by_id(id).one(tx).await? else {
            let used = tool_calls::Entity::find()
                .filter(tool_calls::Column::RunId.eq(self.run_id.to_string()))
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
        let same_request = row.request_sha256 == self.request_sha256;
        match (
            decide(self.standing(&row), same_request, self.effect),
            row.result,
        ) {
            (Decision::Call, _) => {
                tool_calls::Entity::update(self.row()).exec(tx).await?;
                Ok(ToolCallBegun::Call)
            }
            (Decision::Answer, Some(result)) => Ok(ToolCallBegun::Kept(result)),
            (refused, _) => Ok(ToolCallBegun::Refused(refused)),
        }
    }

    async fn stands(
        &self,
        tx: &DatabaseTransaction,
        _told: &Self::Output,
    ) -> Result<bool, StoreError> {
        let id = (self.run_id.to_string(), self.key.clone());
        let row = tool_calls::Entity::find_by_id(id).one(tx).await?;
        Ok(row.is_some_and(|row| row.call_id == self.call_id.to_string()))
    }
}

impl BeginToolCall {
    fn row(&self) -> tool_calls::ActiveModel {
        tool_calls::ActiveModel {
            run_id: Set(self.run_id.to_string()),
            key: Set(self.key.clone()),
            call_id: Set(self.call_id.to_string()),
            request_sha256: Set(self.request_sha256.clone()),
            owner: Set(self.owner.clone()),
            expires_at: Set(self.expires_at),
            result: Set(None),
            at: Set(self.at),
        }
    }

    /// A call of ours goes on as long as somebody here says so; one of another process, as long as it may.
    fn standing(&self, row: &tool_calls::Model) -> Earlier {
        if row.result.is_some() {
            return Earlier::Done;
        }
        let goes_on = if row.owner == self.owner {
            let call = Uuid::parse_str(&row.call_id);
            call.is_ok_and(|call| (self.goes_on)(call))
        } else {
            row.expires_at > self.at
        };
        if goes_on {
            Earlier::GoesOn
        } else {
            Earlier::Unknown
        }
    }
}

/// How a call ended.
#[derive(Clone, Debug)]
pub enum ToolCallEnd {
    /// With this result, as JSON text: the answer from now on.
    Done(String),
    /// Surely without doing anything: the key is free again.
    Undone,
    /// Nobody knows.
    Unknown,
}

/// The end of a call that was begun.
#[derive(Clone, Debug)]
pub struct FinishToolCall {
    pub run_id: RunId,
    pub key: String,
    pub call_id: Uuid,
    pub end: ToolCallEnd,
}

impl Work for FinishToolCall {
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

    /// Applied twice, it says the same.
    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        let run = tool_calls::Column::RunId.eq(self.run_id.to_string());
        let key = tool_calls::Column::Key.eq(self.key.clone());
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
