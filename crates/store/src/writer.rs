//! The writer task: group commit (runs §3, contracts §9).
//!
//! The writer drains a bounded queue, urgent items first, and commits the gathered items in one transaction. The
//! previous commit is the batching window. On `SQLite` it owns the only write connection. When a batch fails,
//! the writer retries its items one by one, so a bad item fails alone. A commit with a lost reply may have
//! succeeded, so each item checks for its earlier result before a retry.

mod batch_plan;
mod commits;
mod direct;
pub(crate) mod job;
mod lock_order;
mod lock_wait_queue;
pub(crate) mod queue;
mod transaction;
mod tx_timeout;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures_util::FutureExt;
use sea_orm::{DatabaseConnection, DatabaseTransaction, DbBackend};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::batch::{BatchOp, BatchResult};
use crate::error::StoreError;
use crate::metrics;
use crate::sqlite_direct::SqliteDirect;
use crate::tx_cache::TxCache;
use commits::{Commits, DatabaseReached};
use job::Item;
use queue::{WriteQueue, Writer, queue};
use tx_timeout::TxTimeout;

pub(crate) use lock_order::Share;

/// A set of mutations for one run, or one ingest. The writer applies it inside its transaction, and again from
/// the start after a failed transaction.
pub trait Mutation: Send + Sync + 'static {
    /// The caller's result after the commit.
    type Output: Send + Sync + 'static;

    /// True for work that may fail after a write: the writer wraps it in a savepoint.
    const SAVEPOINT: bool = false;

    /// True for work that skips the queue, for example lease renewal.
    const URGENT: bool = false;

    /// True for event ingest: it locks capacities and conversations that may not exist yet. On `PostgreSQL` such
    /// work commits in its own transactions, which keep these locks short and lock no run row before.
    const TAKES_EVENT: bool = false;

    /// Name of an advisory lock, in addition to the locks of its run. On `PostgreSQL` such work commits in its
    /// own transactions, which take these locks first and in one order, so replicas do not deadlock. `SQLite`
    /// has one writer and needs no lock.
    fn lock(&self) -> Option<String> {
        None
    }

    /// Approximate bytes to write, where they may be many.
    fn weight(&self) -> usize {
        0
    }

    /// Sort key within a batch: the run's id, or nil.
    fn order(&self) -> Uuid {
        Uuid::nil()
    }

    /// The key of the conversation that it locks.
    fn conversation(&self) -> Option<&str> {
        None
    }

    /// The state scopes and agents with rows that it writes. Runs of any conversation share these rows: see
    /// [`Share`].
    fn shares(&self) -> Vec<Share> {
        Vec::new()
    }

    /// False for work that never changes agents or runners.
    const CHANGES_AGENTS: bool = true;

    /// The batch operation of this work, if its kind has one. The writer then does not call `apply`.
    fn batched(&self) -> Option<BatchOp<'_>> {
        None
    }

    /// The caller's result, built from the result of the batch operation.
    fn output_of(&self, _done: BatchResult) -> Option<Self::Output> {
        None
    }

    /// Applies the mutations.
    fn apply(
        &self,
        tx: &DatabaseTransaction,
    ) -> impl Future<Output = Result<Self::Output, StoreError>> + Send;

    /// Applies the mutations, with reads cached by earlier items of the transaction.
    fn apply_with(
        &self,
        tx: &DatabaseTransaction,
        _common: &mut TxCache,
    ) -> impl Future<Output = Result<Self::Output, StoreError>> + Send {
        self.apply(tx)
    }

    /// True when an earlier try with the result `_told` is committed, so a retry must not apply it again.
    /// Idempotent work needs no check.
    fn is_committed(
        &self,
        _tx: &DatabaseTransaction,
        _told: &Self::Output,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        std::future::ready(Ok(false))
    }
}

/// Shares work across retries without a copy.
impl<W: Mutation> Mutation for Arc<W> {
    type Output = W::Output;
    const SAVEPOINT: bool = W::SAVEPOINT;
    const URGENT: bool = W::URGENT;
    const TAKES_EVENT: bool = W::TAKES_EVENT;

    fn lock(&self) -> Option<String> {
        W::lock(self)
    }

    fn weight(&self) -> usize {
        W::weight(self)
    }

    fn order(&self) -> Uuid {
        W::order(self)
    }

    fn conversation(&self) -> Option<&str> {
        W::conversation(self)
    }

    fn shares(&self) -> Vec<Share> {
        W::shares(self)
    }

    const CHANGES_AGENTS: bool = W::CHANGES_AGENTS;

    fn batched(&self) -> Option<BatchOp<'_>> {
        W::batched(self)
    }

    fn output_of(&self, done: BatchResult) -> Option<Self::Output> {
        W::output_of(self, done)
    }

    fn apply(
        &self,
        tx: &DatabaseTransaction,
    ) -> impl Future<Output = Result<Self::Output, StoreError>> + Send {
        W::apply(self, tx)
    }

    fn apply_with(
        &self,
        tx: &DatabaseTransaction,
        tx_cache: &mut TxCache,
    ) -> impl Future<Output = Result<Self::Output, StoreError>> + Send {
        W::apply_with(self, tx, tx_cache)
    }

    fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        told: &Self::Output,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        W::is_committed(self, tx, told)
    }
}

/// Creates the writer handle and its future; the caller runs the future as one task. `silence`: see
/// `Store::open_for_leases`.
pub(crate) fn writer(
    db: DatabaseConnection,
    sqlite_direct: Option<SqliteDirect>,
    silence: Duration,
) -> (Writer, impl Future<Output = ()> + Send + use<>) {
    let is_failing = Arc::new(AtomicBool::new(false));
    let (writer, inbox) = queue(Arc::clone(&is_failing));
    let blocks = sqlite_direct.is_some();
    let commits = Commits::new(db, sqlite_direct, is_failing, TxTimeout::of(silence));
    let work = keep_running(commits, inbox);
    let work = async move {
        if blocks {
            on_dedicated_thread(work).await;
        } else {
            work.await;
        }
    };
    (writer, work)
}

/// Runs `work` on a dedicated thread, because its statements and commits block. The thread has its own runtime:
/// the pool returns connections in tasks, which would otherwise wait for busy workers of the caller's runtime.
async fn on_dedicated_thread(work: impl Future<Output = ()> + Send + 'static) {
    let (done, ended) = oneshot::channel::<()>();
    let thread = std::thread::Builder::new().name("writer".to_owned());
    let spawned = thread.spawn(move || {
        match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(work),
            Err(error) => {
                tracing::error!(%error, "writer cannot create its runtime, all writes fail; restart the gateway");
            }
        }
        drop(done);
    });
    match spawned {
        Ok(_) => drop(ended.await),
        Err(error) => {
            tracing::error!(%error, "writer cannot start its thread, all writes fail; restart the gateway")
        }
    }
}

/// Runs the writer until the store is closed. Items catch their own panics. A panic elsewhere drops the gathered
/// items: their callers get an error, and the writer continues.
async fn keep_running(commits: Commits, mut inbox: WriteQueue) {
    while AssertUnwindSafe(run(&commits, &mut inbox))
        .catch_unwind()
        .await
        .is_err()
    {
        tracing::error!("writer panicked and lost its batch, continuing with the next");
        metrics::panicked();
    }
}

async fn run(commits: &Commits, inbox: &mut WriteQueue) {
    // A panic may leave deferred items.
    commit_deferred(commits, inbox).await;
    while let Some(mut gathered) = inbox.gather(commits.next_lock_retry()).await {
        let mut batch = commits.take_kept();
        batch.append(&mut gathered.items);
        commit(commits, batch).await;
        commit_deferred(commits, inbox).await;
        commits.retry_lock_waits().await;
        if let Some(done) = gathered.closing {
            drain_lock_waits(commits).await;
            commits.take_kept().into_iter().for_each(fail_unreachable);
            commits.truncate_wal();
            let _ = done.send(());
            return;
        }
    }
}

/// Tries the items in the lock-wait queue once more, then fails them.
async fn drain_lock_waits(commits: &Commits) {
    if let Some(due) = commits.next_lock_retry() {
        tokio::time::sleep_until(due.into()).await;
        commits.retry_lock_waits().await;
        commits.fail_expired_lock_waits(None);
    }
}

/// Deferred items commit before newer ones; only urgent items overtake them.
async fn commit_deferred(commits: &Commits, inbox: &mut WriteQueue) {
    while commits.is_deferred() {
        let mut batch = commits.take_deferred();
        batch.append(&mut inbox.gather_urgent());
        commit(commits, batch).await;
    }
}

/// Commits a batch. Urgent items, events and locking items each have their own transaction. At most one
/// non-urgent transaction runs per call, so lease renewals get their turn.
async fn commit(commits: &Commits, mut batch: Vec<Box<dyn Item>>) {
    batch.sort_by_key(|item| item.order());
    let (urgent, rest): (Vec<_>, Vec<_>) = batch.into_iter().partition(|item| item.is_urgent());
    let (next, later) = split_batch(commits.backend(), rest);
    // The database is unreachable: fail the remaining items instead of a second timeout.
    if commits.batched(urgent).await == DatabaseReached::No {
        commits.fail_all(next.into_iter().chain(later));
    } else if commits.batched(next).await == DatabaseReached::No {
        commits.fail_all(later);
    } else {
        commits.defer(later);
    }
}

/// Splits a batch into the next transaction and the rest. Order: events, plain items, items with advisory locks.
fn split_batch(backend: DbBackend, batch: Vec<Box<dyn Item>>) -> (ItemBatch, ItemBatch) {
    // On SQLite no commits run concurrently.
    if backend == DbBackend::Sqlite {
        return (batch, Vec::new());
    }
    let (events, rest): (Vec<_>, Vec<_>) = batch.into_iter().partition(|item| item.takes_event());
    let (locking, others): (Vec<_>, Vec<_>) =
        rest.into_iter().partition(|item| item.lock().is_some());
    let mut parts = [events, others, locking].into_iter();
    let next = parts.find(|part| !part.is_empty()).unwrap_or_default();
    (next, parts.flatten().collect())
}

type ItemBatch = Vec<Box<dyn Item>>;

fn fail_unreachable(item: Box<dyn Item>) {
    item.finish(Some(StoreError::Unreachable));
}
