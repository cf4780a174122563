//! The writer task: group commit.
//!
//! One task per process writes. It drains a bounded queue and commits the gathered items in one transaction. An item
//! is a [`Mutation`] with the channel for its result. A caller gets its result after the commit, never before.
//! On `SQLite` the writer owns the write connections and runs on a thread of its own, because commits block there.
//!
//! # Sequence
//!
//! 1. `Writer::send` takes permits for the bytes of an item and queues it. Urgent items take their own lane.
//! 2. `WriteQueue::gather` takes all queued items, urgent ones first. The commit in flight is the batching window.
//!    A batch without a waiting caller lingers up to `LINGER`, because many rows cost little more than one.
//! 3. `commit` sorts by run id and splits the batch. Urgent items commit first, in their own transaction. On
//!    `PostgreSQL` events, plain items and items with a named advisory lock follow in separate transactions.
//!    Only one of these three runs before the next urgent items; `Commits::defer` keeps the others.
//! 4. `DirectCommits` runs batch operations on a connection of the writer's own. On `SQLite` the pool costs a round
//!    trip to another thread per statement; on `PostgreSQL` the direct connection pipelines statements. The pool gets
//!    the remaining items, and the full batch after an error.
//! 5. `transact` takes the locks, applies events first, and applies items of one kind in few statements (`batch`).
//!    A batch is the only form of these kinds. An item that needs the changes of its predecessor comes after these,
//!    as a batch of one.
//! 6. After the commit each item reports its result. Then the writer retries due items of the lock-wait queue.
//!
//! # Lock order
//!
//! All replicas lock in one order: named advisory locks by name, `AdvisoryKey`s by number, conversations by key, runs
//! by id. `LockSet` takes only the locks that the statements of a batch do not take in this order themselves.
//! Events learn their rows in their own transaction, so none is locked in advance. `SQLite` has one writer and
//! needs no locks. `BEGIN IMMEDIATE` takes its write lock first: an upgrade after a read would fail as busy.
//!
//! # Invariants
//!
//! * A deferred item commits before newer ones. Only urgent items overtake it.
//! * Items of one run or conversation keep their order in the lock-wait queue (`RowKeys::must_follow`).
//! * Urgent items (lease renewals) never enter the lock-wait queue. They commit before the next part of a batch.
//! * An item with a result of an earlier try calls `Mutation::is_committed` before it is applied again.
//! * A transaction runs SQL only, and no call to another service.
//!
//! # Faults
//!
//! | fault | consequence |
//! |---|---|
//! | an item fails in its savepoint | only this item fails; the transaction continues |
//! | another error of a batch | rollback, then one transaction per item, so a bad item fails by itself |
//! | deadlock or serialization conflict | one more try of the batch, then up to `TRIES` of each item in one `silence` |
//! | lock timeout | items are tried with `BATCH_LOCK_TIMEOUT`; a blocked one moves to the lock-wait queue |
//! | commit reply lost | the outcome is unknown; each item checks for its earlier commit and is applied if absent |
//! | direct connection lost | the pool tries the batch; the next batch opens a new direct connection |
//! | silence, or no connection | `StoreError::Unreachable` for all items, without a timeout for each |
//! | panic of an item | handled like an error of this item, as `StoreError::Panicked` |
//! | panic elsewhere | callers of the gathered items get an error; the writer continues (`keep_running`) |
//!
//! A caller that waits decides on retries itself. Items without a caller are retained through an outage, up to
//! `MAX_RETAINED`, and precede newer ones. `Writer::close` commits the queued items, tries those of the lock-wait
//! queue once more and fails the rest.
//!
//! # Bounds
//!
//! * Queue: `MAX_QUEUED_ITEMS`, `MAX_QUEUED_BYTES`, `MAX_URGENT_ITEMS`. A full queue makes senders wait, so a relay
//!   stops its reads from the runner's socket.
//! * One commit: `BATCH` items, about `BATCH_BYTES`.
//! * One transaction: `TxTimeout::silence` without a reply (a third of a lease, 1 to 15 s), or 1.5 times that in
//!   total. After a share of it (`SILENCE_DIVISOR`) no further item starts; the rest is deferred.
//! * Lock-wait queue: `MAX_ITEMS`, `MAX_BYTES`, and one `silence` per item. A retry follows after `RETRY_PAUSE` with
//!   `FIRST_LOCK_TIMEOUT`, doubled up to `MAX_LOCK_TIMEOUT`. After its deadline the item fails. Writes of the same
//!   key then move to this queue at once, without a try, for `FAIL_FAST_FOR`. Items beyond a full queue fail.
//!
//! # Rejected alternatives
//!
//! * A fixed transaction timeout: a slow database still replies, so each reply extends the wait up to the total.
//! * A check of each pooled connection before its use costs a round trip; silence detects a dead connection.
//! * A wait for locks within the batch delays all its items, so blocked items leave the batch.

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
use sea_orm::{DatabaseConnection, DbBackend};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::error::StoreError;
use commits::{Commits, DatabaseReached};
use job::Item;
use queue::{WriteQueue, Writer, queue};
use telemetry::metrics::{self, PanickedTask};
use tx_timeout::TxTimeout;

pub use crate::mutation::Mutation;
pub(crate) use direct::{DirectConnection, PostgresSlot};

/// Creates the writer handle and its future; the caller runs the future as one task. `silence`: see
/// `Store::open_for_leases`.
pub(crate) fn writer(
    db: DatabaseConnection,
    direct: Option<DirectConnection>,
    silence: Duration,
) -> (Writer, impl Future<Output = ()> + Send + use<>) {
    let is_failing = Arc::new(AtomicBool::new(false));
    let (writer, inbox) = queue(Arc::clone(&is_failing));
    // Commits on `SQLite` wait for the disk; on a server they wait in the runtime.
    let blocks = matches!(direct, Some(DirectConnection::Sqlite(_)));
    let commits = Commits::new(db, direct, is_failing, TxTimeout::of(silence));
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
        // Dropped after the runtime, so its tasks have ended when the caller continues.
        drop(done);
    });
    match spawned {
        Ok(_) => drop(ended.await),
        Err(error) => {
            tracing::error!(%error, "writer cannot start its thread, all writes fail; restart the gateway");
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
        metrics::panicked(PanickedTask::Writer);
    }
}

async fn run(commits: &Commits, inbox: &mut WriteQueue) {
    // A panic may leave deferred items.
    commit_deferred(commits, inbox).await;
    while let Some(mut gathered) = inbox.gather(commits.next_lock_retry()).await {
        // Items stored through an outage precede newer ones of the same run: the sort is stable.
        let mut batch = commits.take_retained();
        batch.append(&mut gathered.items);
        commit(commits, batch).await;
        commit_deferred(commits, inbox).await;
        commits.retry_lock_waits().await;
        if let Some(done) = gathered.closing {
            drain_lock_waits(commits).await;
            // The process ends: a later retry is impossible, so these items fail now.
            commits
                .take_retained()
                .into_iter()
                .for_each(fail_unreachable);
            commits.truncate_wal();
            // The caller of `close` may have timed out; the writer ends anyway.
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
        // Lease renewals do not wait for the deferred items: an expired lease would end live runs.
        let mut batch = commits.take_deferred();
        batch.append(&mut inbox.gather_urgent());
        commit(commits, batch).await;
    }
}

/// Commits a batch. Urgent items, events and locking items each have their own transaction. At most one
/// non-urgent transaction runs per call, so lease renewals get their turn.
async fn commit(commits: &Commits, mut batch: Vec<Box<dyn Item>>) {
    // Rows are locked in the order of the batch, so all replicas lock runs in the order of their ids.
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
