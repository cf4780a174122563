//! New starts of runs that their runners have lost, by the retry policy of the agent.

use std::sync::Arc;

use domain::context::with_resume;
use domain::normalize::Rejection;
use domain::retry::after_loss;
use domain::run::{Failure, Run};
use protocol::admin::RestartPoint;
use protocol::context::RunResume;
use serde_json::value::RawValue;
use store::{Appended, CheckpointRecord, LeaseFilter, ReadBudget, StoreError, failpoint};
use tokio::time::Instant;

use super::RunExecutor;
use super::resume::AttachedRun;
use crate::bus::Notification;
use crate::dispatch::resuming::{LostConnection, Reattach};
use crate::event_buffer::EventBuffer;
use crate::inputs::PreparedDispatch;
use crate::live::LiveRun;
use crate::relay::RestoredRun;

/// A run whose runner could not be attached to.
pub(super) struct FailedAttach<'a> {
    pub(super) run: Box<Run>,
    pub(super) failure: Failure,
    pub(super) rejection: Option<Rejection>,
    pub(super) restored: RestoredRun<'a>,
}

/// Step after a POST to a runner whose connection was lost.
pub(super) enum AttachStep<'a> {
    Attached(Box<AttachedRun<'a>>, LostConnection),
    /// The connection broke before an answer.
    Disconnected(Box<Run>),
    Failed(Box<FailedAttach<'a>>),
    /// Another process continues the run.
    Over,
}

impl RunExecutor {
    /// Starts a run again that its runner has lost, or ends it.
    pub(super) async fn restart_or_end<'a>(
        self: &Arc<Self>,
        live: &LiveRun,
        prepared: &'a PreparedDispatch,
        failed: FailedAttach<'a>,
    ) -> AttachStep<'a> {
        let left = self.deps.time_until(failed.run.deadline_at);
        let starts = failed.restored.restarts();
        let from = after_loss(failed.failure.code, &prepared.retry, starts, left);
        let Some(from) = from.filter(|_| !live.cancel.is_cancelled()) else {
            return AttachStep::Failed(Box::new(failed));
        };
        let (id, workspace) = (failed.run.id, failed.run.workspace.clone());
        match Box::pin(self.restart(live, prepared, failed, from)).await {
            Ok(step) => step,
            Err(error) => {
                self.stop_driving(id, &workspace, LeaseFilter::Own, &error)
                    .await;
                AttachStep::Over
            }
        }
    }

    /// Ends a run that cannot be attached to.
    pub(super) async fn end_failed(
        self: &Arc<Self>,
        live: &LiveRun,
        prepared: &PreparedDispatch,
        failed: FailedAttach<'_>,
    ) {
        let run = failed.run;
        let (mut buffer, tally, ending) = failed.restored.ended(&run, failed.failure);
        buffer.record_response(failed.rejection);
        let ended = self.end(live, prepared, &run, buffer, tally, ending);
        if let Err(error) = Box::pin(ended).await {
            self.stop_driving(run.id, &run.workspace, LeaseFilter::Own, &error)
                .await;
        }
    }

    /// Commits the event of the new start, and posts the run again.
    async fn restart<'a>(
        self: &Arc<Self>,
        live: &LiveRun,
        prepared: &'a PreparedDispatch,
        failed: FailedAttach<'a>,
        from: RestartPoint,
    ) -> Result<AttachStep<'a>, StoreError> {
        let id = failed.run.id;
        let checkpoint = match from {
            RestartPoint::Start => None,
            RestartPoint::Checkpoint => self.newest_checkpoint(&failed.run).await?,
        };
        let Some(context) = self.context_from(&failed.run, checkpoint.as_ref()).await? else {
            tracing::warn!(run.id = %id, "run {id} ends: the context for a new start is deleted");
            return Ok(AttachStep::Failed(Box::new(failed)));
        };
        let FailedAttach {
            run,
            failure,
            restored: lost_run,
            ..
        } = failed;
        let since = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.at);
        let (from, after) = match checkpoint {
            Some(checkpoint) => (RestartPoint::Checkpoint, checkpoint.after),
            None => (RestartPoint::Start, 0),
        };
        let restored = self
            .relayer
            .restore_for_start(prepared, &run, after)
            .await?;
        let now = self.deps.clock.now_ms();
        let buffer = restored.restarted(&lost_run, &run, failure.code, from, now / 1000);
        tracing::warn!(
            run.id = %id, runner.id = %run.runner_id, code = failure.code.as_str(), error = failure.message,
            "the runner of run {id} has lost it, starting it again"
        );
        let Some(run) = self.commit_restart(live, run, buffer, now).await? else {
            return Ok(AttachStep::Over);
        };
        failpoint::pass("restart.after_event").await?;
        let begin = || self.deps.store.leases().begin_start(id, since);
        self.deps.ledger.retry_within_lease(id, begin).await?;
        let lost = LostConnection::after(None, run.last_sequence, Instant::now());
        let again = PreparedDispatch {
            context,
            ..prepared.clone()
        };
        let posted = self
            .dispatcher
            .resume(live, run, &again, Reattach::Restart, lost)
            .await?;
        Ok(self.after_post(id, restored, lost, posted).await)
    }

    async fn newest_checkpoint(&self, run: &Run) -> Result<Option<CheckpointRecord>, StoreError> {
        let find = || self.deps.store.state().find_checkpoint(run.id);
        self.deps.ledger.retry_within_lease(run.id, find).await
    }

    /// The context of the newest start, with the checkpoint. `None`: it is deleted.
    async fn context_from(
        &self,
        run: &Run,
        checkpoint: Option<&CheckpointRecord>,
    ) -> Result<Option<Arc<RawValue>>, StoreError> {
        let runs = self.deps.store.runs();
        let find = || runs.find_context(run.id, ReadBudget::default());
        let Some(context) = self.deps.ledger.retry_within_lease(run.id, find).await? else {
            return Ok(None);
        };
        let written = match checkpoint {
            None => RawValue::from_string(context).ok(),
            Some(checkpoint) => serde_json::from_str(&checkpoint.value)
                .ok()
                .and_then(|value| {
                    let resume = RunResume {
                        checkpoint: value,
                        after: checkpoint.after,
                    };
                    with_resume(&context, &resume)
                }),
        };
        let corrupt = || StoreError::Corrupt {
            column: "run_attempts.context",
            row: run.id.to_string(),
        };
        Ok(Some(written.ok_or_else(corrupt)?.into()))
    }

    /// Commits the event of a new start and shows it to clients. `None`: another process owns the run.
    async fn commit_restart(
        &self,
        live: &LiveRun,
        mut run: Box<Run>,
        mut buffer: EventBuffer,
        at: i64,
    ) -> Result<Option<Box<Run>>, StoreError> {
        let (append, frames) = buffer.take(None, at);
        let to = append.to;
        let Appended::Written { .. } = self.deps.ledger.commit(Arc::new(append)).await? else {
            tracing::warn!(run.id = %run.id, "another replica continues run {}", run.id);
            return Ok(None);
        };
        live.log.publish(frames);
        self.deps.notifier.notify(Notification::Advanced(run.id));
        run.last_sequence = to;
        Ok(Some(run))
    }
}
