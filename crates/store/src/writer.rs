//! The one task that writes: group commit (runs §3, contracts §9).
//!
//! It drains a bounded queue, first what is urgent, and commits what has gathered; the commit before is the batching
//! window. On `SQLite` it owns the only write connection. When a batch fails, its items are tried one
//! by one, so that a single bad item never takes its neighbours with it. A commit whose answer was
//! lost may have been made: before an item is tried again, it is asked whether it stands.

mod aside;
mod commits;
mod crossing;
mod job;
mod patience;
mod places;
mod queue;
mod transaction;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use sea_orm::{ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::bulk::{Done, Together};
use crate::common::Common;
use crate::connect::Store;
use crate::error::StoreError;
use crate::inline::Inline;
use crate::meter;
use commits::{Commits, Reached};
use job::{Item, Job};
use patience::Patience;
use queue::{Inbox, queue};

pub(crate) use crossing::Share;
pub(crate) use queue::Writer;

/// A set of mutations for one run, or one ingest. Applied inside the writer's transaction, and
/// applied again from the start when that transaction failed.
pub trait Work: Send + Sync + 'static {
    /// What the caller learns once the transaction is committed.
    type Output: Send + Sync + 'static;

    /// True for work that may fail after it has written: it gets a savepoint of its own.
    const SAVEPOINT: bool = false;

    /// True for the little that everything else hangs on: it does not wait behind the queue.
    const URGENT: bool = false;

    /// True for what takes an event: it holds capacities, and conversations that may not be there yet. On `PostgreSQL`
    /// such work has commits of its own, which hold them no longer than it needs, and before no row of a run.
    const TAKES_EVENT: bool = false;

    /// The name of a lock that it needs beside those of its run. Work that names one has commits of its own
    /// on `PostgreSQL`, which take all such locks first and in one order, so that two replicas never meet
    /// crosswise. `SQLite` has one writer and takes none.
    fn lock(&self) -> Option<String> {
        None
    }

    /// The bytes that it writes, roughly, where they may be many.
    fn weight(&self) -> usize {
        0
    }

    /// Items of one batch are applied in this order: the run's id, or nil.
    fn order(&self) -> Uuid {
        Uuid::nil()
    }

    /// The key of the conversation that it locks.
    fn conversation(&self) -> Option<&str> {
        None
    }

    /// The scopes of state and the agents that it writes rows of, which runs of any conversation share: see
    /// [`Share`].
    fn shares(&self) -> Vec<Share> {
        Vec::new()
    }

    /// False for work that surely leaves agents and runners as they are.
    const CHANGES_AGENTS: bool = true;

    /// What it is, when many of its kind can be done in few statements. It is then not applied by itself.
    fn together(&self) -> Option<Together<'_>> {
        None
    }

    /// What the caller learns, when it was done together with others.
    fn output_of(&self, _done: Done) -> Option<Self::Output> {
        None
    }

    /// The mutations.
    fn apply(
        &self,
        tx: &DatabaseTransaction,
    ) -> impl Future<Output = Result<Self::Output, StoreError>> + Send;

    /// The mutations, with what other items of the same transaction have read.
    fn apply_with(
        &self,
        tx: &DatabaseTransaction,
        _common: &mut Common,
    ) -> impl Future<Output = Result<Self::Output, StoreError>> + Send {
        self.apply(tx)
    }

    /// True when an earlier try of this very work, which told `_told`, is committed, so that it must not
    /// be applied again. Work that finds this out by itself needs none.
    fn stands(
        &self,
        _tx: &DatabaseTransaction,
        _told: &Self::Output,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        std::future::ready(Ok(false))
    }
}

/// Work that is tried again is shared, not copied.
impl<W: Work> Work for Arc<W> {
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

    fn together(&self) -> Option<Together<'_>> {
        W::together(self)
    }

    fn output_of(&self, done: Done) -> Option<Self::Output> {
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
        common: &mut Common,
    ) -> impl Future<Output = Result<Self::Output, StoreError>> + Send {
        W::apply_with(self, tx, common)
    }

    fn stands(
        &self,
        tx: &DatabaseTransaction,
        told: &Self::Output,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        W::stands(self, tx, told)
    }
}

impl Store {
    /// Does `work` and returns once it is committed.
    pub async fn write<W: Work>(&self, work: W) -> Result<W::Output, StoreError> {
        let (reply, answer) = oneshot::channel();
        let job = Job::new(work, Some(reply));
        self.writer.send(Box::new(job)).await?;
        answer.await.map_err(|_| {
            if self.writer.is_open() {
                StoreError::Panicked
            } else {
                StoreError::Closed
            }
        })?
    }

    /// Queues `work` and returns without waiting for its commit. For rows that nobody waits for. While
    /// the database is away 1,024 of them are kept for when it is back; more are lost, and so are all when
    /// the process ends before. Its `stands` must tell whether an earlier try is committed.
    pub async fn write_later<W: Work>(&self, work: W) -> Result<(), StoreError> {
        self.writer.send(Box::new(Job::new(work, None))).await
    }

    /// Writes something small, and says whether that went well.
    pub(crate) async fn prove_writing(&self) -> bool {
        let proven = self.write(Proof).await.is_ok();
        if proven {
            self.writer.is_failing.store(false, Ordering::Release);
        }
        proven
    }
}

/// A commit that reaches the disk and changes nothing.
struct Proof;

impl Work for Proof {
    type Output = ();

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        if tx.get_database_backend() == DbBackend::Sqlite {
            // A number in the head of the file that is ours to choose; nothing else sets it.
            tx.execute_unprepared("PRAGMA user_version = 1").await?;
        } else {
            tx.execute_unprepared("SELECT pg_current_xact_id()").await?;
        }
        Ok(())
    }
}

/// The writer and its work, to be run as one task. `silence`: see [`Store::open_for_leases`].
pub(crate) fn writer(
    db: DatabaseConnection,
    inline: Option<Inline>,
    silence: Duration,
) -> (Writer, impl Future<Output = ()> + Send + use<>) {
    let is_failing = Arc::new(AtomicBool::new(false));
    let (writer, inbox) = queue(Arc::clone(&is_failing));
    let blocks = inline.is_some();
    let commits = Commits::new(db, inline, is_failing, Patience::of(silence));
    let work = keep_running(commits, inbox);
    let work = async move {
        if blocks {
            on_a_thread_of_its_own(work).await;
        } else {
            work.await;
        }
    };
    (writer, work)
}

/// For work that blocks: statements and commits that run where they are called. Its runtime is its own, too: the pool
/// takes connections back by tasks, which would wait for busy workers of the caller's.
async fn on_a_thread_of_its_own(work: impl Future<Output = ()> + Send + 'static) {
    let (done, ended) = oneshot::channel::<()>();
    let thread = std::thread::Builder::new().name("writer".to_owned());
    let spawned = thread.spawn(move || {
        match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(work),
            Err(error) => {
                tracing::error!(%error, "the writer has no runtime, nothing can be stored");
            }
        }
        drop(done);
    });
    match spawned {
        Ok(_) => drop(ended.await),
        Err(error) => tracing::error!(%error, "the writer has no thread, nothing can be stored"),
    }
}

/// Writes until the store is closed. A panic outside of all items, which have their own guard, takes what
/// had gathered with it: who waits for that is told, and the next is written.
async fn keep_running(commits: Commits, mut inbox: Inbox) {
    while AssertUnwindSafe(run(&commits, &mut inbox))
        .catch_unwind()
        .await
        .is_err()
    {
        tracing::error!("the writer panicked, and goes on with what comes next");
        meter::panicked();
    }
}

async fn run(commits: &Commits, inbox: &mut Inbox) {
    // After a panic there may be some.
    catch_up(commits, inbox).await;
    while let Some(mut gathered) = inbox.gather(commits.aside_due()).await {
        let mut batch = commits.take_kept();
        batch.append(&mut gathered.items);
        commit(commits, batch).await;
        catch_up(commits, inbox).await;
        commits.try_aside().await;
        if let Some(done) = gathered.closing {
            finish_aside(commits).await;
            commits.take_kept().into_iter().for_each(lose);
            commits.tidy_up();
            let _ = done.send(());
            return;
        }
    }
}

/// What waits for locks is tried once more, and given up.
async fn finish_aside(commits: &Commits) {
    if let Some(due) = commits.aside_due() {
        tokio::time::sleep_until(due.into()).await;
        commits.try_aside().await;
        commits.give_up_aside(None);
    }
}

/// What is late waits for nothing that came after it but what is urgent.
async fn catch_up(commits: &Commits, inbox: &mut Inbox) {
    while commits.is_late() {
        let mut batch = commits.take_late();
        batch.append(&mut inbox.gather_urgent());
        commit(commits, batch).await;
    }
}

/// What is urgent has a transaction of its own, which hangs on nothing else; and so have events, and what takes locks.
/// Never two that are not urgent: a lease may be renewed in between.
async fn commit(commits: &Commits, mut batch: Vec<Box<dyn Item>>) {
    batch.sort_by_key(|item| item.order());
    let (urgent, rest): (Vec<_>, Vec<_>) = batch.into_iter().partition(|item| item.is_urgent());
    let (next, later) = apart(commits.backend(), rest);
    // Whoever comes behind what the database was not there for would wait for it as long again.
    if commits.together(urgent).await == Reached::No {
        commits.give_up(next.into_iter().chain(later));
    } else if commits.together(next).await == Reached::No {
        commits.give_up(later);
    } else {
        commits.put_off(later);
    }
}

/// What goes into the next transaction, and what comes after it: events, then all that has no other place, then what
/// takes locks.
fn apart(backend: DbBackend, batch: Vec<Box<dyn Item>>) -> (Batch, Batch) {
    // On SQLite every commit is the only one at its time.
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

type Batch = Vec<Box<dyn Item>>;

fn lose(item: Box<dyn Item>) {
    item.settle(Some(StoreError::Unreachable));
}
