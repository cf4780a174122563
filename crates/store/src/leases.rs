//! Leases: ownership of a run for a limited time. Expiry uses the database clock.

mod renewal;

use std::time::Duration;

use domain::run::Run;
use protocol::id::RunId;
use protocol::run::RunStatus;
use sea_orm::sea_query::{Expr, ExprTrait};
use sea_orm::{
    ColumnTrait, Condition, ConnectionTrait, DatabaseTransaction, DbBackend, EntityTrait,
    PaginatorTrait, QueryFilter, QueryOrder, QuerySelect,
};
use uuid::Uuid;

use crate::database_clock::{database_now, lease_end};
use crate::entity::runs;
use crate::error::{StoreError, parsed};
use crate::mutation::Mutation;
use crate::repositories::LeaseRepository;
use crate::runs::readable;
use crate::sql::skip_locked;

pub use renewal::LeaseKeeper;

/// Ids of one statement: databases limit the number of parameters.
const IDS: usize = 500;

/// Filter of leases for take-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseFilter {
    /// Expired leases.
    Expired,
    /// All: the caller is the only owner.
    All,
    /// The caller's leases.
    Own,
    /// None.
    None,
}

impl LeaseFilter {
    fn condition(self, owner: &str, backend: DbBackend) -> Condition {
        match self {
            Self::Expired => {
                let end = Expr::col(runs::Column::LeaseExpiresAt);
                Condition::all().add(end.lt(database_now(backend)))
            }
            Self::All => Condition::all(),
            Self::Own => Condition::all().add(runs::Column::LeaseOwner.eq(owner)),
            Self::None => Condition::all().add(Expr::value(1).eq(0)),
        }
    }
}

impl LeaseRepository<'_> {
    /// Running runs with eligible leases, the longest expired first.
    pub async fn expired_runs(
        self,
        owner: &str,
        leases: LeaseFilter,
        limit: u64,
    ) -> Result<Vec<Run>, StoreError> {
        let models = runs::Entity::find()
            .filter(runs::Column::FinishedAt.is_null())
            .filter(runs::Column::Status.eq(RunStatus::Running.as_str()))
            .filter(leases.condition(owner, self.db.readers.get_database_backend()))
            .order_by_asc(runs::Column::LeaseExpiresAt)
            .limit(limit)
            .all(&self.db.readers)
            .await?;
        Ok(readable(models))
    }

    /// Takes over a run with a new epoch, which fences the old owner. `None`: the lease is not eligible, or was
    /// renewed, taken or ended meanwhile.
    pub async fn take_over(
        self,
        run: &Run,
        owner: &str,
        lease: Duration,
        leases: LeaseFilter,
    ) -> Result<Option<i64>, StoreError> {
        let (id, epoch, owner) = (run.id, run.fencing_token, owner.to_owned());
        self.db
            .write(TakeOver {
                id,
                epoch,
                owner,
                lease,
                leases,
            })
            .await
    }

    /// Takes over these runs in one commit, under the rules of [`Self::take_over`]. Skips locked rows, so
    /// replicas do not wait for each other.
    pub async fn take_over_batch(
        self,
        ids: Vec<RunId>,
        owner: &str,
        lease: Duration,
        leases: LeaseFilter,
    ) -> Result<Vec<Run>, StoreError> {
        let owner = owner.to_owned();
        self.db
            .write(TakeOverBatch {
                ids,
                owner,
                lease,
                leases,
            })
            .await
    }

    /// Runs of `owner` with a cancel request, and its time.
    pub async fn cancel_requests_of(self, owner: &str) -> Result<Vec<(RunId, i64)>, StoreError> {
        let rows: Vec<(String, i64)> = runs::Entity::find()
            .select_only()
            .column(runs::Column::Id)
            .column(runs::Column::CancelRequestedAt)
            .filter(runs::Column::CancelRequestedAt.is_not_null())
            .filter(runs::Column::FinishedAt.is_null())
            .filter(runs::Column::Status.eq(RunStatus::Running.as_str()))
            .filter(runs::Column::LeaseOwner.eq(owner))
            .into_tuple()
            .all(&self.db.readers)
            .await?;
        let read = |(id, at): (String, i64)| Ok((parsed("runs.id", &id, &id)?, at));
        rows.into_iter().map(read).collect()
    }
}

struct TakeOver {
    id: RunId,
    epoch: i64,
    owner: String,
    lease: Duration,
    leases: LeaseFilter,
}

impl Mutation for TakeOver {
    type Output = Option<i64>;

    fn order(&self) -> Uuid {
        self.id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Option<i64>, StoreError> {
        let backend = tx.get_database_backend();
        let moved = runs::Entity::update_many()
            .col_expr(runs::Column::FencingToken, Expr::value(self.epoch + 1))
            .col_expr(runs::Column::LeaseOwner, Expr::value(self.owner.as_str()))
            .col_expr(runs::Column::LeaseExpiresAt, lease_end(backend, self.lease))
            .filter(runs::Column::Id.eq(self.id.to_string()))
            .filter(runs::Column::Status.eq(RunStatus::Running.as_str()))
            .filter(runs::Column::FencingToken.eq(self.epoch))
            .filter(self.leases.condition(&self.owner, backend))
            .exec(tx)
            .await?;
        Ok((moved.rows_affected == 1).then_some(self.epoch + 1))
    }

    // An unreported take-over would leave the run idle until the lease expires again.
    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        output: &Self::Output,
    ) -> Result<bool, StoreError> {
        match output {
            Some(epoch) => is_held(tx, self.id, &self.owner, *epoch).await,
            None => Ok(false),
        }
    }
}

struct TakeOverBatch {
    ids: Vec<RunId>,
    owner: String,
    lease: Duration,
    leases: LeaseFilter,
}

impl Mutation for TakeOverBatch {
    type Output = Vec<Run>;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Vec<Run>, StoreError> {
        let backend = tx.get_database_backend();
        let mut taken = Vec::new();
        for ids in self.ids.chunks(IDS) {
            let query = runs::Entity::find()
                .select_only()
                .column(runs::Column::Id)
                .filter(runs::Column::Id.is_in(ids.iter().map(ToString::to_string)))
                .filter(runs::Column::Status.eq(RunStatus::Running.as_str()))
                .filter(self.leases.condition(&self.owner, backend));
            // Locked rows belong to another replica that takes over or to an owner that is alive.
            let free: Vec<String> = skip_locked(tx, query).into_tuple().all(tx).await?;
            // Fences the previous owner: its writes name the old epoch and change no row.
            let epoch = Expr::col(runs::Column::FencingToken).add(1);
            runs::Entity::update_many()
                .col_expr(runs::Column::FencingToken, epoch)
                .col_expr(runs::Column::LeaseOwner, Expr::value(self.owner.as_str()))
                .col_expr(runs::Column::LeaseExpiresAt, lease_end(backend, self.lease))
                .filter(runs::Column::Id.is_in(free.clone()))
                .exec(tx)
                .await?;
            let models = runs::Entity::find()
                .filter(runs::Column::Id.is_in(free))
                .all(tx)
                .await?;
            taken.extend(readable(models));
        }
        Ok(taken)
    }

    // All rows are committed or none. Another replica may have taken some since.
    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        output: &Self::Output,
    ) -> Result<bool, StoreError> {
        for run in output {
            if is_held(tx, run.id, &self.owner, run.fencing_token).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// True when `owner` holds the run in this epoch.
async fn is_held(
    tx: &DatabaseTransaction,
    id: RunId,
    owner: &str,
    epoch: i64,
) -> Result<bool, StoreError> {
    let held = runs::Entity::find_by_id(id.to_string())
        .filter(runs::Column::LeaseOwner.eq(owner))
        .filter(runs::Column::FencingToken.eq(epoch));
    Ok(held.count(tx).await? > 0)
}
