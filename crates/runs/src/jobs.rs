//! Jobs: acts on many runs, which continue without their request and after a crash.

use std::sync::Arc;
use std::time::Duration;

use domain::api_key::AgentReach;
use futures_util::future::join_all;
use protocol::id::{JobId, RunId, WorkspaceId};
use protocol::job::{JobError, JobKind};
use store::{
    CancelCause, CancelJob, CancelOutcome, ClaimJob, ClaimedJob, CreateJob, JobProgress, JobRecord,
    RecordJob, StoreError,
};
use tokio::sync::Notify;

use crate::cancel::Cancellation;
use crate::deps::RunDeps;
use crate::intake::{EventSender, Intake, IntakeError, RetryError};
use crate::own_limits::StartingKey;

/// Time between two looks for jobs of other replicas.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Wait before another try of a run that a limit refuses.
const AFTER_LIMIT: Duration = Duration::from_secs(1);
/// Failures that are stored with a job, and maximum characters of each message.
const MAX_ERRORS: usize = 10;
const ERROR_CHARS: usize = 300;

/// Result of the act on one run.
#[derive(Debug)]
enum RunResult {
    Done,
    Failed(String),
    /// A limit refuses it for now.
    Busy,
}

/// Starts, continues and cancels jobs.
pub struct Jobs {
    deps: Arc<RunDeps>,
    cancellation: Arc<Cancellation>,
    intake: Arc<Intake>,
    wake: Notify,
}

impl Jobs {
    pub(super) fn new(
        deps: Arc<RunDeps>,
        cancellation: &Arc<Cancellation>,
        intake: &Arc<Intake>,
    ) -> Self {
        Self {
            deps,
            cancellation: Arc::clone(cancellation),
            intake: Arc::clone(intake),
            wake: Notify::new(),
        }
    }

    /// Stores a job and begins it. False: the workspace has too many unfinished ones.
    pub async fn start(&self, job: JobRecord, runs: Vec<RunId>) -> Result<bool, StoreError> {
        let is_stored = self.deps.store.write(CreateJob { job, runs }).await?;
        self.wake.notify_one();
        Ok(is_stored)
    }

    /// Ends a job after its current batch. `None`: there is no such job.
    pub async fn cancel(
        &self,
        workspace: &WorkspaceId,
        id: JobId,
    ) -> Result<Option<JobRecord>, StoreError> {
        let cancel = CancelJob {
            workspace: workspace.clone(),
            id,
            at: self.deps.clock.now_ms(),
        };
        let cancelled = self.deps.store.write(cancel).await?;
        self.wake.notify_one();
        Ok(cancelled)
    }

    /// Works on the jobs of all replicas until the process stops.
    pub async fn keep_jobs(&self) {
        let working = async {
            let mut is_failing = false;
            loop {
                let worked = self.work().await;
                if let Err(error) = &worked
                    && !is_failing
                {
                    let error = error as &dyn std::error::Error;
                    tracing::error!(error, "cannot continue the jobs, trying again");
                }
                is_failing = worked.is_err();
                tokio::select! {
                    () = self.wake.notified() => {}
                    () = tokio::time::sleep(BETWEEN_LOOKS) => {}
                }
            }
        };
        // A stop ends the work after a batch. Another replica or the next start goes on.
        self.deps.until_closing(working).await;
    }

    /// Works on batches, of each job in turn, until no job is free.
    async fn work(&self) -> Result<(), StoreError> {
        while !self.deps.lifecycle.stopping.is_cancelled() {
            if !self.deps.store.leases().has_open_job().await? {
                return Ok(());
            }
            let claim = ClaimJob {
                lease: self.deps.limits.lease,
                at: self.deps.clock.now_ms(),
            };
            let Some(claimed) = self.deps.store.write(claim).await? else {
                return Ok(());
            };
            self.work_on(claimed).await?;
        }
        Ok(())
    }

    async fn work_on(&self, claimed: ClaimedJob) -> Result<(), StoreError> {
        let ClaimedJob { job, epoch, runs } = claimed;
        let mut progress = job.progress.clone();
        let mut is_busy = false;
        let is_cancelled = job.cancel_requested_at.is_some();
        if !is_cancelled {
            for (run, result) in self.act_on_all(&job, &runs).await? {
                is_busy |= matches!(result, RunResult::Busy);
                add(&mut progress, run, result);
            }
        }
        let is_over = is_cancelled || progress.count() >= job.total;
        let record = RecordJob {
            id: job.id,
            epoch,
            progress,
            wait: if is_busy { AFTER_LIMIT } else { Duration::ZERO },
            finished_at: is_over.then(|| self.deps.clock.now_ms()),
        };
        let JobProgress { done, failed, .. } = record.progress;
        let is_recorded = self.deps.store.write(record).await?;
        if is_recorded && is_over {
            let kind = job.kind.as_str();
            tracing::info!(
                job.id = %job.id, job.kind = kind, done, failed, total = job.total,
                "job {} is over: {kind} of {} runs", job.id, job.total
            );
        }
        Ok(())
    }

    /// Results in the order of the runs, up to the first one that a limit refuses.
    async fn act_on_all(
        &self,
        job: &JobRecord,
        runs: &[RunId],
    ) -> Result<Vec<(RunId, RunResult)>, StoreError> {
        match job.kind {
            JobKind::Cancel => {
                // Concurrent, so that the requests share commits.
                let cancelled = join_all(runs.iter().map(|run| self.cancel_run(job, *run)));
                let cancelled: Result<Vec<_>, _> = cancelled.await.into_iter().collect();
                Ok(runs.iter().copied().zip(cancelled?).collect())
            }
            JobKind::Retry => {
                let mut results = Vec::with_capacity(runs.len());
                // In order: the events of a conversation keep theirs.
                for run in runs {
                    let result = self.retry_run(job, *run).await?;
                    let is_busy = matches!(result, RunResult::Busy);
                    results.push((*run, result));
                    if is_busy {
                        break;
                    }
                }
                Ok(results)
            }
        }
    }

    async fn cancel_run(&self, job: &JobRecord, run: RunId) -> Result<RunResult, StoreError> {
        let request = CancelCause {
            by: job.key.into(),
            reason: job.reason.clone(),
        };
        let outcome = self.cancellation.cancel(&job.workspace, run, request);
        match outcome.await {
            Ok(CancelOutcome::Requested(_) | CancelOutcome::Ended(_)) => Ok(RunResult::Done),
            Ok(CancelOutcome::Unknown) => {
                Ok(RunResult::Failed(RetryError::Unknown(run).to_string()))
            }
            Err(error) if error.is_transient() => Err(error),
            // One unreadable run must not keep the job from the others.
            Err(error) => Ok(RunResult::Failed(error.to_string())),
        }
    }

    async fn retry_run(&self, job: &JobRecord, run: RunId) -> Result<RunResult, StoreError> {
        let access = self.deps.store.access();
        let key = access.find_api_key_by_id(&job.workspace, job.key).await?;
        let sender = EventSender {
            workspace: &job.workspace,
            key: StartingKey {
                id: job.key,
                limits: key.and_then(|key| key.limits).unwrap_or_default(),
            },
            // Only keys that reach all agents start jobs.
            scope: &AgentReach::All,
        };
        match self.intake.retry(sender, run, None, None).await {
            Ok(_) => Ok(RunResult::Done),
            Err(RetryError::Refused(
                IntakeError::WorkspaceFull { .. }
                | IntakeError::EndpointFull { .. }
                | IntakeError::TooFast { .. }
                | IntakeError::Limit(_)
                | IntakeError::Stopping,
            )) => Ok(RunResult::Busy),
            Err(RetryError::Refused(IntakeError::Store(error))) if error.is_transient() => {
                Err(error)
            }
            Err(refused) => Ok(RunResult::Failed(refused.to_string())),
        }
    }
}

/// Adds the result of a run.
fn add(progress: &mut JobProgress, run_id: RunId, result: RunResult) {
    match result {
        RunResult::Busy => {}
        RunResult::Done => progress.done += 1,
        RunResult::Failed(message) => {
            progress.failed += 1;
            if progress.errors.len() < MAX_ERRORS {
                let message = message.chars().take(ERROR_CHARS).collect();
                progress.errors.push(JobError { run_id, message });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn progress_lists_first_errors_only() {
        let mut progress = JobProgress::default();
        add(&mut progress, RunId(Uuid::nil()), RunResult::Done);
        add(&mut progress, RunId(Uuid::nil()), RunResult::Busy);
        for number in 0..12 {
            let run = RunId(Uuid::from_u128(number));
            add(&mut progress, run, RunResult::Failed("x".repeat(1000)));
        }
        assert_eq!((progress.done, progress.failed), (1, 12));
        assert_eq!(progress.errors.len(), MAX_ERRORS);
        assert_eq!(progress.errors[0].message.len(), ERROR_CHARS);
        assert_eq!(progress.count(), 13);
    }
}
