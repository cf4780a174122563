//! Lookup of the rights of live runs.

use std::sync::Arc;

use domain::actor_token::ActorToken;
use domain::run::Run;
use protocol::id::RunId;
use protocol::run::RunStatus;
use store::StoreError;
use tokio::time::Instant;

use crate::deps::RunDeps;
use crate::grant::Grant;
use keys::token::Minted;

/// Finds the rights of runs, and mints their tokens.
pub struct GrantLookup {
    pub(super) deps: Arc<RunDeps>,
}

impl GrantLookup {
    /// Rights of a live run: from memory while its lease is held here, else from its row.
    pub async fn find_grant(&self, id: RunId) -> Result<Option<Arc<Grant>>, StoreError> {
        // Only under the lease: a process that lost it may hold a stale attempt.
        if let Some(grant) = self.deps.live.grant(id, Instant::now()) {
            return Ok(Some(grant));
        }
        let run = self.deps.store.runs().find_run_anywhere(id).await?;
        let Some(run) = run.filter(|run| run.status == RunStatus::Running) else {
            return Ok(None);
        };
        let snapshot = self.deps.store.runs().find_snapshot(id).await?;
        Ok(snapshot
            .and_then(|snapshot| Grant::of(run, &snapshot).ok())
            .map(Arc::new))
    }

    /// True when the runner of an earlier attempt gets the rights of a live run by a resume.
    pub async fn has_moved(&self, attempt: u32, current: &Grant) -> Result<bool, StoreError> {
        Ok(attempt < current.attempt && self.deps.is_resumable(&current.run).await?)
    }

    /// Current state of the run of a grant. Only the rows have its waits for budgets.
    pub async fn current_run(&self, grant: &Grant) -> Result<Run, StoreError> {
        let mut run = grant.run.clone();
        self.deps.refresh_deadline(grant).await;
        match self.deps.live.get(run.id) {
            Some(live) => {
                run.last_sequence = live.log.progress().last_sequence;
                run.cancel_requested_at = live.cancel_requested_at().or(run.cancel_requested_at);
                // Only the row has the reason of the cancel.
                if run.cancel_requested_at.is_some()
                    && let Ok(Some(row)) = self.deps.find_run(&run.workspace, run.id).await
                {
                    run.status_reason = row.status_reason;
                }
            }
            None => {
                if let Some(row) = self.deps.find_run(&run.workspace, run.id).await? {
                    run = row;
                }
            }
        }
        run.deadline_at = grant.deadline_at();
        Ok(run)
    }

    /// The token of the actor for whom the run calls tools, if it has one.
    pub async fn actor_token(&self, grant: &Grant) -> Result<Option<ActorToken>, StoreError> {
        self.deps.actor_token(&grant.run).await
    }

    /// True when cancellation of the run was requested.
    pub fn is_cancel_requested(&self, grant: &Grant) -> bool {
        self.deps.live.is_cancel_requested(grant)
    }

    /// A fresh token for a live run: only its id and times differ. `None`: the key is unusable.
    pub async fn renew_token(&self, grant: &Grant) -> Option<Minted> {
        // The deadline bounds the token.
        self.deps.refresh_deadline(grant).await;
        let max_wait_ms = self.deps.max_wait_of(&grant.run.workspace).await;
        let subject = grant.token_subject(max_wait_ms);
        self.deps
            .keys
            .tokens
            .mint(&subject, self.deps.clock.now_seconds())
            .ok()
    }
}
