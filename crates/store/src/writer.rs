//! The one task that writes: group commit (runs §3, contracts §9).
//!
//! It drains a bounded queue and commits what has gathered; the commit before is the batching
//! window. On `SQLite` it owns the only write connection. When a batch fails, its items are tried one
//! by one, so that a single bad item never takes its neighbours with it.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::FutureExt;
use sea_orm::{
    DatabaseConnection, DatabaseTransaction, SqliteTransactionMode, TransactionOptions,
    TransactionTrait,
};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::bulk::{self, Done, Together};
use crate::common::Common;
use crate::connect::Store;
use crate::error::StoreError;
use job::{Item, Job};

mod job;

/// Items of one commit at most.
const BATCH: usize = 256;
/// Bytes of one commit, roughly: everything that comes later waits for it.
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// Items that wait at most. Full: whoever writes waits, and so does the runner's socket behind it.
const QUEUE: usize = 1024;
/// Tries of one item that lost against another writer.
const TRIES: u32 = 5;

/// A set of mutations for one run, or one ingest. Applied inside the writer's transaction, and
/// applied again from the start when that transaction failed.
pub trait Work: Send + Sync + 'static {
    /// What the caller learns once the transaction is committed.
    type Output: Send + 'static;

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
}

/// The way into the writer's queue.
#[derive(Clone)]
pub(crate) struct Writer {
    queue: mpsc::Sender<Message>,
}

enum Message {
    Item(Box<dyn Item>),
    Close(oneshot::Sender<()>),
}

impl Writer {
    /// The writer and its work, to be run as one task.
    pub(crate) fn new(db: DatabaseConnection) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (queue, inbox) = mpsc::channel(QUEUE);
        (Self { queue }, run(db, inbox))
    }

    async fn send(&self, item: Box<dyn Item>) -> Result<(), StoreError> {
        self.queue
            .send(Message::Item(item))
            .await
            .map_err(|_| StoreError::Closed)
    }

    /// True while the task takes work.
    pub(crate) fn is_open(&self) -> bool {
        !self.queue.is_closed()
    }

    pub(crate) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.queue.send(Message::Close(done)).await.is_ok() {
            let _ = closed.await;
        }
    }
}

async fn run(db: DatabaseConnection, mut inbox: mpsc::Receiver<Message>) {
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
            commit(&db, together).await;
        }
        for item in alone {
            commit_alone(&db, item).await;
        }
        if let Some(done) = closing {
            let _ = done.send(());
            return;
        }
    }
}

async fn commit(db: &DatabaseConnection, mut batch: Vec<Box<dyn Item>>) {
    if batch.len() == 1 {
        for item in batch {
            commit_alone(db, item).await;
        }
        return;
    }
    match transact(db, &mut batch).await {
        Ok(refusals) => {
            for (item, refusal) in batch.into_iter().zip(refusals) {
                item.settle(refusal);
            }
        }
        // One by one they would wait for the same absent database.
        Err(StoreError::Unreachable) => {
            for item in batch {
                item.settle(Some(StoreError::Unreachable));
            }
        }
        Err(error) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                items = batch.len(),
                "a batch failed, its items are tried one by one"
            );
            for item in batch {
                commit_alone(db, item).await;
            }
        }
    }
}

async fn commit_alone(db: &DatabaseConnection, item: Box<dyn Item>) {
    let mut alone = vec![item];
    let mut outcome = transact(db, &mut alone).await;
    for _ in 1..TRIES {
        match &outcome {
            Err(error) if error.is_contention() => outcome = transact(db, &mut alone).await,
            _ => break,
        }
    }
    let Some(item) = alone.pop() else { return };
    match outcome {
        Ok(mut refusals) => item.settle(refusals.pop().flatten()),
        Err(error) => item.settle(Some(error)),
    }
}

/// One transaction over the batch. Gives each item's refusal; an error means that nothing was written.
async fn transact(
    db: &DatabaseConnection,
    batch: &mut [Box<dyn Item>],
) -> Result<Vec<Option<StoreError>>, StoreError> {
    let immediate = TransactionOptions {
        sqlite_transaction_mode: Some(SqliteTransactionMode::Immediate),
        ..TransactionOptions::default()
    };
    let tx = match db
        .begin_with_options(immediate)
        .await
        .map_err(StoreError::from)
    {
        Ok(tx) => tx,
        Err(error) if error.may_pass() && !error.is_contention() => {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "no transaction could begin"
            );
            return Err(StoreError::Unreachable);
        }
        Err(error) => return Err(error),
    };
    let mut refusals = Vec::with_capacity(batch.len());
    let mut common = Common::default();
    let together = first_of_each_run(batch);
    for (place, item) in batch.iter_mut().enumerate() {
        let refusal = if together.contains(&place) {
            None
        } else {
            apply(&tx, item.as_mut(), &mut common).await?
        };
        refusals.push(refusal);
    }
    // Last, as an ingest does: conversations first, their runs after.
    guarded(apply_together(&tx, batch, &together)).await?;
    tx.commit().await?;
    Ok(refusals)
}

/// Applies one item. Gives its refusal; an error takes the whole transaction back.
async fn apply(
    tx: &DatabaseTransaction,
    item: &mut dyn Item,
    common: &mut Common,
) -> Result<Option<StoreError>, StoreError> {
    let changes_agents = item.changes_agents();
    let refusal = if item.in_savepoint() {
        let inner = tx.begin().await?;
        match guarded(item.apply(&inner, common)).await {
            Ok(()) => {
                inner.commit().await?;
                None
            }
            Err(error) if error.is_contention() => return Err(error),
            Err(error) => {
                inner.rollback().await?;
                Some(error)
            }
        }
    } else {
        guarded(item.apply(tx, common)).await?;
        None
    };
    if changes_agents {
        *common = Common::default();
    }
    Ok(refusal)
}

/// The places of what can be done together. Two items of one kind for one run are not: the second one
/// must see what the first one did.
fn first_of_each_run(batch: &[Box<dyn Item>]) -> Vec<usize> {
    let mut seen = HashSet::new();
    let kinds = batch
        .iter()
        .map(|item| item.together().map(|work| work.key()));
    let first = kinds
        .enumerate()
        .filter(|(_, key)| key.is_some_and(|key| seen.insert(key)));
    first.map(|(place, _)| place).collect()
}

async fn apply_together(
    tx: &DatabaseTransaction,
    batch: &mut [Box<dyn Item>],
    places: &[usize],
) -> Result<(), StoreError> {
    let work: Vec<_> = places
        .iter()
        .filter_map(|place| batch[*place].together())
        .collect();
    let done = bulk::apply(tx, &work).await?;
    for (place, done) in places.iter().zip(done) {
        batch[*place].note_done(done);
    }
    Ok(())
}

/// A panic of one item is its own fault and nobody else's: the writer lives on.
async fn guarded(applying: impl Future<Output = Result<(), StoreError>>) -> Result<(), StoreError> {
    let applied = std::panic::AssertUnwindSafe(applying).catch_unwind().await;
    applied.unwrap_or(Err(StoreError::Panicked))
}
