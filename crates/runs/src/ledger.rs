//! Writes to the ledger of a run, repeated while the database is away.

use std::sync::Arc;
use std::time::Duration;

use protocol::id::RunId;
use store::writer::Mutation;
use store::{
    Append, Appended, NewPlatformAction, PullSteering, SteeredEvent, Store, StoreError, failpoint,
};
use tokio::time::Instant;

use crate::notifier::Notifier;
use commit::{AfterError, CommitMachine, CommitOutput, RetryWindow};
use telemetry::metrics;

pub(crate) mod commit;

/// Commits the appends of live runs.
pub struct LedgerWriter {
    pub(super) store: Store,
    pub(super) notifier: Arc<Notifier>,
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
        let mut window = RetryWindow::new(self.lease);
        loop {
            // Without a timeout: the write stays in the queue, and would commit unseen.
            let error = match ask().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            match window.after(error, Instant::now()) {
                AfterError::Retry { pause, first } => pause_after(run, first, pause).await,
                AfterError::Fail(error) => return Err(error),
            }
        }
    }

    /// Writes an append, and recognises its own earlier commit after a lost answer.
    pub(super) async fn commit(&self, append: Arc<Append>) -> Result<Appended, StoreError> {
        let (run, after_commit) = (append.run_id, append.failpoints().1);
        let mut commit = CommitMachine::new(append, self.lease);
        let mut output = commit.next();
        loop {
            output = match output {
                CommitOutput::Write => {
                    let written = self.store.write(Arc::clone(commit.append())).await;
                    let passed = match written {
                        Ok(written) => failpoint::pass(after_commit).await.map(|()| written),
                        Err(error) => Err(error),
                    };
                    commit.on_written(passed, Instant::now())
                }
                CommitOutput::FindRun => {
                    let workspace = &commit.append().workspace;
                    let row = self.store.runs().find_run(workspace, run).await;
                    commit.on_found(row, Instant::now())
                }
                CommitOutput::Pause { pause, first } => {
                    pause_after(run, first, pause).await;
                    commit.next()
                }
                CommitOutput::Done(outcome) => {
                    let append = commit.append();
                    if matches!(outcome, Ok(Appended::Written { .. })) {
                        metrics::appended(append.to - append.from, append.lines.len());
                        if !append.interactions.is_empty() {
                            self.notifier.notify_question(run);
                        }
                        if !append.actions.is_empty() || !append.announced.is_empty() {
                            self.notifier.wake(run);
                            self.notifier.notify_action(run);
                        }
                        if append.actions.iter().any(NewPlatformAction::is_questioned) {
                            self.notifier.notify_question(run);
                        }
                    }
                    return outcome;
                }
            };
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
}

/// Waits before the next try.
async fn pause_after(run: RunId, first: Option<StoreError>, pause: Duration) {
    // Logged once: in an outage each live run tries five times a second.
    if let Some(error) = first {
        tracing::warn!(
            run.id = %run, error = &error as &dyn std::error::Error,
            "cannot store results of run {run}, trying again"
        );
    }
    tokio::time::sleep(pause).await;
}
