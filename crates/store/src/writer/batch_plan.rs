//! Batch plan: selects the items for batch operations.

use std::collections::HashSet;

use futures_util::FutureExt;

use super::job::Item;
use crate::batch;
use crate::error::StoreError;
use crate::sql::Sql;
use crate::tx_cache::TxCache;

/// Positions of the items in a batch, by how they are applied.
#[derive(Default)]
pub(super) struct BatchPlan {
    /// Independent events, in one batch operation.
    pub(super) events: Vec<usize>,
    /// Further events, each a batch of one: it must see the changes of an earlier event.
    pub(super) further_events: Vec<usize>,
    /// Items without a batch operation.
    pub(super) alone: Vec<usize>,
    /// Other independent work in batch operations.
    pub(super) others: Vec<usize>,
    /// Further items, each a batch of one: it must see the changes of its predecessor.
    pub(super) after: Vec<usize>,
}

impl BatchPlan {
    pub(super) fn of(batch: &[Box<dyn Item>]) -> Self {
        let mut batch_plan = Self::default();
        let mut seen = HashSet::new();
        for (index, item) in batch.iter().enumerate() {
            let Some(work) = item.batched() else {
                batch_plan.alone.push(index);
                continue;
            };
            // All keys of a dependent item count: the next items may depend on it.
            let keys = work.keys().into_iter();
            let shared = keys.filter(|key| !seen.insert(*key)).count();
            let into = match (work.takes_event(), shared) {
                (true, 0) => &mut batch_plan.events,
                (true, _) => &mut batch_plan.further_events,
                (false, 0) => &mut batch_plan.others,
                (false, _) => &mut batch_plan.after,
            };
            into.push(index);
        }
        batch_plan
    }
}

/// Applies the batch operations at these positions.
pub(super) async fn apply_batched(
    tx: &impl Sql,
    batch: &mut [Box<dyn Item>],
    indexes: &[usize],
    tx_cache: &mut TxCache,
) -> Result<(), StoreError> {
    let work = indexes.iter().filter_map(|index| batch[*index].batched());
    let done = batch::apply(tx, &work.collect::<Vec<_>>(), tx_cache).await?;
    for (index, done) in indexes.iter().zip(done) {
        batch[*index].note_done(done);
    }
    Ok(())
}

/// Turns a panic into an error, so the writer survives it.
pub(super) async fn catch_panic<T>(
    applying: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let applied = std::panic::AssertUnwindSafe(applying).catch_unwind().await;
    applied.unwrap_or(Err(StoreError::Panicked))
}
