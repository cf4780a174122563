//! Writes to the ledger of a run, repeated while the database is away.

use std::sync::Arc;
use std::time::Duration;

use protocol::id::RunId;
use store::writer::Mutation;
use store::{Append, Appended, PullSteering, SteeredEvent, Store, StoreError, failpoint};
use tokio::time::Instant;

use telemetry::metrics;

/// Commits the appends of live runs.
pub struct LedgerWriter {
    pub(super) store: Store,
    pub(super) lease: Duration,
}

impl LedgerWriter {
    /// Calls `ask`, and retries transient errors for the length of a lease from the first error on. `ask` must return
    /// the same if an earlier try was committed and its answer lost.
    pub(super) async fn retry_within_lease<T, F>(
        &self,
        run: RunId,
        ask: impl Fn() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        const PAUSE: Duration = Duration::from_millis(200);
        let mut deadline = None;
        loop {
            // Without a timeout: the write stays in the queue, and would commit unseen.
            let error = match ask().await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_transient() => error,
                Err(error) => return Err(error),
            };
            let now = Instant::now();
            let is_first = deadline.is_none();
            let deadline = *deadline.get_or_insert_with(|| now + self.lease);
            if now + PAUSE >= deadline {
                return Err(error);
            }
            // Logged once: in an outage each live run tries five times a second.
            if is_first {
                tracing::warn!(
                    run.id = %run, error = &error as &dyn std::error::Error,
                    "cannot store results of run {run}, trying again"
                );
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Writes an append, and recognises its own earlier commit after a lost answer.
    pub(super) async fn commit(&self, append: Append) -> Result<Appended, StoreError> {
        let append = Arc::new(append);
        let (run, failpoint) = (append.run_id, append.failpoints().1);
        match self.write_within_lease(run, &append, failpoint).await? {
            // After a lost answer, the second try of a commit finds its sequence taken.
            Appended::Lost => self.confirm(&append).await,
            written @ Appended::Written { .. } => {
                metrics::appended(append.to - append.from, append.lines.len());
                Ok(written)
            }
        }
    }

    /// Writes work that recognises its own earlier commit.
    async fn write_within_lease<W: Mutation>(
        &self,
        run: RunId,
        work: &Arc<W>,
        after_commit: &'static str,
    ) -> Result<W::Output, StoreError> {
        self.retry_within_lease(run, || async {
            let written = self.store.write(Arc::clone(work)).await?;
            failpoint::pass(after_commit).await?;
            Ok(written)
        })
        .await
    }

    /// Takes absorbed events out of the queue of a run. They are returned even if the database went away during the
    /// commit.
    pub async fn pull_steering(
        &self,
        run: RunId,
        pull: PullSteering,
    ) -> Result<Option<Vec<SteeredEvent>>, StoreError> {
        self.write_within_lease(run, &Arc::new(pull), "steering.after_commit")
            .await
    }

    async fn confirm(&self, append: &Append) -> Result<Appended, StoreError> {
        let find = || self.store.runs().find_run(&append.workspace, append.run_id);
        let row = self.retry_within_lease(append.run_id, find).await?;
        let ours = row.is_some_and(|row| {
            let was_cancelled = row.cancel_requested_at.is_some();
            let ended = append
                .terminal
                .as_ref()
                .is_none_or(|terminal| row.status == terminal.status_after(was_cancelled));
            // Only this owner writes under this epoch, so these values prove the commit.
            row.fencing_token == append.epoch && row.last_sequence == append.to && ended
        });
        // The commit released the next run; recovery dispatches it.
        Ok(if ours {
            metrics::appended(append.to - append.from, append.lines.len());
            Appended::Written { next: Vec::new() }
        } else {
            Appended::Lost
        })
    }
}
