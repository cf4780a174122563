//! The one task that writes: group commit (runs §3, contracts §9).
//!
//! It drains a bounded queue and commits what has gathered; the commit before is the batching
//! window. On `SQLite` it owns the only write connection. When a batch fails, its items are tried one
//! by one, so that a single bad item never takes its neighbours with it.

use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sea_orm::{
    DatabaseConnection, DatabaseTransaction, SqliteTransactionMode, TransactionOptions,
    TransactionTrait,
};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::connect::Store;
use crate::error::StoreError;
use crate::failpoint;
use crate::meter;

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

    /// The mutations.
    fn apply(
        &self,
        tx: &DatabaseTransaction,
    ) -> impl Future<Output = Result<Self::Output, StoreError>> + Send;
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

    fn apply(
        &self,
        tx: &DatabaseTransaction,
    ) -> impl Future<Output = Result<Self::Output, StoreError>> + Send {
        W::apply(self, tx)
    }
}

impl Store {
    /// Does `work` and returns once it is committed.
    pub async fn write<W: Work>(&self, work: W) -> Result<W::Output, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.writer
            .send(Box::new(Job {
                work,
                output: None,
                reply: Some(reply),
            }))
            .await?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Queues `work` and returns without waiting for its commit. For rows that nobody waits for.
    pub async fn write_later<W: Work>(&self, work: W) -> Result<(), StoreError> {
        self.writer
            .send(Box::new(Job {
                work,
                output: None,
                reply: None,
            }))
            .await
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

    /// Items that wait.
    pub(crate) fn queued(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
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
    let (items, began) = (batch.len(), Instant::now());
    let outcome = apply_all(db, batch).await;
    meter::transacted(items, began.elapsed(), outcome.is_ok());
    outcome
}

async fn apply_all(
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
    for item in batch {
        if item.in_savepoint() {
            let inner = tx.begin().await?;
            match guarded(item.apply(&inner)).await {
                Ok(()) => {
                    inner.commit().await?;
                    refusals.push(None);
                }
                Err(error) if error.is_contention() => return Err(error),
                Err(error) => {
                    inner.rollback().await?;
                    refusals.push(Some(error));
                }
            }
        } else {
            guarded(item.apply(&tx)).await?;
            refusals.push(None);
        }
    }
    failpoint::pass("writer.before_commit").await?;
    tx.commit().await?;
    failpoint::pass("writer.after_commit").await?;
    Ok(refusals)
}

/// A panic of one item is its own fault and nobody else's: the writer lives on.
async fn guarded(applying: impl Future<Output = Result<(), StoreError>>) -> Result<(), StoreError> {
    let applied = std::panic::AssertUnwindSafe(applying).catch_unwind().await;
    applied.unwrap_or(Err(StoreError::Panicked))
}

trait Item: Send {
    fn order(&self) -> Uuid;
    fn in_savepoint(&self) -> bool;
    fn is_alone(&self) -> bool;
    fn weight(&self) -> usize;
    fn apply<'a>(
        &'a mut self,
        tx: &'a DatabaseTransaction,
    ) -> BoxFuture<'a, Result<(), StoreError>>;
    fn settle(self: Box<Self>, refusal: Option<StoreError>);
}

struct Job<W: Work> {
    work: W,
    output: Option<W::Output>,
    reply: Option<oneshot::Sender<Result<W::Output, StoreError>>>,
}

impl<W: Work> Item for Job<W> {
    fn order(&self) -> Uuid {
        self.work.order()
    }

    fn in_savepoint(&self) -> bool {
        W::SAVEPOINT
    }

    fn is_alone(&self) -> bool {
        W::ALONE
    }

    fn weight(&self) -> usize {
        self.work.weight()
    }

    fn apply<'a>(
        &'a mut self,
        tx: &'a DatabaseTransaction,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.output = Some(self.work.apply(tx).await?);
            Ok(())
        })
    }

    fn settle(self: Box<Self>, refusal: Option<StoreError>) {
        let outcome = match (refusal, self.output) {
            (Some(error), _) => Err(error),
            (None, Some(output)) => Ok(output),
            (None, None) => Err(StoreError::Closed),
        };
        match self.reply {
            // Nobody waits any more: the work is done all the same.
            Some(reply) => drop(reply.send(outcome)),
            None => {
                if let Err(error) = outcome {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "a write that nobody waits for failed"
                    );
                }
            }
        }
    }
}
