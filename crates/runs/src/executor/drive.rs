//! One run, from its dispatch to its terminal.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use domain::normalize::{ResultCounts, RunMessages};
use domain::run::Run;
use protocol::id::{RunId, WorkspaceId};
use serde_json::value::RawValue;
use store::{LeaseFilter, StoreError, failpoint};

use super::next_step::{TaskStep, after_relay, failure_after};
use super::{RunExecutor, Takeover};
use crate::dispatch::DispatchOutcome;
use crate::ending::EndCause;
use crate::event_buffer::EventBuffer;
use crate::grant::Grant;
use crate::inputs::{PreparedDispatch, RunInputs};
use crate::live::LiveRun;
use crate::prepare::PrepareError;
use crate::relay::{Relayed, ResultOrigin};

impl RunExecutor {
    /// Drives a created run to its end. Recovery ends a run whose end fails here.
    pub(super) async fn drive(
        self: &Arc<Self>,
        live: &LiveRun,
        id: RunId,
        workspace: &WorkspaceId,
        inputs: Option<Box<RunInputs>>,
    ) {
        if let Err(error) = failpoint::pass("dispatch.before_run").await {
            return report_unwritable(id, &error);
        }
        // Each step is boxed, so that a run that waits for its runner holds no state of earlier steps.
        let (run, mut prepared) = match Box::pin(self.preparer.prepare(workspace, id, inputs)).await
        {
            Ok(Some(ready)) => ready,
            Ok(None) => return,
            // Another replica may have prepared and dispatched it.
            Err(PrepareError::Store(error)) => {
                return self
                    .stop_driving(id, workspace, LeaseFilter::None, &error)
                    .await;
            }
            Err(PrepareError::Never(failure)) => {
                tracing::warn!(run.id = %id, "run {id} cannot be dispatched: {}", failure.message);
                // Another replica may have prepared and dispatched it.
                let settled = self.end_orphan(id, workspace, LeaseFilter::None, failure);
                return Box::pin(settled).await;
            }
        };
        live.set_agent_name(&prepared.agent_name);
        tracing::info!(
            run.id = %id, runner.id = %run.runner_id, agent.name = prepared.agent_name,
            "run {id} starts"
        );
        let (grant, started) = match Box::pin(self.dispatcher.dispatch(live, run, &prepared)).await
        {
            Ok(DispatchOutcome::Started(grant, started)) => (grant, started),
            Ok(DispatchOutcome::Failed(run, failure, rejection)) => {
                let ending = EndCause::Gateway {
                    failure,
                    messages: RunMessages::default(),
                };
                let mut buffer = EventBuffer::new(&run);
                // Operators see the runner's response with the rejected results of the run.
                buffer.record_response(rejection);
                let settled = self.finish(live, &run, buffer, ResultCounts::default(), ending);
                // Recovery ends the run if this fails.
                return drop(Box::pin(settled).await);
            }
            Ok(DispatchOutcome::Lost) => {
                tracing::warn!(run.id = %id, "another replica executes run {id}");
                return;
            }
            Err(error) => {
                return self
                    .stop_driving(id, workspace, LeaseFilter::Own, &error)
                    .await;
            }
        };
        if let Err(error) = failpoint::pass("run.task").await {
            return report_unwritable(id, &error);
        }
        // The context may be megabytes, and the run may take hours.
        prepared.context = RawValue::NULL.to_owned().into();
        let origin = ResultOrigin::Answer(started);
        self.relay_to_end(live, &prepared, &grant.run, origin).await;
    }

    /// Relays the results of a dispatched run, and ends it.
    async fn relay_to_end(
        self: &Arc<Self>,
        live: &LiveRun,
        prepared: &PreparedDispatch,
        run: &Run,
        origin: ResultOrigin,
    ) {
        let id = run.id;
        let outcome = Box::pin(self.relayer.relay(live, prepared, run, origin)).await;
        match after_relay(outcome) {
            TaskStep::Finish(relayed) => {
                let Relayed {
                    buffer,
                    tally,
                    ending,
                } = *relayed;
                let settled = Box::pin(self.finish(live, run, buffer, tally, ending)).await;
                if let Err(error) = settled {
                    self.stop_driving(id, &run.workspace, LeaseFilter::Own, &error)
                        .await;
                }
            }
            TaskStep::Leave => {
                tracing::warn!(run.id = %id, "another replica took over run {id}; its stream is closed");
            }
            TaskStep::Release => self.release(run).await,
            TaskStep::Stop(error) => {
                self.stop_driving(id, &run.workspace, LeaseFilter::Own, &error)
                    .await;
            }
        }
    }

    /// Resumes an async run after the results that its last owner has validated.
    pub(super) async fn resume(self: &Arc<Self>, live: &LiveRun, taken: Takeover) {
        let Takeover {
            run,
            resume_point,
            held_until,
        } = taken;
        let (id, workspace) = (run.id, run.workspace.clone());
        // Before the grant: a host call must see that results are appended.
        live.appends.store(true, Ordering::Release);
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
        let grant = Arc::new(Grant {
            attempt: run.attempt,
            snapshot: Arc::clone(&prepared.snapshot),
            run,
        });
        live.set_grant(Arc::clone(&grant));
        // The cancel may have been requested while no process owned the run.
        if let Some(at) = grant.run.cancel_requested_at {
            live.request_cancel(at);
        }
        let origin = ResultOrigin::ResumePoint(resume_point);
        self.relay_to_end(live, &prepared, &grant.run, origin).await;
    }

    /// Releases an async run. Another replica or the next start resumes it.
    async fn release(&self, run: &Run) {
        let id = run.id;
        match self
            .deps
            .store
            .leases()
            .release(id, run.fencing_token)
            .await
        {
            Ok(()) => {
                tracing::info!(run.id = %id, "released the lease of run {id} for another replica");
            }
            Err(error) => tracing::warn!(
                run.id = %id, error = &error as &dyn std::error::Error,
                "cannot release the lease of run {id}; another replica takes over when it expires"
            ),
        }
    }

    /// Stops driving a run.
    async fn stop_driving(
        self: &Arc<Self>,
        id: RunId,
        workspace: &WorkspaceId,
        leases: LeaseFilter,
        error: &StoreError,
    ) {
        report_unwritable(id, error);
        if let Some(failure) = failure_after(error) {
            let settled = self.end_orphan(id, workspace, leases, failure);
            Box::pin(settled).await;
        }
    }
}

fn report_unwritable(id: RunId, error: &StoreError) {
    tracing::error!(
        run.id = %id, error = error as &dyn std::error::Error,
        "run {id} stops: its ledger cannot be written; recovery takes it over"
    );
}
