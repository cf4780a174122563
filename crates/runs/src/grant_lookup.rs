//! Lookup of the rights of live runs.

use std::sync::Arc;

use domain::run::Run;
use protocol::id::RunId;
use protocol::run::RunStatus;
use store::{Store, StoreError};
use tokio::time::Instant;

use crate::grant::Grant;
use crate::live::LiveRegistry;
use clock::Clock;
use keys::keyring::Keyring;
use keys::token::Minted;

/// Finds the rights of runs, and mints their tokens.
pub struct GrantLookup {
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) keys: Arc<Keyring>,
    pub(super) live: Arc<LiveRegistry>,
}

impl GrantLookup {
    /// Rights of a live run: from memory while its lease is held here, else from its row.
    pub async fn find_grant(&self, id: RunId) -> Result<Option<Arc<Grant>>, StoreError> {
        let live = self.live.get(id);
        // Only under the lease: a process that lost it may hold a stale attempt.
        if let Some(grant) = live.and_then(|live| live.grant(Instant::now())) {
            return Ok(Some(grant));
        }
        let run = self.store.runs().find_run_anywhere(id).await?;
        let Some(run) = run.filter(|run| run.status == RunStatus::Running) else {
            return Ok(None);
        };
        let snapshot = self.store.runs().find_snapshot(id).await?;
        Ok(snapshot
            .and_then(|snapshot| Grant::of(run, &snapshot).ok())
            .map(Arc::new))
    }

    /// Current state of the run of a grant, without a query if this process drives it.
    pub async fn current_run(&self, grant: &Grant) -> Result<Run, StoreError> {
        let mut run = grant.run.clone();
        match self.live.get(run.id) {
            Some(live) => {
                run.last_sequence = live.log.progress().last_sequence;
                run.cancel_requested_at = live.cancel_requested_at().or(run.cancel_requested_at);
                // Only the row has the reason of the cancel.
                if run.cancel_requested_at.is_some()
                    && let Ok(Some(row)) = self.store.runs().find_run(&run.workspace, run.id).await
                {
                    run.status_reason = row.status_reason;
                }
            }
            None => {
                if let Some(row) = self.store.runs().find_run(&run.workspace, run.id).await? {
                    run = row;
                }
            }
        }
        Ok(run)
    }

    /// True when cancellation of the run was requested.
    pub fn is_cancel_requested(&self, grant: &Grant) -> bool {
        self.live.is_cancel_requested(grant)
    }

    /// A fresh token for a live run: only its id and times differ. `None`: the key is unusable.
    pub fn renew_token(&self, grant: &Grant) -> Option<Minted> {
        let subject = grant.token_subject();
        self.keys
            .tokens
            .mint(&subject, self.clock.now_seconds())
            .ok()
    }
}
