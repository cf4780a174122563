//! Runs that continue after their owner or their connection was lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use domain::normalize::ResultCounts;
use domain::run::Run;
use protocol::id::RunId;
use store::{LeaseFilter, ResumePoint, StoreError};
use tokio::time::Instant;

use super::restart::{AttachStep, FailedAttach};
use super::{RunExecutor, Takeover};
use crate::dispatch::DispatchOutcome;
use crate::dispatch::resuming::{LostConnection, Reattach};
use crate::ending::EndCause;
use crate::event_buffer::EventBuffer;
use crate::grant::Grant;
use crate::inputs::PreparedDispatch;
use crate::live::LiveRun;
use crate::prepare::PrepareError;
use crate::relay::{RestoredRun, ResultOrigin};

/// A run with the source of its further results, and those of its ledger.
pub(super) struct AttachedRun<'a> {
    pub(super) grant: Arc<Grant>,
    pub(super) origin: ResultOrigin,
    pub(super) restored: RestoredRun<'a>,
}

impl RunExecutor {
    /// Continues a run after the results that its last owner has committed.
    pub(super) async fn resume(self: &Arc<Self>, live: &LiveRun, taken: Takeover) {
        let Takeover {
            run,
            resume_point,
            held_until,
        } = taken;
        let (id, workspace) = (run.id, run.workspace.clone());
        if resume_point.is_some() {
            // Before the grant: a host call must see that results are appended.
            live.appends.store(true, Ordering::Release);
        }
        live.hold_until(held_until);
        live.log.begin_after(run.last_sequence);
        let (run, prepared) = match Box::pin(self.preparer.prepare_again(run)).await {
            Ok(ready) => ready,
            Err(PrepareError::Never(failure)) => {
                tracing::error!(run.id = %id, "cannot continue run {id}: {}", failure.message);
                let settled = self.end_orphan(id, &workspace, LeaseFilter::Own, failure);
                return Box::pin(settled).await;
            }
            Err(PrepareError::Store(error)) => {
                return self
                    .stop_driving(id, &workspace, LeaseFilter::Own, &error)
                    .await;
            }
        };
        live.set_agent_name(&prepared.agent_name);
        tracing::info!(
            run.id = %id, runner.id = %run.runner_id, agent.name = prepared.agent_name,
            "this replica continues run {id}"
        );
        // The cancel may have been requested while no process owned the run.
        if let Some(at) = run.cancel_requested_at {
            live.request_cancel(at);
        }
        let attached = if let Some(resume_point) = resume_point {
            self.attach_appended(live, &prepared, run, resume_point)
                .await
        } else {
            let attached = self.attach_again(live, &prepared, &run, None);
            Box::pin(attached).await.map(|(attached, _)| attached)
        };
        if let Some(attached) = attached {
            self.relay_to_end(live, &prepared, attached).await;
        }
    }

    /// Continues an async run. `None`: the run is over here.
    async fn attach_appended<'a>(
        self: &Arc<Self>,
        live: &LiveRun,
        prepared: &'a PreparedDispatch,
        run: Run,
        resume_point: ResumePoint,
    ) -> Option<AttachedRun<'a>> {
        let restored = match (resume_point.streamed_through, run.attempt) {
            (0, 1) => Ok(self.relayer.empty(prepared)),
            (through, _) => self.relayer.restore(prepared, &run, through).await,
        };
        let restored = match restored {
            // All results were appended, so they are read from their table.
            Ok(restored) if resume_point.streamed_through == 0 && restored.restarts() == 0 => {
                self.relayer.empty(prepared)
            }
            Ok(restored) => restored,
            Err(error) => {
                self.stop_driving(run.id, &run.workspace, LeaseFilter::Own, &error)
                    .await;
                return None;
            }
        };
        let attempt = run.attempt;
        let grant = Arc::new(Grant::new(run, Arc::clone(&prepared.snapshot), attempt));
        live.set_grant(Arc::clone(&grant));
        Some(AttachedRun {
            grant,
            origin: ResultOrigin::ResumePoint(resume_point),
            restored,
        })
    }

    /// Attaches to the runner of a streaming run, or starts the run again if the runner has lost it. `lost`: the loss
    /// before this one. `None`: the run is over here.
    pub(super) async fn attach_again<'a>(
        self: &Arc<Self>,
        live: &LiveRun,
        prepared: &'a PreparedDispatch,
        run: &Run,
        lost: Option<LostConnection>,
    ) -> Option<(AttachedRun<'a>, LostConnection)> {
        let (mut run, mut lost) = (run.clone(), lost);
        loop {
            let step = match Box::pin(self.attach(live, prepared, &run, lost)).await {
                AttachStep::Failed(failed) => {
                    Box::pin(self.restart_or_end(live, prepared, *failed)).await
                }
                step => step,
            };
            match step {
                AttachStep::Attached(attached, lost) => return Some((*attached, lost)),
                AttachStep::Disconnected(disconnected) => (run, lost) = (*disconnected, None),
                AttachStep::Failed(failed) => {
                    self.end_failed(live, prepared, *failed).await;
                    return None;
                }
                AttachStep::Over => return None,
            }
        }
    }

    /// Attaches to the runner of a streaming run.
    async fn attach<'a>(
        self: &Arc<Self>,
        live: &LiveRun,
        prepared: &'a PreparedDispatch,
        run: &Run,
        lost: Option<LostConnection>,
    ) -> AttachStep<'a> {
        let noticed_at = Instant::now();
        let attaching = async {
            // The row of the last commit: the run in memory is that of its dispatch.
            let row = || self.deps.find_run(&run.workspace, run.id);
            let row = self.deps.ledger.retry_within_lease(run.id, row).await?;
            let Some(row) = row.filter(|row| row.fencing_token == run.fencing_token) else {
                return Ok(None);
            };
            let lost = LostConnection::after(lost, row.last_sequence, noticed_at);
            let restored = self.relayer.restore(prepared, &row, u64::MAX).await?;
            let aim = Reattach::Resume(restored.stored.through);
            let outcome = self
                .dispatcher
                .resume(live, Box::new(row), prepared, aim, lost)
                .await?;
            Ok::<_, StoreError>(Some((restored, lost, outcome)))
        };
        match Box::pin(attaching).await {
            Ok(Some((restored, lost, outcome))) => {
                self.after_post(run.id, restored, lost, outcome).await
            }
            Ok(None) => {
                tracing::warn!(run.id = %run.id, "another replica continues run {}", run.id);
                AttachStep::Over
            }
            Err(error) => {
                self.stop_driving(run.id, &run.workspace, LeaseFilter::Own, &error)
                    .await;
                AttachStep::Over
            }
        }
    }

    /// The step after the POST of a resume or of a new start.
    pub(super) async fn after_post<'a>(
        self: &Arc<Self>,
        id: RunId,
        restored: RestoredRun<'a>,
        lost: LostConnection,
        outcome: DispatchOutcome,
    ) -> AttachStep<'a> {
        match outcome {
            DispatchOutcome::Started(grant, answer) => {
                let origin = ResultOrigin::Answer(answer);
                let attached = AttachedRun {
                    grant,
                    origin,
                    restored,
                };
                return AttachStep::Attached(Box::new(attached), lost);
            }
            DispatchOutcome::Failed(run, failure, rejection) => {
                return AttachStep::Failed(Box::new(FailedAttach {
                    run,
                    failure,
                    rejection,
                    restored,
                }));
            }
            DispatchOutcome::Disconnected(run) => return AttachStep::Disconnected(run),
            DispatchOutcome::Lost => {
                tracing::warn!(run.id = %id, "another replica continues run {id}");
            }
            DispatchOutcome::Released(run) => self.release(&run).await,
        }
        AttachStep::Over
    }

    /// Ends a run. Its runner gets a cancel notice if it works on. On an error the run has no end yet.
    pub(super) async fn end(
        self: &Arc<Self>,
        live: &LiveRun,
        prepared: &PreparedDispatch,
        run: &Run,
        buffer: EventBuffer,
        tally: ResultCounts,
        ending: EndCause,
    ) -> Result<(), StoreError> {
        let works_on =
            prepared.resume_window.is_some() && matches!(ending, EndCause::Gateway { .. });
        Box::pin(self.finish(live, run, buffer, tally, ending)).await?;
        if works_on {
            self.relayer.interrupts.notify_runner(prepared, run);
        }
        Ok(())
    }
}
