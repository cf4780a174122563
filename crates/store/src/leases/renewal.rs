//! Lease renewal.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use protocol::id::RunId;
use protocol::run::RunStatus;
use sea_orm::{
    ColumnTrait, ConnectionTrait, Database, DatabaseConnection, DatabaseTransaction, EntityTrait,
    QueryFilter, QueryOrder, QuerySelect, Select, TransactionTrait,
};

use super::IDS;
use crate::database_clock::lease_end;
use crate::engine::StoreEngine;
use crate::entity::runs;
use crate::error::{StoreError, parsed};
use crate::mutation::Mutation;
use crate::repositories::LeaseRepository;
use crate::sql::{locked, unlocked};

impl LeaseRepository<'_> {
    /// Renews the leases of `owner` on these runs. Skips locked rows.
    pub async fn renew_leases(
        self,
        owner: &str,
        ids: Vec<RunId>,
        lease: Duration,
    ) -> Result<Renewed, StoreError> {
        self.db
            .write(RenewLeases {
                owner: owner.to_owned(),
                ids,
                lease,
            })
            .await
    }

    /// Returns a lease keeper for the caller's runtime, which depends on no other runtime. The `SQLite` writer
    /// has its own thread; on `PostgreSQL` the keeper has its own connection.
    pub async fn lease_keeper(self) -> Result<LeaseKeeper, StoreError> {
        let own = match &self.db.renewing {
            Some(options) => Some(Database::connect(options.as_ref().clone()).await?),
            None => None,
        };
        Ok(LeaseKeeper {
            db: self.db.clone(),
            own,
        })
    }
}

/// Renews the leases of one process.
pub struct LeaseKeeper {
    db: StoreEngine,
    own: Option<DatabaseConnection>,
}

impl LeaseKeeper {
    /// Renews the leases of `owner` on these runs. Locked rows come last and wait for their locks: on a slow
    /// database results often lock a run's row. The total is at most three quarters of a lease, the last quarter
    /// for locked rows.
    pub async fn renew(
        &self,
        owner: &str,
        ids: Vec<RunId>,
        lease: Duration,
    ) -> Result<Renewed, StoreError> {
        let Some(own) = &self.own else {
            let leases = LeaseRepository { db: &self.db };
            return leases.renew_leases(owner, ids, lease).await;
        };
        let work = RenewLeases {
            owner: owner.to_owned(),
            ids,
            lease,
        };
        let renewing = async {
            let tx = own.begin().await?;
            let renewed = work.apply(&tx).await?;
            tx.commit().await?;
            Ok(renewed)
        };
        // Half of the lease: the rest is left for locked rows and for a second try.
        let renewed = tokio::time::timeout(lease / 2, renewing).await;
        let mut renewed = renewed.unwrap_or(Err(StoreError::Unreachable))?;
        let waiting = renew_busy(own, owner, lease, &mut renewed);
        // An error is no loss: these runs stay in `busy`, and the next renewal tries them again.
        if let Ok(Err(error)) = tokio::time::timeout(lease / 4, waiting).await {
            let error = &error as &dyn std::error::Error;
            tracing::debug!(error, "leases of locked rows are renewed next time");
        }
        Ok(renewed)
    }
}

/// Renews the leases of locked rows, in id order like all transactions.
async fn renew_busy(
    own: &DatabaseConnection,
    owner: &str,
    lease: Duration,
    renewed: &mut Renewed,
) -> Result<(), StoreError> {
    if renewed.busy.is_empty() {
        return Ok(());
    }
    let tx = own.begin().await?;
    // Shorter than the timeout around it, so the connection stays usable.
    let patience = format!("SET LOCAL lock_timeout = {}", (lease / 5).as_millis());
    tx.execute_unprepared(&patience).await?;
    let busy = held_by(owner, renewed.busy.iter().copied()).order_by_asc(runs::Column::Id);
    let rows: Vec<(String, Option<i64>)> = locked(&tx, busy).into_tuple().all(&tx).await?;
    extend(&tx, rows.iter().map(|(id, _)| id.as_str()), lease).await?;
    tx.commit().await?;
    renewed.busy.clear();
    renewed.hold(rows)
}

/// Extends the leases of these runs.
async fn extend<'i>(
    tx: &DatabaseTransaction,
    ids: impl IntoIterator<Item = &'i str>,
    lease: Duration,
) -> Result<(), StoreError> {
    runs::Entity::update_many()
        .col_expr(
            runs::Column::LeaseExpiresAt,
            lease_end(tx.get_database_backend(), lease),
        )
        .filter(runs::Column::Id.is_in(ids))
        .exec(tx)
        .await?;
    Ok(())
}

/// Id and cancel time of those of these runs that `owner` holds.
fn held_by(owner: &str, ids: impl IntoIterator<Item = RunId>) -> Select<runs::Entity> {
    let ids = ids.into_iter().map(|id| id.to_string());
    runs::Entity::find()
        .select_only()
        .column(runs::Column::Id)
        .column(runs::Column::CancelRequestedAt)
        .filter(runs::Column::Status.eq(RunStatus::Running.as_str()))
        .filter(runs::Column::LeaseOwner.eq(owner))
        .filter(runs::Column::Id.is_in(ids))
}

/// Result of a renewal. Runs in neither set have lost their lease.
#[derive(Debug, Default)]
pub struct Renewed {
    /// Each with the time of its cancel request.
    pub held: HashMap<RunId, Option<i64>>,
    /// Still held but not renewed: another transaction has locked the row.
    pub busy: HashSet<RunId>,
}

struct RenewLeases {
    owner: String,
    ids: Vec<RunId>,
    lease: Duration,
}

impl Mutation for RenewLeases {
    type Output = Renewed;
    const URGENT: bool = true;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Renewed, StoreError> {
        let mut renewed = Renewed::default();
        let mut ids = self.ids.clone();
        ids.sort_unstable_by_key(|id| id.0);
        for ids in ids.chunks(IDS) {
            let own = held_by(&self.owner, ids.iter().copied());
            let free = unlocked(tx, own.clone());
            let rows: Vec<(String, Option<i64>)> = free.into_tuple().all(tx).await?;
            extend(tx, rows.iter().map(|(id, _)| id.as_str()), self.lease).await?;
            let is_complete = rows.len() == ids.len();
            renewed.hold(rows)?;
            if !is_complete {
                renewed.find_busy(tx, own).await?;
            }
        }
        Ok(renewed)
    }
}

impl Renewed {
    fn hold(&mut self, rows: Vec<(String, Option<i64>)>) -> Result<(), StoreError> {
        for (id, cancel_requested_at) in rows {
            let id = parsed("runs.id", &id, &id)?;
            self.held.insert(id, cancel_requested_at);
        }
        Ok(())
    }

    /// Marks the owned runs whose rows were skipped.
    async fn find_busy(
        &mut self,
        tx: &DatabaseTransaction,
        own: Select<runs::Entity>,
    ) -> Result<(), StoreError> {
        let rows: Vec<(String, Option<i64>)> = own.into_tuple().all(tx).await?;
        for (id, _) in rows {
            let id = parsed("runs.id", &id, &id)?;
            if !self.held.contains_key(&id) {
                self.busy.insert(id);
            }
        }
        Ok(())
    }
}
