//! The intent to POST: written before the POST, so that an uncertain one is never repeated.

use std::time::Duration;

use domain::run::Run;
use protocol::id::RunId;
use protocol::run::RunStatus;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveValue::Set, ColumnTrait, ConnectionTrait, DatabaseTransaction, EntityTrait, QueryFilter,
    QueryOrder,
};
use uuid::Uuid;

use crate::connect::Store;
use crate::database_clock::lease_end;
use crate::entity::{run_attempts, runs};
use crate::error::StoreError;
use crate::writer::Work;

/// Moves a run into its next attempt: `created` → `running`, or a retry of a `running` one.
#[derive(Clone, Debug)]
pub struct Dispatch {
    pub run_id: RunId,
    /// The epoch that the caller holds.
    pub epoch: i64,
    pub from: RunStatus,
    /// From 1.
    pub attempt: u32,
    pub owner: String,
    /// How long the owner has the run, from the commit on.
    pub lease: Duration,
    /// The context as it will be sent.
    pub context: String,
    /// When the run must have ended: its time begins with its first attempt.
    pub deadline_at: i64,
    pub at: i64,
}

/// What became of a dispatch.
#[derive(Clone, Debug)]
pub enum Dispatched {
    /// The run is this owner's, under its new epoch.
    Owned(Box<Run>),
    /// Somebody else has it, or it has ended.
    Lost,
}

impl Work for Dispatch {
    type Output = Dispatched;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Dispatched, StoreError> {
        let mut update = runs::Entity::update_many()
            .col_expr(
                runs::Column::Status,
                Expr::value(RunStatus::Running.as_str()),
            )
            .col_expr(runs::Column::Attempt, Expr::value(i64::from(self.attempt)))
            .col_expr(runs::Column::LeaseOwner, Expr::value(self.owner.as_str()))
            .col_expr(runs::Column::LeaseEpoch, Expr::value(self.epoch + 1))
            .col_expr(
                runs::Column::LeaseExpiresAt,
                lease_end(tx.get_database_backend(), self.lease),
            );
        if self.from == RunStatus::Created {
            update = update
                .col_expr(runs::Column::StartedAt, Expr::value(self.at))
                .col_expr(runs::Column::DeadlineAt, Expr::value(self.deadline_at));
        }
        let moved = update
            .filter(runs::Column::Id.eq(self.run_id.to_string()))
            .filter(runs::Column::Status.eq(self.from.as_str()))
            .filter(runs::Column::LeaseEpoch.eq(self.epoch))
            .exec(tx)
            .await?;
        if moved.rows_affected != 1 {
            // Unless it was this very attempt, and the answer to its commit was lost.
            let row = find_row(tx, self.run_id).await?;
            let row = row.filter(|row| self.is_own(row));
            return row.map_or(Ok(Dispatched::Lost), owned);
        }
        let intent = run_attempts::ActiveModel {
            run_id: Set(self.run_id.to_string()),
            attempt: Set(i64::from(self.attempt)),
            intent_at: Set(self.at),
            context: Set(self.context.clone()),
            outcome: Set(None),
            http_status: Set(None),
        };
        run_attempts::Entity::insert(intent)
            .exec_without_returning(tx)
            .await?;
        let row = find_row(tx, self.run_id).await?;
        row.map_or(Ok(Dispatched::Lost), owned)
    }
}

impl Dispatch {
    fn is_own(&self, row: &runs::Model) -> bool {
        row.status == RunStatus::Running.as_str()
            && row.lease_epoch == self.epoch + 1
            && row.lease_owner.as_deref() == Some(self.owner.as_str())
            && row.attempt == i64::from(self.attempt)
    }
}

async fn find_row(tx: &DatabaseTransaction, run: RunId) -> Result<Option<runs::Model>, StoreError> {
    Ok(runs::Entity::find_by_id(run.to_string()).one(tx).await?)
}

fn owned(row: runs::Model) -> Result<Dispatched, StoreError> {
    Ok(Dispatched::Owned(Box::new(crate::runs::to_domain(row)?)))
}

/// Notes how an attempt was answered.
struct AttemptOutcome {
    run_id: RunId,
    attempt: u32,
    outcome: String,
    http_status: Option<i64>,
}

impl Work for AttemptOutcome {
    type Output = ();

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        run_attempts::Entity::update_many()
            .col_expr(
                run_attempts::Column::Outcome,
                Expr::value(self.outcome.as_str()),
            )
            .col_expr(
                run_attempts::Column::HttpStatus,
                Expr::value(self.http_status),
            )
            .filter(run_attempts::Column::RunId.eq(self.run_id.to_string()))
            .filter(run_attempts::Column::Attempt.eq(i64::from(self.attempt)))
            .exec(tx)
            .await?;
        Ok(())
    }
}

impl Store {
    /// Notes how an attempt was answered, without waiting for the commit.
    pub async fn note_attempt(
        &self,
        run_id: RunId,
        attempt: u32,
        outcome: &str,
        http_status: Option<u16>,
    ) -> Result<(), StoreError> {
        let http_status = http_status.map(i64::from);
        let outcome = outcome.to_owned();
        self.write_later(AttemptOutcome {
            run_id,
            attempt,
            outcome,
            http_status,
        })
        .await
    }

    /// The context of the run's newest attempt, as it was sent.
    pub async fn find_context(&self, run_id: RunId) -> Result<Option<String>, StoreError> {
        let newest = run_attempts::Entity::find()
            .filter(run_attempts::Column::RunId.eq(run_id.to_string()))
            .order_by_desc(run_attempts::Column::Attempt)
            .one(&self.readers)
            .await?;
        Ok(newest.map(|attempt| attempt.context))
    }
}
