//! Session locks of owners. The server releases the lock of a process that died at once, long before its leases end.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use domain::run::Run;
use protocol::id::RunId;
use protocol::run::RunStatus;
use sea_orm::sea_query::{Expr, SimpleExpr};
use sea_orm::{
    ColumnTrait, Condition, ConnectOptions, ConnectionTrait as _, Database, DbErr, EntityTrait,
    QueryFilter, QueryOrder, QuerySelect, RuntimeErr,
};
use sqlx::postgres::PgListener;
use tokio::time::timeout;
use uuid::Uuid;

use super::LeaseFilter;
use crate::entity::runs;
use crate::error::StoreError;
use crate::repositories::LeaseRepository;
use crate::runs::readable;

/// Prefix of the names of owners that hold a session lock. Other owners lose their runs by the end of a lease only.
const PREFIX: &str = "locked-";
/// Timeout of a lock and of a look, so that a silently dead session is replaced.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Keys of all owner locks. The first number of the key separates them from other advisory locks, `objsubid` from
/// locks with one number.
const HELD: &str = "SELECT CAST(objid AS integer) FROM pg_locks WHERE locktype = 'advisory' \
    AND classid = 1383427695 AND objsubid = 2 AND granted \
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
/// Shared, so that two owners with one key do not wait for each other. The dead one then waits for its lease.
const LOCK: &str = "SELECT pg_advisory_lock_shared(1383427695, $1)";
/// At the limit, the next looks find the others.
const OWNERS: &str = "SELECT DISTINCT lease_owner FROM runs \
    WHERE finished_at IS NULL AND status = 'running' AND lease_owner LIKE 'locked-%' LIMIT 1000";

/// An owner that holds a session lock for as long as its process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockedOwner(Uuid);

impl LockedOwner {
    pub fn new(id: Uuid) -> Self {
        Self(id)
    }

    /// Reads the name of an owner. `None`: it holds no lock.
    pub fn read(name: &str) -> Option<Self> {
        Uuid::parse_str(name.strip_prefix(PREFIX)?).ok().map(Self)
    }

    /// Second number of the key. The last bytes of an id are random.
    fn key(self) -> i32 {
        let [.., a, b, c, d] = self.0.into_bytes();
        i32::from_be_bytes([a, b, c, d])
    }

    /// True in the database while no session holds the lock.
    pub(super) fn is_unlocked(self) -> SimpleExpr {
        let held = format!("NOT EXISTS ({HELD} AND CAST(objid AS integer) = $1)");
        Expr::cust_with_values(held, [self.key()])
    }
}

impl fmt::Display for LockedOwner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{PREFIX}{}", self.0)
    }
}

/// The lock of this process, on a session of its own, and looks at the locks of other owners.
pub struct OwnerLock {
    owner: LockedOwner,
    options: Arc<ConnectOptions>,
    /// `None`: lost.
    session: Option<PgListener>,
    /// Keys at the last look.
    held: HashSet<i32>,
    /// Result of the last look.
    unlocked: HashSet<LockedOwner>,
    has_looked: bool,
}

impl LeaseRepository<'_> {
    /// Locks an owner. `None`: the database has one process, or its sessions do not keep locks.
    pub async fn lock_owner(self, id: Uuid) -> Option<OwnerLock> {
        let mut lock = OwnerLock {
            owner: LockedOwner(id),
            options: Arc::clone(self.db.renewing.as_ref()?),
            session: None,
            held: HashSet::new(),
            unlocked: HashSet::new(),
            has_looked: false,
        };
        let locking = async {
            lock.lock().await?;
            lock.unlocked_owners().await
        };
        if let Err(error) = locking.await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(
                error,
                "no session lock for this replica; after a crash its runs wait for the end of their lease"
            );
            return None;
        }
        lock.has_looked = false;
        Some(lock)
    }

    /// Runs of an owner without a session lock, after this one, by id.
    pub async fn unlocked_runs(
        self,
        owner: LockedOwner,
        after: Option<RunId>,
        limit: u64,
    ) -> Result<Vec<Run>, StoreError> {
        let after = after.map(|id| runs::Column::Id.gt(id.to_string()));
        let backend = self.db.readers.get_database_backend();
        let models = runs::Entity::find()
            .filter(runs::Column::FinishedAt.is_null())
            .filter(runs::Column::Status.eq(RunStatus::Running.as_str()))
            .filter(LeaseFilter::Unlocked(owner).condition("", backend))
            .filter(Condition::all().add_option(after))
            .order_by_asc(runs::Column::Id)
            .limit(limit)
            .all(&self.db.readers)
            .await?;
        Ok(readable(models))
    }
}

impl OwnerLock {
    pub fn owner(&self) -> LockedOwner {
        self.owner
    }

    /// Takes the lock on a new session, unless it is held.
    pub async fn lock(&mut self) -> Result<(), StoreError> {
        if self.session.is_some() {
            return Ok(());
        }
        let locking = async {
            // A pool for each session: a dead one may occupy its slot until its TCP timeout.
            let pool = Database::connect(self.options.as_ref().clone()).await?;
            let pool = pool.get_postgres_connection_pool();
            let mut session = PgListener::connect_with(pool).await.map_err(failed)?;
            // A new session would lack the lock.
            session.eager_reconnect(false);
            let lock = sqlx::query(LOCK).bind(self.owner.key());
            lock.execute(&mut session).await.map_err(failed)?;
            Ok(session)
        };
        let session = timeout(TIMEOUT, locking).await;
        self.session = Some(session.unwrap_or(Err(StoreError::Unreachable))?);
        self.has_looked = false;
        Ok(())
    }

    /// Holds the lock for this time. Fails as soon as its session ends.
    pub async fn hold(&mut self, time: Duration) -> Result<(), StoreError> {
        let session = self.session.as_mut().ok_or(StoreError::Unreachable)?;
        let error = match timeout(time, session.try_recv()).await {
            // Nothing is listened to, so no notification arrives.
            Err(_) | Ok(Ok(Some(_))) => return Ok(()),
            Ok(Ok(None)) => StoreError::Unreachable,
            Ok(Err(error)) => failed(error),
        };
        self.session = None;
        Err(error)
    }

    /// Owners of running runs whose lock no session holds. Reads runs only when a lock is missing that was there at
    /// the last look. An error ends the session.
    pub async fn unlocked_owners(&mut self) -> Result<HashSet<LockedOwner>, StoreError> {
        let looked = timeout(TIMEOUT, self.look()).await;
        let looked = looked.unwrap_or(Err(StoreError::Unreachable));
        match &looked {
            Ok(unlocked) => self.unlocked.clone_from(unlocked),
            Err(_) => self.session = None,
        }
        looked
    }

    async fn look(&mut self) -> Result<HashSet<LockedOwner>, StoreError> {
        let session = self.session.as_mut().ok_or(StoreError::Unreachable)?;
        let held = sqlx::query_scalar(HELD).fetch_all(&mut *session);
        let held: HashSet<i32> = held.await.map_err(failed)?.into_iter().collect();
        if !held.contains(&self.owner.key()) {
            // A pooler released the lock, or it is held by another session.
            return Err(StoreError::Locked);
        }
        let is_calm = self.has_looked && self.unlocked.is_empty() && self.held.is_subset(&held);
        self.has_looked = true;
        self.held = held;
        if is_calm {
            return Ok(HashSet::new());
        }
        let owners = sqlx::query_scalar(OWNERS).fetch_all(session).await;
        let owners: Vec<String> = owners.map_err(failed)?;
        let owners = owners.iter().filter_map(|name| LockedOwner::read(name));
        let is_unlocked = |owner: &LockedOwner| !self.held.contains(&owner.key());
        Ok(owners.filter(is_unlocked).collect())
    }
}

fn failed(error: sqlx::Error) -> StoreError {
    StoreError::Db(DbErr::Query(RuntimeErr::SqlxError(Arc::new(error))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_locked_owners_have_the_prefix() {
        let id = Uuid::now_v7();
        let owner = LockedOwner::new(id);
        assert_eq!(LockedOwner::read(&owner.to_string()), Some(owner));
        for other in [id.to_string(), "locked-".to_owned(), String::new()] {
            assert_eq!(LockedOwner::read(&other), None);
        }
    }
}
