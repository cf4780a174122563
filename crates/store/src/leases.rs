//! Leases: who drives a run, and for how long (runs §2).

use std::collections::HashMap;

use domain::run::Run;
use protocol::id::RunId;
use protocol::run::RunStatus;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ColumnTrait, Condition, DatabaseTransaction, EntityTrait, QueryFilter, QueryOrder, QuerySelect,
};
use uuid::Uuid;

use crate::connect::Store;
use crate::entity::runs;
use crate::error::{StoreError, parsed};
use crate::runs::readable;
use crate::writer::Work;

impl Store {
    /// Running runs whose lease ended before `before`; all running ones for `i64::MAX`.
    pub async fn expired_runs(&self, before: i64, limit: u64) -> Result<Vec<Run>, StoreError> {
        let models = runs::Entity::find()
            .filter(runs::Column::Status.eq(RunStatus::Running.as_str()))
            .filter(runs::Column::LeaseExpiresAt.lt(before))
            .order_by_asc(runs::Column::LeaseExpiresAt)
            .limit(limit)
            .all(&self.readers)
            .await?;
        Ok(readable(models))
    }

    /// Renews the leases that `owner` holds on these runs. Gives those it still holds, each with
    /// the time at which it was asked to end.
    pub async fn renew_leases(
        &self,
        owner: &str,
        ids: Vec<RunId>,
        until: i64,
    ) -> Result<HashMap<RunId, Option<i64>>, StoreError> {
        self.write(RenewLeases {
            owner: owner.to_owned(),
            ids,
            until,
        })
        .await
    }

    /// Takes over a run whose lease ended before `before`: a new epoch, so that its old owner
    /// writes nothing more. `None`: it was renewed, taken or ended meanwhile.
    pub async fn take_over(
        &self,
        run: &Run,
        owner: &str,
        until: i64,
        before: i64,
    ) -> Result<Option<i64>, StoreError> {
        let (id, epoch, owner) = (run.id, run.lease_epoch, owner.to_owned());
        self.write(TakeOver {
            id,
            epoch,
            owner,
            until,
            before,
        })
        .await
    }

    /// The runs of `owner` that were asked to end, and when.
    pub async fn asked_to_end(&self, owner: &str) -> Result<Vec<(RunId, i64)>, StoreError> {
        let rows: Vec<(String, i64)> = runs::Entity::find()
            .select_only()
            .column(runs::Column::Id)
            .column(runs::Column::CancelRequestedAt)
            // As the index has it.
            .filter(Expr::cust(
                "status = 'running' AND cancel_requested_at IS NOT NULL",
            ))
            .filter(runs::Column::LeaseOwner.eq(owner))
            .into_tuple()
            .all(&self.readers)
            .await?;
        let read = |(id, at): (String, i64)| Ok((parsed("runs.id", &id, &id)?, at));
        rows.into_iter().map(read).collect()
    }
}

struct RenewLeases {
    owner: String,
    ids: Vec<RunId>,
    until: i64,
}

/// Ids of one statement: databases bound the number of its values.
const IDS: usize = 500;

impl Work for RenewLeases {
    type Output = HashMap<RunId, Option<i64>>;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Self::Output, StoreError> {
        let mut held = HashMap::new();
        for ids in self.ids.chunks(IDS) {
            let own = Condition::all()
                .add(runs::Column::Status.eq(RunStatus::Running.as_str()))
                .add(runs::Column::LeaseOwner.eq(self.owner.as_str()))
                .add(runs::Column::Id.is_in(ids.iter().map(ToString::to_string)));
            runs::Entity::update_many()
                .col_expr(runs::Column::LeaseExpiresAt, Expr::value(self.until))
                .filter(own.clone())
                .exec(tx)
                .await?;
            let rows: Vec<(String, Option<i64>)> = runs::Entity::find()
                .select_only()
                .column(runs::Column::Id)
                .column(runs::Column::CancelRequestedAt)
                .filter(own)
                .into_tuple()
                .all(tx)
                .await?;
            for (id, cancel_requested_at) in rows {
                held.insert(parsed("runs.id", &id, &id)?, cancel_requested_at);
            }
        }
        Ok(held)
    }
}

struct TakeOver {
    id: RunId,
    epoch: i64,
    owner: String,
    until: i64,
    before: i64,
}

impl Work for TakeOver {
    type Output = Option<i64>;

    fn order(&self) -> Uuid {
        self.id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Option<i64>, StoreError> {
        let moved = runs::Entity::update_many()
            .col_expr(runs::Column::LeaseEpoch, Expr::value(self.epoch + 1))
            .col_expr(runs::Column::LeaseOwner, Expr::value(self.owner.as_str()))
            .col_expr(runs::Column::LeaseExpiresAt, Expr::value(self.until))
            .filter(runs::Column::Id.eq(self.id.to_string()))
            .filter(runs::Column::Status.eq(RunStatus::Running.as_str()))
            .filter(runs::Column::LeaseEpoch.eq(self.epoch))
            .filter(runs::Column::LeaseExpiresAt.lt(self.before))
            .exec(tx)
            .await?;
        Ok((moved.rows_affected == 1).then_some(self.epoch + 1))
    }
}
