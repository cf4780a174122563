//! Rights of a run's token: the frozen snapshot, and the run.

use std::sync::Arc;

use domain::authorization::{AuthorizationSnapshot, SNAPSHOT_VERSION};
use domain::run::Run;

use keys::token::TokenSubject;

/// The rights of one live run.
#[derive(Debug)]
pub struct Grant {
    pub run: Run,
    pub snapshot: Arc<AuthorizationSnapshot>,
    pub attempt: u32,
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
    /// The rights that were stored with a run.
    pub fn of(run: Run, snapshot: &str) -> Result<Self, UnknownSnapshot> {
        let snapshot = Arc::new(read_snapshot(snapshot)?);
        Ok(Self {
            attempt: run.attempt,
            snapshot,
            run,
        })
    }

    /// Claims of every token of a live run.
    pub fn token_subject(&self) -> TokenSubject<'_> {
        let run = &self.run;
        TokenSubject {
            runner_id: &run.runner_id,
            run_id: run.id,
            attempt: self.attempt,
            workspace: run.workspace.as_str(),
            scope: self.snapshot.scope_claim(),
            res: &run.snapshot_sha256,
            deadline_at: run.deadline_at.div_euclid(1000) + 1,
        }
    }
}
