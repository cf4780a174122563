//! Batch plan: selects the items for batch operations.

use std::collections::HashSet;

use futures_util::FutureExt;

use super::job::Item;
use crate::bulk::{self, Key};
use crate::common::Common;
use crate::error::StoreError;
use crate::sql::Sql;

/// Positions of the items in a batch, by how they are applied.
#[derive(Default)]
pub(super) struct Places {
    /// Events, in batch operations.
    pub(super) events: Vec<usize>,
    /// Items without a batch operation.
    pub(super) alone: Vec<usize>,
    /// Other work in batch operations: the first item of each kind for each run.
    pub(super) others: Vec<usize>,
    /// Further items of the same kind and run: each must see its predecessor's changes.
    pub(super) after: Vec<usize>,
}

impl Places {
    pub(super) fn of(batch: &[Box<dyn Item>]) -> Self {
        let mut places = Self::default();
        let mut seen = HashSet::new();
        for (place, item) in batch.iter().enumerate() {
            let into = match item.together().map(|work| work.key()) {
                None => &mut places.alone,
                Some(Key::Ingest) => &mut places.events,
                Some(Key::Audit) => &mut places.others,
                Some(key) if seen.insert(key) => &mut places.others,
                Some(_) => &mut places.after,
            };
            into.push(place);
        }
        places
    }
}

/// Applies the batch operations at these positions. Returns the positions of items to apply singly.
pub(super) async fn apply_together(
    tx: &impl Sql,
    batch: &mut [Box<dyn Item>],
    places: &[usize],
    common: &mut Common,
) -> Result<Vec<usize>, StoreError> {
    let work: Vec<_> = places
        .iter()
        .filter_map(|place| batch[*place].together())
        .collect();
    let done = bulk::apply(tx, &work, common).await?;
    let mut left = Vec::new();
    for (place, done) in places.iter().zip(done) {
        match done {
            Some(done) => batch[*place].note_done(done),
            None => left.push(*place),
        }
    }
    Ok(left)
}

/// Turns a panic into an error, so the writer survives it.
pub(super) async fn guarded<T>(
    applying: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let applied = std::panic::AssertUnwindSafe(applying).catch_unwind().await;
    applied.unwrap_or(Err(StoreError::Panicked))
}
