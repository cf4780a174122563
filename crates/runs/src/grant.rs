//! Rights of a run's token: the frozen snapshot, and the run.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use domain::authorization::{AuthorizationSnapshot, SNAPSHOT_VERSION};
use domain::run::Run;

use keys::token::TokenSubject;

/// The rights of one live run.
#[derive(Debug)]
pub struct Grant {
    /// Its deadline is that of the read; see [`Self::deadline_at`].
    pub run: Run,
    pub snapshot: Arc<AuthorizationSnapshot>,
    pub attempt: u32,
    /// Latest deadline of a read: waits for budgets extend it.
    deadline_at: AtomicI64,
}

/// The stored snapshot has a version that this binary cannot read, so it grants nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run's authorization snapshot is of another version")]
pub struct UnknownSnapshot;

/// Reads a stored snapshot.
pub fn read_snapshot(stored: &str) -> Result<AuthorizationSnapshot, UnknownSnapshot> {
    let snapshot: AuthorizationSnapshot =
        serde_json::from_str(stored).map_err(|_| UnknownSnapshot)?;
    // An unknown version may restrict in ways that this binary would not see.
    if snapshot.v == SNAPSHOT_VERSION {
        Ok(snapshot)
    } else {
        Err(UnknownSnapshot)
    }
}

impl Grant {
    pub(crate) fn new(run: Run, snapshot: Arc<AuthorizationSnapshot>, attempt: u32) -> Self {
        Self {
            deadline_at: AtomicI64::new(run.deadline_at),
            attempt,
            snapshot,
            run,
        }
    }

    /// The rights that were stored with a run.
    pub fn of(run: Run, snapshot: &str) -> Result<Self, UnknownSnapshot> {
        let snapshot = Arc::new(read_snapshot(snapshot)?);
        let attempt = run.attempt;
        Ok(Self::new(run, snapshot, attempt))
    }

    /// Latest deadline of a read, in epoch milliseconds.
    pub fn deadline_at(&self) -> i64 {
        self.deadline_at.load(Ordering::Relaxed)
    }

    /// Notes a deadline. An earlier one has no effect.
    pub(crate) fn extend_deadline(&self, at: i64) {
        self.deadline_at.fetch_max(at, Ordering::Relaxed);
    }

    /// Claims of every token of a live run. `max_wait_ms`: waits for budgets that may extend its deadline.
    pub(crate) fn token_subject(&self, max_wait_ms: i64) -> TokenSubject<'_> {
        let run = &self.run;
        TokenSubject {
            runner_id: &run.runner_id,
            run_id: run.id,
            attempt: self.attempt,
            workspace: run.workspace.as_str(),
            scope: self.snapshot.scope_claim(),
            res: &run.snapshot_sha256,
            // A token that is too long-lived opens nothing: each call checks the run and its deadline.
            deadline_at: self
                .deadline_at()
                .saturating_add(max_wait_ms)
                .div_euclid(1000)
                + 1,
        }
    }
}
