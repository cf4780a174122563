//! Batch plan: selects the items for batch operations.

use std::collections::HashSet;

use futures_util::FutureExt;

use super::job::Item;
use crate::batch;
use crate::batch_op::BatchKey;
use crate::error::StoreError;
use crate::sql::Sql;
use crate::tx_cache::TxCache;

/// Positions of the items in a batch, by how they are applied.
#[derive(Default)]
pub(super) struct BatchPlan {
    /// Events, in batch operations.
    pub(super) events: Vec<usize>,
    /// Items without a batch operation.
    pub(super) alone: Vec<usize>,
    /// Other work in batch operations: the first item of each kind for each run.
    pub(super) others: Vec<usize>,
    /// Further items of the same kind and run: each must see its predecessor's changes.
    pub(super) after: Vec<usize>,
}

impl BatchPlan {
    pub(super) fn of(batch: &[Box<dyn Item>]) -> Self {
        let mut batch_plan = Self::default();
        let mut seen = HashSet::new();
        for (index, item) in batch.iter().enumerate() {
            let into = match item.batched().map(|work| work.key()) {
                None => &mut batch_plan.alone,
                Some(BatchKey::Ingest) => &mut batch_plan.events,
                Some(BatchKey::Audit) => &mut batch_plan.others,
                Some(key) if seen.insert(key) => &mut batch_plan.others,
                // It needs its predecessor's changes, so it is applied later in the transaction.
                Some(_) => &mut batch_plan.after,
            };
            into.push(index);
        }
        batch_plan
    }
}

/// Applies the batch operations at these positions. Returns the positions of items to apply singly.
pub(super) async fn apply_batched(
    tx: &impl Sql,
    batch: &mut [Box<dyn Item>],
    batch_plan: &[usize],
    tx_cache: &mut TxCache,
) -> Result<Vec<usize>, StoreError> {
    let work: Vec<_> = batch_plan
        .iter()
        .filter_map(|index| batch[*index].batched())
        .collect();
    let done = batch::apply(tx, &work, tx_cache).await?;
    let mut left = Vec::new();
    for (index, done) in batch_plan.iter().zip(done) {
        match done {
            Some(done) => batch[*index].note_done(done),
            None => left.push(*index),
        }
    }
    Ok(left)
}

/// Turns a panic into an error, so the writer survives it.
pub(super) async fn catch_panic<T>(
    applying: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let applied = std::panic::AssertUnwindSafe(applying).catch_unwind().await;
    applied.unwrap_or(Err(StoreError::Panicked))
}
