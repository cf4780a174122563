//! Batch operations: a few statements for many items of one commit, instead of some for each.

use sea_orm::DatabaseTransaction;
use uuid::Uuid;

use crate::advisory_key::AdvisoryKey;
use crate::attempts::{dispatch_all, note_all};
use crate::audit;
use crate::batch_op::{BatchOp, BatchResult};
use crate::error::StoreError;
use crate::ingest::ingest_batch;
use crate::ledger::{append_all, end_all};
use crate::mutation::{BatchWork, Mutation};
use crate::sql::Sql;
use crate::tx_cache::TxCache;

/// Applies work in batch operations. Items share no [`BatchOp::keys`]. Results are in the order of `work`.
pub(crate) async fn apply(
    tx: &impl Sql,
    work: &[BatchOp<'_>],
    tx_cache: &mut TxCache,
) -> Result<Vec<BatchResult>, StoreError> {
    if work.is_empty() {
        return Ok(Vec::new());
    }
    let (mut ingests, mut appends, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    let (mut dispatches, mut outcomes) = (Vec::new(), Vec::new());
    let (mut audits, mut audited) = (Vec::new(), Vec::new());
    for one in work {
        match one {
            BatchOp::Ingest(ingest) => ingests.push(*ingest),
            BatchOp::Append(append) => appends.push(*append),
            BatchOp::End(append) => ends.push(*append),
            BatchOp::Dispatch(dispatch) => dispatches.push(*dispatch),
            BatchOp::Outcome(outcome) => outcomes.push(*outcome),
            BatchOp::Audit(entry) => audits.push(*entry),
            BatchOp::Audited(outcome) => audited.push(*outcome),
        }
    }
    // Conversations before their runs: the lock order of all transactions.
    // Boxed: the largest steps would make each of the writer's futures as large.
    let ingested = Box::pin(ingest_batch(tx, &ingests, tx_cache)).await?;
    let mut ingested = ingested.into_iter();
    let mut ended = Box::pin(end_all(tx, &ends)).await?.into_iter();
    let mut dispatched = Box::pin(dispatch_all(tx, &dispatches, tx_cache))
        .await?
        .into_iter();
    note_all(tx, &outcomes).await?;
    audit::insert(tx, audits).await?;
    audit::end_all(tx, &audited).await?;
    let mut appended = append_all(tx, &appends).await?.into_iter();
    // Each kind has returned its results in the order of its items.
    let done = work.iter().filter_map(|one| match one {
        BatchOp::Ingest(_) => {
            let (ingested, effects) = ingested.next()?;
            Some(BatchResult::Ingest(ingested, effects))
        }
        BatchOp::End(_) => ended.next().map(BatchResult::Append),
        BatchOp::Append(_) => appended.next().map(BatchResult::Append),
        BatchOp::Dispatch(_) => dispatched.next().map(BatchResult::Dispatch),
        BatchOp::Outcome(_) => Some(BatchResult::Outcome),
        BatchOp::Audit(_) | BatchOp::Audited(_) => Some(BatchResult::Audited),
    });
    Ok(done.collect())
}

impl<W: BatchWork> Mutation for W {
    type Output = W::Output;
    const TAKES_EVENT: bool = W::TAKES_EVENT;
    const CHANGES_AGENTS: bool = false;

    fn weight(&self) -> usize {
        BatchWork::weight(self)
    }

    fn order(&self) -> Uuid {
        BatchWork::order(self)
    }

    fn conversation(&self) -> Option<&str> {
        BatchWork::conversation(self)
    }

    fn advisory_keys(&self) -> Vec<AdvisoryKey> {
        BatchWork::advisory_keys(self)
    }

    fn batched(&self) -> Option<BatchOp<'_>> {
        Some(self.op())
    }

    fn output_of(&self, done: BatchResult) -> Option<Self::Output> {
        BatchWork::output_of(self, done)
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Self::Output, StoreError> {
        self.apply_with(tx, &mut TxCache::default()).await
    }

    async fn apply_with(
        &self,
        tx: &DatabaseTransaction,
        tx_cache: &mut TxCache,
    ) -> Result<Self::Output, StoreError> {
        let done = apply(tx, &[self.op()], tx_cache).await?.pop();
        let output = done.and_then(|done| BatchWork::output_of(self, done));
        // Unreachable: an operation returns a result of its own kind for each item.
        output.ok_or(StoreError::Panicked)
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        output: &Self::Output,
    ) -> Result<bool, StoreError> {
        BatchWork::is_committed(self, tx, output).await
    }

    fn after_error(output: Self::Output, error: StoreError) -> Result<Self::Output, StoreError> {
        <W as BatchWork>::after_error(output, error)
    }
}
