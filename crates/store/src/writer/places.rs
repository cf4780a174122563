//! Which items of a batch are done together, and how.

use std::collections::HashSet;

use futures_util::FutureExt;

use super::job::Item;
use crate::bulk::{self, Key};
use crate::common::Common;
use crate::error::StoreError;
use crate::sql::Sql;

/// How the items of a batch are applied: where they stand in it.
#[derive(Default)]
pub(super) struct Places {
    /// Events, together.
    pub(super) events: Vec<usize>,
    /// What can only be applied by itself.
    pub(super) alone: Vec<usize>,
    /// Other work, together: the first of each kind for each run.
    pub(super) others: Vec<usize>,
    /// The second one and those behind it: each must see what the one before did.
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

/// Does the work at these places together. Gives the places of what is to be applied by itself.
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

/// A panic of one item is its own fault and nobody else's: the writer lives on.
pub(super) async fn guarded<T>(
    applying: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let applied = std::panic::AssertUnwindSafe(applying).catch_unwind().await;
    applied.unwrap_or(Err(StoreError::Panicked))
}
