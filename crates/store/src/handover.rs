//! Runs whose runner answers later, from one owner to the next: what was accepted of them stands in a table, and so
//! does how much of it is in the ledger. Whoever takes such a run over goes on behind that.

use std::collections::HashSet;
use std::time::Duration;

use protocol::id::RunId;
use protocol::run::RunStatus;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ColumnTrait, ConnectionTrait, DatabaseTransaction, EntityTrait, QueryFilter, QuerySelect,
};
use uuid::Uuid;

use crate::connect::Store;
use crate::database_clock::lease_end;
use crate::entity::{run_deferrals, run_rejections, runs};
use crate::error::{StoreError, parsed, signed, unsigned};
use crate::sql::padded;
use crate::state::hold_live_run;
use crate::writer::Work;

/// Where the one before has left off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOff {
    /// What was appended up to this number, in the runner's own numbers, is judged, and what came of it stands.
    pub judged_through: u64,
    /// What was appended up to this number is accepted.
    pub accepted_through: u64,
    /// The number of the last rejection that stands.
    pub rejections: u64,
    /// Which of what was appended has been rejected, in the runner's own numbers.
    pub rejected: HashSet<u64>,
}

/// Begins to go on with a run that was taken over. Its runner gets a new lease: while nobody had the run, it may
/// have been heard by nobody.
struct GoOn {
    run_id: RunId,
    attempt: u32,
    lease: Duration,
}

impl Work for GoOn {
    type Output = Option<LeftOff>;
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Option<LeftOff>, StoreError> {
        // Its row first, as whoever appends does.
        if !hold_live_run(tx, self.run_id).await? {
            return Ok(None);
        }
        let id = self.run_id.to_string();
        let heard = lease_end(tx.get_database_backend(), self.lease);
        // Of a run that was closed nobody will be heard.
        run_deferrals::Entity::update_many()
            .col_expr(run_deferrals::Column::LeaseExpiresAt, heard)
            .filter(run_deferrals::Column::RunId.eq(&id))
            .filter(run_deferrals::Column::IsClosed.eq(false))
            .exec(tx)
            .await?;
        let deferral = run_deferrals::Entity::find_by_id(&id)
            .filter(run_deferrals::Column::Attempt.eq(i64::from(self.attempt)))
            .one(tx)
            .await?;
        // Below nothing: its owner was of a version that did not say so.
        let Some(deferral) = deferral.filter(|row| row.judged_through >= 0) else {
            return Ok(None);
        };
        let rejected: Vec<(i64, Option<String>)> = run_rejections::Entity::find()
            .select_only()
            .column(run_rejections::Column::N)
            .column(run_rejections::Column::RunnerSequence)
            .filter(run_rejections::Column::RunId.eq(&id))
            .into_tuple()
            .all(tx)
            .await?;
        let last = rejected.iter().map(|(n, _)| *n).max().unwrap_or(0);
        let numbers = rejected
            .iter()
            .filter_map(|(_, number)| number.as_ref()?.parse().ok());
        Ok(Some(LeftOff {
            judged_through: unsigned("run_deferrals.judged_through", &id, deferral.judged_through)?,
            accepted_through: unsigned(
                "run_deferrals.accepted_through",
                &id,
                deferral.accepted_through,
            )?,
            rejections: unsigned("run_rejections.n", &id, last)?,
            rejected: numbers.collect(),
        }))
    }
}

/// Notes what of a run's appended results stands in the ledger, with what came of it.
pub(crate) async fn note_judged(
    tx: &DatabaseTransaction,
    run: RunId,
    through: u64,
) -> Result<(), StoreError> {
    run_deferrals::Entity::update_many()
        .col_expr(
            run_deferrals::Column::JudgedThrough,
            Expr::value(signed(through)),
        )
        .filter(run_deferrals::Column::RunId.eq(run.to_string()))
        .exec(tx)
        .await?;
    Ok(())
}

/// Ends the lease of a run that goes on elsewhere.
struct HandOn {
    run_id: RunId,
    epoch: i64,
}

impl Work for HandOn {
    type Output = ();
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        runs::Entity::update_many()
            .col_expr(runs::Column::LeaseExpiresAt, Expr::value(0))
            // A renewal that is on its way does not meet it any more.
            .col_expr(
                runs::Column::LeaseOwner,
                Expr::value(Option::<String>::None),
            )
            .filter(runs::Column::Id.eq(self.run_id.to_string()))
            .filter(runs::Column::Status.eq(RunStatus::Running.as_str()))
            .filter(runs::Column::LeaseEpoch.eq(self.epoch))
            .exec(tx)
            .await?;
        Ok(())
    }
}

impl Store {
    /// Those of these runs whose runner appends its results.
    pub async fn deferred_of(&self, runs: &[RunId]) -> Result<HashSet<RunId>, StoreError> {
        let ids: Vec<String> = run_deferrals::Entity::find()
            .select_only()
            .column(run_deferrals::Column::RunId)
            .filter(
                run_deferrals::Column::RunId.is_in(padded(runs.iter().map(ToString::to_string))),
            )
            .into_tuple()
            .all(&self.readers)
            .await?;
        let read = |id: String| parsed("run_deferrals.run_id", &id, &id);
        ids.into_iter().map(read).collect()
    }

    /// Begins to go on with a run that was taken over, and whose runner appends its results: from there. `None`:
    /// its runner does not. `lease`: how long the runner may be silent from now on.
    pub async fn go_on(
        &self,
        run_id: RunId,
        attempt: u32,
        lease: Duration,
    ) -> Result<Option<LeftOff>, StoreError> {
        self.write(GoOn {
            run_id,
            attempt,
            lease,
        })
        .await
    }

    /// Lets whoever looks next take a run over, unless somebody has.
    pub async fn hand_on(&self, run_id: RunId, epoch: i64) -> Result<(), StoreError> {
        self.write(HandOn { run_id, epoch }).await
    }
}
