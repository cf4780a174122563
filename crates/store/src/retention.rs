//! Deleting the ledger of old runs, whole runs at a time: a sequence never has holes (runs §3).

use std::time::Duration;

use protocol::run::RunStatus;
use sea_orm::sea_query::{Expr, ExprTrait, LockBehavior, LockType};
use sea_orm::{
    ColumnTrait, ConnectionTrait, DatabaseTransaction, DbBackend, EntityTrait, QueryFilter,
    QueryOrder, QuerySelect,
};

use crate::connect::Store;
use crate::database_clock::{ago, database_now};
use crate::entity::{run_attempts, run_rejections, run_segments, runs, steering_items, tool_calls};
use crate::error::StoreError;
use crate::writer::Work;

/// Runs of one transaction: each may have 64 MiB, and everything else waits behind it.
const BATCH: u64 = 2;

const ENDED: [RunStatus; 4] = [
    RunStatus::Completed,
    RunStatus::Failed,
    RunStatus::Cancelled,
    RunStatus::Timeout,
];

struct Prune {
    age: Duration,
}

impl Work for Prune {
    type Output = u64;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        let backend = tx.get_database_backend();
        let query = runs::Entity::find()
            .select_only()
            .column(runs::Column::Id)
            .filter(runs::Column::PrunedAt.is_null())
            .filter(Expr::col(runs::Column::FinishedAt).lt(ago(backend, self.age)))
            .filter(runs::Column::Status.is_in(ENDED.map(RunStatus::as_str)))
            .order_by_asc(runs::Column::FinishedAt)
            .limit(BATCH);
        let old: Vec<String> = left_to_us(tx, query).into_tuple().all(tx).await?;
        if old.is_empty() {
            return Ok(0);
        }
        let count = old.len() as u64;
        runs::Entity::update_many()
            .col_expr(runs::Column::PrunedAt, database_now(backend))
            .filter(runs::Column::Id.is_in(old.clone()))
            .exec(tx)
            .await?;
        run_segments::Entity::delete_many()
            .filter(run_segments::Column::RunId.is_in(old.clone()))
            .exec(tx)
            .await?;
        run_rejections::Entity::delete_many()
            .filter(run_rejections::Column::RunId.is_in(old.clone()))
            .exec(tx)
            .await?;
        run_attempts::Entity::delete_many()
            .filter(run_attempts::Column::RunId.is_in(old.clone()))
            .exec(tx)
            .await?;
        tool_calls::Entity::delete_many()
            .filter(tool_calls::Column::RunId.is_in(old.clone()))
            .exec(tx)
            .await?;
        crate::artifacts::expire_of_runs(tx, &old).await?;
        crate::interactions::forget_of_runs(tx, &old).await?;
        steering_items::Entity::delete_many()
            .filter(steering_items::Column::RunId.is_in(old))
            .exec(tx)
            .await?;
        Ok(count)
    }
}

/// Of rows that several replicas want to delete, those that no other is at.
pub(crate) fn left_to_us<S: QuerySelect>(tx: &DatabaseTransaction, query: S) -> S {
    // SQLite has one writer, and no such clause.
    match tx.get_database_backend() {
        DbBackend::Postgres => query.lock_with_behavior(LockType::Update, LockBehavior::SkipLocked),
        _ => query,
    }
}

impl Store {
    /// Deletes the events, rejections and contexts of runs that ended longer ago than `age` by the
    /// database's clock, a bounded number of runs; says of how many. The runs themselves stay, with their output, their
    /// authorization and their audit.
    pub async fn prune_runs(&self, age: Duration) -> Result<u64, StoreError> {
        self.write(Prune { age }).await
    }
}
