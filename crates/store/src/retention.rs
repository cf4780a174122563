//! Retention: deletes the ledger of old runs, complete runs at a time, so sequences have no gaps.

use std::collections::HashMap;
use std::time::Duration;

use protocol::run::RunStatus;
use sea_orm::sea_query::{Alias, Expr, ExprTrait, Func, Query, SelectStatement};
use sea_orm::{
    ColumnTrait, ConnectionTrait, DatabaseTransaction, DbBackend, EntityTrait, QueryFilter,
    QueryOrder, QuerySelect,
};

use crate::database_clock::{ago, database_now, millis, read_now};
use crate::entity::{budget_usage, run_attempts, run_rejections, run_segments, runs, tool_calls};
use crate::error::StoreError;
use crate::mutation::Mutation;
use crate::repositories::RetentionRepository;
use crate::sql::{Sql, skip_locked};

/// Maximum runs per transaction, and bytes of their events: other writes wait. A larger run, up to 64 MiB, has
/// its own transaction.
const BATCH: u64 = 50;
const BATCH_BYTES: i64 = 4 * 1024 * 1024;
/// Maximum events per transaction, because measuring small rows reads them. A larger run has its own
/// transaction.
const BATCH_EVENTS: i64 = 10_000;

/// The longest budget window is a month: older windows are over in every time zone.
const WINDOW_RETENTION: Duration = Duration::from_hours(62 * 24);
/// Maximum sums per transaction.
const SUMS: u64 = 500;

const ENDED: [RunStatus; 4] = [
    RunStatus::Completed,
    RunStatus::Failed,
    RunStatus::Cancelled,
    RunStatus::Timeout,
];

struct Prune {
    age: Duration,
}

impl Mutation for Prune {
    type Output = u64;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        let backend = tx.get_database_backend();
        let query = runs::Entity::find()
            .select_only()
            .column(runs::Column::Id)
            .column(runs::Column::LastSequence)
            .filter(runs::Column::PrunedAt.is_null())
            .filter(Expr::col(runs::Column::FinishedAt).lt(ago(backend, self.age)))
            .filter(runs::Column::Status.is_in(ENDED.map(RunStatus::as_str)))
            // An open question may still be answered, which reads the run.
            .filter(Expr::exists(open_question(backend)).not())
            .order_by_asc(runs::Column::FinishedAt)
            .limit(BATCH);
        let old: Vec<(String, i64)> = skip_locked(tx, query).into_tuple().all(tx).await?;
        if old.is_empty() {
            return Ok(0);
        }
        // A large delete would delay all other writes, so a batch is bounded in events and bytes.
        let old = within_byte_limit(tx, within_event_limit(old)).await?;
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
        let numbers: Vec<_> = (1..=old.len()).map(|n| format!("${n}")).collect();
        for table in ["part_uses", "recorded_calls"] {
            let ids = numbers.join(", ");
            let sql = format!("DELETE FROM {table} WHERE run_id IN ({ids})");
            let values = old.iter().map(|run| run.as_str().into());
            tx.execute_sql(sql, values.collect()).await?;
        }
        tool_calls::Entity::delete_many()
            .filter(tool_calls::Column::RunId.is_in(old.clone()))
            .exec(tx)
            .await?;
        budget_usage::Entity::delete_many()
            .filter(budget_usage::Column::Subject.in_subquery(subjects(&old)))
            .exec(tx)
            .await?;
        crate::artifacts::expire_of_runs(tx, &old).await?;
        // Pulls of steering events stay with the runs: access to attachments depends on them.
        crate::interactions::delete_of_runs(tx, &old).await?;
        Ok(count)
    }
}

/// Budget subjects of these runs.
fn subjects(old: &[String]) -> SelectStatement {
    Query::select()
        .expr(Expr::cust("workspace_id || '/' || id"))
        .from(runs::Entity)
        .and_where(Expr::col(runs::Column::Id).is_in(old))
        .take()
}

/// Deletes sums of past budget windows. Current and unlimited windows stay.
struct SweepBudgets;

impl Mutation for SweepBudgets {
    type Output = u64;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        let over = read_now(tx).await? - millis(WINDOW_RETENTION);
        // Replicas skip each other's rows; SQLite has one writer and no such clause.
        let ours = match tx.get_database_backend() {
            DbBackend::Postgres => "FOR UPDATE SKIP LOCKED",
            _ => "",
        };
        let sql = format!(
            "DELETE FROM budget_usage WHERE (budget, subject, window_start) IN \
             (SELECT budget, subject, window_start FROM budget_usage \
             WHERE window_start > 0 AND window_start < $1 LIMIT {SUMS} {ours}) RETURNING subject"
        );
        let deleted = tx.query_sql(sql, vec![over.into()]).await?;
        Ok(deleted.len() as u64)
    }
}

/// A question of a run that has not expired.
fn open_question(backend: DbBackend) -> SelectStatement {
    let of = |name: &'static str| Expr::col((Alias::new("interactions"), Alias::new(name)));
    Query::select()
        .expr(Expr::value(1))
        .from(Alias::new("interactions"))
        .and_where(of("run_id").equals((runs::Entity, runs::Column::Id)))
        .and_where(of("expires_at").gt(database_now(backend)))
        .take()
}

/// The first of these runs within the limit of events per transaction, but at least one.
fn within_event_limit(old: Vec<(String, i64)>) -> Vec<String> {
    let mut left = BATCH_EVENTS;
    let fits = |(n, (_, events)): &(usize, (String, i64))| {
        left -= events;
        *n == 0 || left >= 0
    };
    let first = old.into_iter().enumerate().take_while(fits);
    first.map(|(_, (id, _))| id).collect()
}

/// The first of these runs within the byte limit of a transaction, but at least one.
async fn within_byte_limit(
    tx: &DatabaseTransaction,
    old: Vec<String>,
) -> Result<Vec<String>, StoreError> {
    // Both databases know the length of a large value without reading it.
    let length =
        Func::cust(Alias::new("octet_length")).arg(Expr::col(run_segments::Column::Payload));
    let sizes: Vec<(String, Option<i64>)> = run_segments::Entity::find()
        .select_only()
        .column(run_segments::Column::RunId)
        .column_as(
            Expr::expr(length).sum().cast_as(Alias::new("BIGINT")),
            "size",
        )
        .filter(run_segments::Column::RunId.is_in(old.clone()))
        .group_by(run_segments::Column::RunId)
        .into_tuple()
        .all(tx)
        .await?;
    let sizes: HashMap<_, _> = sizes.into_iter().collect();
    let mut left = BATCH_BYTES;
    let fits = |(n, id): &(usize, String)| {
        left -= sizes.get(id).copied().flatten().unwrap_or_default();
        *n == 0 || left >= 0
    };
    let first = old.into_iter().enumerate().take_while(fits);
    Ok(first.map(|(_, id)| id).collect())
}

impl RetentionRepository<'_> {
    /// Deletes events, rejections and contexts of a batch of runs that ended more than `age` ago, by the
    /// database clock. Returns the number of runs. The runs stay, with output, authorization and audit.
    pub async fn prune_runs(self, age: Duration) -> Result<u64, StoreError> {
        self.db.write(Prune { age }).await
    }

    /// Deletes a batch of sums of budget windows that started over 62 days ago; returns their number.
    pub async fn sweep_budgets(self) -> Result<u64, StoreError> {
        self.db.write(SweepBudgets).await
    }
}
