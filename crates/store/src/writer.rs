//! The one task that writes: group commit (runs §3, contracts §9).
//!
//! It drains a bounded queue and commits what has gathered; the commit before is the batching
//! window. On `SQLite` it owns the only write connection. When a batch fails, its items are tried one
//! by one, so that a single bad item never takes its neighbours with it. A commit whose answer was
//! lost may have been made: before an item is tried again, it is asked whether it stands.

mod commits;
mod job;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sea_orm::{ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::bulk::{Done, Together};
use crate::common::Common;
use crate::connect::Store;
use crate::error::StoreError;
use commits::Commits;
use job::{Item, Job};

/// Items of one commit at most.
const BATCH: usize = 256;
/// Bytes of one commit, roughly: everything that comes later waits for it.
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// Items that wait at most. Full: whoever writes waits, and so does the runner's socket behind it.
const QUEUE: usize = 1024;

/// A set of mutations for one run, or one ingest. Applied inside the writer's transaction, and
/// applied again from the start when that transaction failed.
pub trait Work: Send + Sync + 'static {
    /// What the caller learns once the transaction is committed.
    type Output: Send + Sync + 'static;

    /// True for work that may fail after it has written: it gets a savepoint of its own.
    const SAVEPOINT: bool = false;

    /// True for work that takes locks of its own beside those of its run: two replicas that take
    /// several of them in one commit each may meet crosswise.
    const ALONE: bool = false;

    /// The bytes that it writes, roughly, where they may be many.
    fn weight(&self) -> usize {
        0
    }

    /// Items of one batch are applied in this order: the run's id, or nil.
    fn order(&self) -> Uuid {
        Uuid::nil()
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
    const ALONE: bool = W::ALONE;

    fn weight(&self) -> usize {
        W::weight(self)
    }

    fn order(&self) -> Uuid {
        W::order(self)
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
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Queues `work` and returns without waiting for its commit. For rows that nobody waits for.
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

/// The way into the writer's queue.
#[derive(Clone)]
pub(crate) struct Writer {
    queue: mpsc::Sender<Message>,
    /// The database could not commit, and has not proven since that it can.
    is_failing: Arc<AtomicBool>,
}

enum Message {
    Item(Box<dyn Item>),
    Close(oneshot::Sender<()>),
}

impl Writer {
    /// The writer and its work, to be run as one task.
    pub(crate) fn new(db: DatabaseConnection) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (queue, inbox) = mpsc::channel(QUEUE);
        let is_failing = Arc::new(AtomicBool::new(false));
        let writer = Self {
            queue,
            is_failing: Arc::clone(&is_failing),
        };
        (writer, run(Commits::new(db, is_failing), inbox))
    }

    async fn send(&self, item: Box<dyn Item>) -> Result<(), StoreError> {
        self.queue
            .send(Message::Item(item))
            .await
            .map_err(|_| StoreError::Closed)
    }

    /// Items that wait.
    pub(crate) fn queued(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }

    /// True while the task takes work.
    pub(crate) fn is_open(&self) -> bool {
        !self.queue.is_closed()
    }

    /// True from a commit that failed for the database's sake to the next proof that it can commit.
    pub(crate) fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Acquire)
    }

    pub(crate) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.queue.send(Message::Close(done)).await.is_ok() {
            let _ = closed.await;
        }
    }
}

async fn run(commits: Commits, mut inbox: mpsc::Receiver<Message>) {
    let mut batch: Vec<Box<dyn Item>> = Vec::new();
    while let Some(first) = inbox.recv().await {
        let mut next = Some(first);
        let mut closing = None;
        let mut bytes = 0;
        while let Some(message) = next.take() {
            match message {
                Message::Item(item) => {
                    bytes += item.weight();
                    batch.push(item);
                }
                Message::Close(done) => {
                    inbox.close();
                    closing = Some(done);
                }
            }
            if batch.len() < BATCH && bytes < BATCH_BYTES {
                next = inbox.try_recv().ok();
            }
        }
        batch.sort_by_key(|item| item.order());
        let (alone, together): (Vec<_>, Vec<_>) = std::mem::take(&mut batch)
            .into_iter()
            .partition(|item| item.is_alone());
        if !together.is_empty() {
            commits.together(together).await;
        }
        for item in alone {
            commits.alone(item).await;
        }
        if let Some(done) = closing {
            let _ = done.send(());
            return;
        }
    }
}
