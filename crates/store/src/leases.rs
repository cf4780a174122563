//! Leases: ownership of a run for a limited time. Expiry uses the database clock.
//!
//! A running run has one owner, a gateway process. Three columns of `runs` record it: the name of the owner, the expiry
//! of its lease, and the fencing token (column `lease_epoch`). The lease lets another process act after a crash. The
//! fencing token makes that safe: a write of a former owner changes no row.
//!
//! # Sequence
//!
//! 1. Dispatch commits the intent of an attempt, the owner, a lease and the next fencing token together. The POST
//!    follows only while the lease holds.
//! 2. `LeaseRenewal` in `runs` renews all leases of a process five times per lease (`LeaseKeeper::renew`).
//! 3. `LiveRegistry::mark_lapsed` in `runs` looks twenty times per lease for leases that ended here, and stops those
//!    runs. It works without the database.
//! 4. Recovery of every replica looks for expired leases at least every second (`BETWEEN_SWEEPS`). `TakeOverBatch`
//!    sets itself as owner, adds one to the fencing token and starts a new lease, in one transaction.
//! 5. The new owner continues an async run, and attaches to the runner of a resumable one by a new attempt. It ends any
//!    other run as `host.orphaned`, or as cancelled on request, because the connection to the runner was lost with the
//!    former owner.
//!
//! # Session locks
//!
//! On `PostgreSQL` a process holds an advisory lock (`OwnerLock`) on a session of its own, and its owner name shows it
//! (`LockedOwner`). The server releases the lock when the process dies. Recovery of the other replicas looks at the
//! locks (`BETWEEN_LOOKS`): an owner without its lock in two looks in a row counts as dead. Its async and resumable
//! runs are taken over before their leases end (`LeaseFilter::Unlocked`). Other runs wait for the lease, because a
//! take-over ends them. An owner name without the prefix never counts as dead.
//!
//! A live process may lose its session. It locks again at once, and its lock is compared in the transaction of the
//! take-over. While it has no lock, it answers host calls of these runs from their rows (`LiveRegistry::grant`), and
//! after it has locked again only once a renewal has shown which runs it still owns.
//!
//! A gateway that stops releases its async and resumable runs: their lease ends at once, and the next owner continues
//! them. `SQLite` has one process, so at boot all running runs are orphans (`LeaseFilter::All`).
//!
//! # Clocks
//!
//! Expiry is written and compared by the database clock only, so a replica with a wrong clock takes no run from others.
//! The owner keeps its own end of the lease on the monotonic clock. It counts from before the request, so the lease
//! ends in the process before it ends in the database.
//!
//! # Fencing
//!
//! The fencing token increases with each dispatch attempt and each take-over. Appends and ends of runs are a
//! compare-and-set of fencing token, last sequence and status. Renewals match the owner, and a release matches the
//! token. A write that matches no row reports `Lost`, and the task of the run stops without a terminal event.
//!
//! A process that was paused for longer than its lease:
//!
//! * cannot append, end, release or renew a run that another process has taken over;
//! * cannot use the rights of the run from memory: it reads the row, which grants nothing after the end;
//! * starts no new attempt: it checks its local lease before the POST, and the fencing token for a retry;
//! * keeps its socket to the runner until it resumes, and a POST in flight is not recalled;
//! * may continue if no process has taken the run: a renewal needs the same owner, not an unexpired lease.
//!
//! # Invariants
//!
//! * At most one process can append events to a run or end it, even if two of them assume that they own it.
//! * A renewal waits for no other work: on `PostgreSQL` `LeaseKeeper` has its own connection, on `SQLite` the writer
//!   has an urgent lane. `LeaseRenewal` has its own thread.
//! * Take-overs skip locked rows. Renewals skip them at first, then lock them in the order of their ids.
//!
//! # Faults
//!
//! | fault | consequence |
//! |---|---|
//! | owner crashes | its session lock is released or its leases expire; one replica takes each run over |
//! | machine of the owner is lost | the server notices no end of the session; the leases expire |
//! | session of the lock ends | the owner locks again; later than two looks, others take async and resumable runs |
//! | database away for less than two thirds of a lease | a later renewal succeeds; no run is lost |
//! | database away for longer | the owner stops its runs; recovery ends or resumes them after the outage |
//! | row locked by a transaction | the run is in `Renewed::busy`: still held, renewed in a second pass or next time |
//! | renewal fails or its reply is lost | the local lease keeps its end until the next renewal |
//! | reply of a take-over lost | the retry finds the own owner and fencing token (`is_held`) |
//! | two replicas take over at once | the second skips the locked row, or finds the lease renewed |
//!
//! # Bounds
//!
//! * `runs.lease_seconds` is the length of a lease. A renewal takes at most half of it, and a quarter for locked rows,
//!   with a lock timeout of a fifth.
//! * One statement has at most `IDS` ids. Recovery reads `BATCH` runs and ends `AT_ONCE` of them concurrently.
//!
//! # Rejected alternatives
//!
//! * Renewal on the shared workers: long computations delayed it, and live runs ended as orphans.
//! * Renewal without locked rows: on a slow database results lock a row most of the time, and the lease expired.

mod owner_lock;
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

use crate::database_clock::{database_now, lease_end, read_clock};
use crate::entity::runs;
use crate::error::{StoreError, parsed};
use crate::mutation::Mutation;
use crate::repositories::LeaseRepository;
use crate::runs::readable;
use crate::sql::skip_locked;

pub use owner_lock::{LockedOwner, OwnerLock};
pub use renewal::{LeaseKeeper, Renewed};

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
    /// Those of an owner whose session lock is gone, also before they expire.
    Unlocked(LockedOwner),
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
            // Compared at the commit as well: an owner that has locked again keeps its runs.
            Self::Unlocked(owner) => Condition::all()
                .add(runs::Column::LeaseOwner.eq(owner.to_string()))
                .add(owner.is_unlocked()),
            Self::None => Condition::all().add(Expr::value(1).eq(0)),
        }
    }
}

impl LeaseRepository<'_> {
    /// Time of the database in epoch milliseconds. `None` on `SQLite`, which uses the process clock.
    pub async fn read_clock(self) -> Result<Option<i64>, StoreError> {
        read_clock(self.db).await
    }

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
