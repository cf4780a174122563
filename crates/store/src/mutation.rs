//! Work of the writer.

use std::sync::Arc;

use sea_orm::DatabaseTransaction;
use uuid::Uuid;

use crate::advisory_key::AdvisoryKey;
use crate::batch_op::{BatchOp, BatchResult};
use crate::error::StoreError;
use crate::tx_cache::TxCache;

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
    /// [`AdvisoryKey`].
    fn advisory_keys(&self) -> Vec<AdvisoryKey> {
        Vec::new()
    }

    /// False for work that never changes agents or runners.
    const CHANGES_AGENTS: bool = true;

    /// The batch operation of [`BatchWork`]. `None`: the work is applied by itself.
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

    /// True when an earlier try with this result is committed, so a retry must not apply it again. Idempotent work
    /// needs no check.
    fn is_committed(
        &self,
        _tx: &DatabaseTransaction,
        _output: &Self::Output,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        std::future::ready(Ok(false))
    }

    /// The caller's result after an error with an unknown outcome. `output`: that of a try which may be committed.
    fn after_error(_output: Self::Output, error: StoreError) -> Result<Self::Output, StoreError> {
        Err(error)
    }
}

/// Work that is applied together with others of its kind. The batch operation is its only form: a single item is a
/// batch of one. The methods are those of [`Mutation`], which each such work implements.
pub trait BatchWork: Send + Sync + 'static {
    /// See [`Mutation::Output`].
    type Output: Send + Sync + 'static;

    /// See [`Mutation::TAKES_EVENT`].
    const TAKES_EVENT: bool = false;

    /// See [`Mutation::weight`].
    fn weight(&self) -> usize {
        0
    }

    /// See [`Mutation::order`].
    fn order(&self) -> Uuid;

    /// See [`Mutation::conversation`].
    fn conversation(&self) -> Option<&str> {
        None
    }

    /// See [`Mutation::advisory_keys`].
    fn advisory_keys(&self) -> Vec<AdvisoryKey> {
        Vec::new()
    }

    /// The batch operation.
    fn op(&self) -> BatchOp<'_>;

    /// The caller's result, built from the result of the batch operation.
    fn output_of(&self, done: BatchResult) -> Option<Self::Output>;

    /// See [`Mutation::is_committed`].
    fn is_committed(
        &self,
        _tx: &DatabaseTransaction,
        _output: &Self::Output,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        std::future::ready(Ok(false))
    }

    /// See [`Mutation::after_error`].
    fn after_error(_output: Self::Output, error: StoreError) -> Result<Self::Output, StoreError> {
        Err(error)
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

    fn advisory_keys(&self) -> Vec<AdvisoryKey> {
        W::advisory_keys(self)
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
        output: &Self::Output,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        W::is_committed(self, tx, output)
    }

    fn after_error(output: Self::Output, error: StoreError) -> Result<Self::Output, StoreError> {
        W::after_error(output, error)
    }
}
