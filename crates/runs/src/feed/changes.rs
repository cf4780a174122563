//! Changes that no viewer has received yet.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use protocol::id::RunId;
use tokio::sync::Notify;

/// Maximum changes of one round. Beyond it they are lost, and viewers read their lists again.
const MAX_CHANGES: usize = 4096;

/// A committed change of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    /// It was created, has another status, or has a request to end.
    Run(RunId),
    /// One of its questions was opened or answered.
    Interaction(RunId),
    /// One of its platform actions was opened or changed.
    Action(RunId),
}

impl Change {
    pub(crate) fn run(self) -> RunId {
        match self {
            Self::Run(run) | Self::Interaction(run) | Self::Action(run) => run,
        }
    }
}

/// A bounded set of changes, each once.
#[derive(Default)]
pub(crate) struct ChangeSet {
    changes: Mutex<PendingChanges>,
    noted: Notify,
}

#[derive(Default)]
struct PendingChanges {
    list: HashSet<Change>,
    is_incomplete: bool,
}

impl ChangeSet {
    // Consistent after a panic: it changes by one step at a time.
    fn changes(&self) -> MutexGuard<'_, PendingChanges> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, change: Change) {
        let mut changes = self.changes();
        if changes.list.len() < MAX_CHANGES {
            changes.list.insert(change);
        } else {
            changes.is_incomplete = true;
        }
        drop(changes);
        self.noted.notify_one();
    }

    /// Marks the set as incomplete.
    pub(crate) fn lose(&self) {
        self.changes().is_incomplete = true;
        self.noted.notify_one();
    }

    /// Returns when a change was added since the last call.
    pub(crate) async fn noted(&self) {
        self.noted.notified().await;
    }

    /// Takes all changes; `None`: some were lost.
    pub(crate) fn take(&self) -> Option<Vec<Change>> {
        let PendingChanges {
            list,
            is_incomplete,
        } = std::mem::take(&mut *self.changes());
        (!is_incomplete).then(|| list.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn run(n: usize) -> Change {
        Change::Run(RunId(Uuid::from_u128(n as u128)))
    }

    #[test]
    fn repeated_changes_count_once() {
        let set = ChangeSet::default();
        let question = Change::Interaction(run(1).run());
        for change in [run(1), question, run(1)] {
            set.add(change);
        }
        let taken = set.take().unwrap();
        assert_eq!(taken.len(), 2);
        assert!(taken.contains(&run(1)) && taken.contains(&question));
        assert_eq!(set.take(), Some(Vec::new()));
    }

    #[test]
    fn overflow_loses_the_round_only() {
        let set = ChangeSet::default();
        (0..=MAX_CHANGES).for_each(|n| set.add(run(n)));
        assert_eq!(set.take(), None);
        set.add(run(1));
        assert_eq!(set.take(), Some(vec![run(1)]));
    }
}
