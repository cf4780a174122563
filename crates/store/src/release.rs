//! Release and resume of async runs. Tables hold the accepted results and how far they are in the ledger. A new
//! owner resumes behind that.

use std::collections::HashSet;
use std::time::Duration;

use protocol::id::RunId;
use protocol::run::RunStatus;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ColumnTrait, ConnectionTrait, DatabaseTransaction, EntityTrait, QueryFilter, QueryOrder,
    QuerySelect,
};
use uuid::Uuid;

use crate::database_clock::lease_end;
use crate::entity::{run_appends, run_deferrals, run_rejections, runs};
use crate::error::{StoreError, parsed, signed, unsigned};
use crate::model::append::Append;
use crate::mutation::Mutation;
use crate::repositories::LeaseRepository;
use crate::sql::{Sql, executed, padded, text};
use crate::state::lock_live_run;

/// State left by the previous owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumePoint {
    /// Results up to this number, in the runner's numbering, are in the ledger with their effects.
    pub judged_through: u64,
    /// Results up to this number are accepted.
    pub accepted_through: u64,
    /// Results up to this number were streamed, so they are in the ledger only.
    pub streamed_through: u64,
    /// Number of the last stored rejection.
    pub rejections: u64,
    /// Rejected results, in the runner's numbering.
    pub rejected: HashSet<u64>,
}

/// Resumes a run after a take-over. Renews the runner's lease, because heartbeats may have failed without an
/// owner.
struct ResumeRun {
    run_id: RunId,
    attempt: u32,
    lease: Duration,
}

impl Mutation for ResumeRun {
    type Output = Option<ResumePoint>;
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Option<ResumePoint>, StoreError> {
        // Locks the run's row first, as appends do.
        if !lock_live_run(tx, self.run_id).await? {
            return Ok(None);
        }
        let id = self.run_id.to_string();
        let heartbeat_lease = lease_end(tx.get_database_backend(), self.lease);
        // A closed run accepts no heartbeat.
        run_deferrals::Entity::update_many()
            .col_expr(run_deferrals::Column::LeaseExpiresAt, heartbeat_lease)
            .filter(run_deferrals::Column::RunId.eq(&id))
            .filter(run_deferrals::Column::IsClosed.eq(false))
            .exec(tx)
            .await?;
        let deferral = run_deferrals::Entity::find_by_id(&id)
            .filter(run_deferrals::Column::Attempt.eq(i64::from(self.attempt)))
            .one(tx)
            .await?;
        // Negative: the owner's version did not record it.
        let Some(deferral) = deferral.filter(|row| row.judged_through >= 0) else {
            return Ok(None);
        };
        let column = "run_deferrals.accepted_through";
        let accepted_through = unsigned(column, &id, deferral.accepted_through)?;
        // Appended results stay until the end of the run, so the first row tells how many were streamed.
        let first: Option<i64> = run_appends::Entity::find()
            .select_only()
            .column(run_appends::Column::FirstSequence)
            .filter(run_appends::Column::RunId.eq(&id))
            .order_by_asc(run_appends::Column::FirstSequence)
            .into_tuple()
            .one(tx)
            .await?;
        let streamed_through = match first {
            Some(first) => unsigned("run_appends.first_sequence", &id, first - 1)?,
            None => accepted_through,
        };
        let rejected = find_rejected(tx, self.run_id).await?;
        Ok(Some(ResumePoint {
            judged_through: unsigned("run_deferrals.judged_through", &id, deferral.judged_through)?,
            accepted_through,
            streamed_through,
            rejections: rejected.count,
            rejected: rejected.numbers,
        }))
    }
}

/// Stored rejections of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RejectedResults {
    /// Number of the last stored rejection.
    pub count: u64,
    /// Rejected results, in the runner's numbering.
    pub numbers: HashSet<u64>,
}

async fn find_rejected(
    conn: &impl ConnectionTrait,
    run: RunId,
) -> Result<RejectedResults, StoreError> {
    let id = run.to_string();
    let rejected: Vec<(i64, Option<String>)> = run_rejections::Entity::find()
        .select_only()
        .column(run_rejections::Column::N)
        .column(run_rejections::Column::RunnerSequence)
        .filter(run_rejections::Column::RunId.eq(&id))
        .into_tuple()
        .all(conn)
        .await?;
    let last = rejected.iter().map(|(n, _)| *n).max().unwrap_or(0);
    let numbers = rejected
        .iter()
        .filter_map(|(_, number)| number.as_ref()?.parse().ok());
    Ok(RejectedResults {
        count: unsigned("run_rejections.n", &id, last)?,
        numbers: numbers.collect(),
    })
}

/// Records how far the appended results of runs are in the ledger.
pub(crate) async fn record_judged(tx: &impl Sql, appends: &[&Append]) -> Result<(), StoreError> {
    let rows = appends.iter().filter_map(|append| {
        let through = append.judged_through?;
        Some([text(append.run_id), signed(through).into()])
    });
    let update = "UPDATE run_deferrals SET judged_through = ?2 FROM rows WHERE run_id = ?1";
    executed(tx, rows.collect(), update).await
}

/// Attempt in the ticket of a call that a checkpoint includes: no start of the run repeats it.
const INCLUDED: i64 = i64::MAX;

/// Prepares the records of a run for a new start.
struct BeginStart {
    run_id: RunId,
    since: i64,
}

impl Mutation for BeginStart {
    type Output = ();
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        // The runner numbers its results from 1 again.
        let sql = "UPDATE run_rejections SET runner_sequence = NULL WHERE run_id = $1";
        tx.execute_sql(sql.to_owned(), vec![text(self.run_id)])
            .await?;
        // A start from a checkpoint continues after these calls, so an equal call is another one.
        let sql = "UPDATE tool_calls SET attempt = $2 \
            WHERE run_id = $1 AND attempt IS NOT NULL AND result IS NOT NULL AND at < $3";
        let values = vec![text(self.run_id), INCLUDED.into(), self.since.into()];
        tx.execute_sql(sql.to_owned(), values).await?;
        // It repeats the later ones, and the record of a retried run answers them again.
        let sql = "UPDATE recorded_calls SET answered_at = NULL, answered_key = NULL \
            WHERE run_id = $1 AND answered_at >= $2";
        let values = vec![text(self.run_id), self.since.into()];
        tx.execute_sql(sql.to_owned(), values).await
    }
}

/// Releases the lease of a run for the next owner.
struct ReleaseRun {
    run_id: RunId,
    epoch: i64,
}

impl Mutation for ReleaseRun {
    type Output = ();
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        runs::Entity::update_many()
            .col_expr(runs::Column::LeaseExpiresAt, Expr::value(0))
            // A concurrent renewal then no longer matches.
            .col_expr(
                runs::Column::LeaseOwner,
                Expr::value(Option::<String>::None),
            )
            .filter(runs::Column::Id.eq(self.run_id.to_string()))
            .filter(runs::Column::Status.eq(RunStatus::Running.as_str()))
            .filter(runs::Column::FencingToken.eq(self.epoch))
            .exec(tx)
            .await?;
        Ok(())
    }
}

impl LeaseRepository<'_> {
    /// Subset of these runs with a runner that appends results.
    pub async fn async_runs_of(self, runs: &[RunId]) -> Result<HashSet<RunId>, StoreError> {
        let ids: Vec<String> = run_deferrals::Entity::find()
            .select_only()
            .column(run_deferrals::Column::RunId)
            .filter(
                run_deferrals::Column::RunId.is_in(padded(runs.iter().map(ToString::to_string))),
            )
            .into_tuple()
            .all(&self.db.readers)
            .await?;
        let read = |id: String| parsed("run_deferrals.run_id", &id, &id);
        ids.into_iter().map(read).collect()
    }

    /// Resumes a run after a take-over and returns its state. `None`: its runner does not append. `lease`: the
    /// runner's heartbeat timeout from now on.
    pub async fn resume(
        self,
        run_id: RunId,
        attempt: u32,
        lease: Duration,
    ) -> Result<Option<ResumePoint>, StoreError> {
        self.db
            .write(ResumeRun {
                run_id,
                attempt,
                lease,
            })
            .await
    }

    /// The rejected results of a live run.
    pub async fn rejected_results(self, run: RunId) -> Result<RejectedResults, StoreError> {
        find_rejected(&self.db.readers, run).await
    }

    /// Prepares rejections, tickets and recorded calls of a run for a new start. `since`: time of the checkpoint that it
    /// continues from, in epoch milliseconds; 0 for the event.
    pub async fn begin_start(self, run_id: RunId, since: i64) -> Result<(), StoreError> {
        self.db.write(BeginStart { run_id, since }).await
    }

    /// Releases a run for take-over, unless its epoch has changed.
    pub async fn release(self, run_id: RunId, epoch: i64) -> Result<(), StoreError> {
        self.db.write(ReleaseRun { run_id, epoch }).await
    }
}
