//! Closes a run for appended results, and deletes results of ended runs.

use protocol::id::RunId;
use protocol::run::RunStatus;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ColumnTrait, DatabaseTransaction, EntityTrait, JoinType, PaginatorTrait, QueryFilter,
    QuerySelect, RelationTrait as _,
};
use uuid::Uuid;

use super::find;
use crate::database_clock::read_now;
use crate::entity::{run_appends, run_deferrals, runs};
use crate::error::StoreError;
use crate::mutation::Mutation;
use crate::repositories::LeaseRepository;
use crate::state::lock_live_run;

/// Maximum runs of one sweep.
const SWEEP: u64 = 50;

/// Stops a run from accepting results before its owner ends it, so every accepted result is judged.
#[derive(Clone, Copy, Debug)]
pub struct CloseAppends {
    pub run_id: RunId,
    pub attempt: u32,
    /// Epoch of the owner's lease: only the owner closes a run.
    pub epoch: i64,
    /// Close only after the runner's heartbeat lease has expired.
    pub only_if_expired: bool,
}

/// Result of closing a run for results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendsClosed {
    /// It is closed; results up to this number are stored.
    Behind(u64),
    /// Still open: the runner's lease is valid.
    Heartbeating,
    /// It has ended, or has another owner.
    Lost,
}

impl Mutation for CloseAppends {
    type Output = AppendsClosed;
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<AppendsClosed, StoreError> {
        // Appends lock this row, too, so none commits between this check and the close.
        if !lock_live_run(tx, self.run_id).await? || !self.is_ours(tx).await? {
            return Ok(AppendsClosed::Lost);
        }
        let Some(deferral) = find(tx, self.run_id, self.attempt).await? else {
            // Without this row the runner has appended no results.
            return Ok(AppendsClosed::Behind(0));
        };
        if self.only_if_expired && deferral.lease_expires_at >= read_now(tx).await? {
            return Ok(AppendsClosed::Heartbeating);
        }
        run_deferrals::Entity::update_many()
            .col_expr(run_deferrals::Column::IsClosed, Expr::value(true))
            .filter(run_deferrals::Column::RunId.eq(self.run_id.to_string()))
            .exec(tx)
            .await?;
        Ok(AppendsClosed::Behind(deferral.accepted_through))
    }
}

impl CloseAppends {
    async fn is_ours(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        let found = runs::Entity::find_by_id(self.run_id.to_string())
            // The epoch of the lease: another owner may have taken the run over.
            .filter(runs::Column::FencingToken.eq(self.epoch))
            .count(tx)
            .await?;
        Ok(found == 1)
    }
}

struct SweepAppends;

impl Mutation for SweepAppends {
    type Output = u64;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        let ended: Vec<String> = run_deferrals::Entity::find()
            .select_only()
            .column(run_deferrals::Column::RunId)
            .join(JoinType::InnerJoin, run_deferrals::Relation::Run.def())
            .filter(runs::Column::Status.ne(RunStatus::Running.as_str()))
            .limit(SWEEP)
            .into_tuple()
            .all(tx)
            .await?;
        if ended.is_empty() {
            return Ok(0);
        }
        run_appends::Entity::delete_many()
            .filter(run_appends::Column::RunId.is_in(ended.clone()))
            .exec(tx)
            .await?;
        run_deferrals::Entity::delete_many()
            .filter(run_deferrals::Column::RunId.is_in(ended.clone()))
            .exec(tx)
            .await?;
        Ok(ended.len() as u64)
    }
}

impl LeaseRepository<'_> {
    /// Deletes appended results of ended runs, up to a limit; the ledger contains them. Returns the number of
    /// runs.
    pub async fn sweep_appends(self) -> Result<u64, StoreError> {
        self.db.write(SweepAppends).await
    }
}
