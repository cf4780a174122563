//! One run, from its dispatch to its terminal.

use std::sync::Arc;

use domain::normalize::{ResultCounts, RunMessages};
use domain::run::Run;
use protocol::id::{RunId, WorkspaceId};
use serde_json::value::RawValue;
use store::{LeaseFilter, StoreError, failpoint};

use super::RunExecutor;
use super::next_step::{TaskStep, after_relay, failure_after};
use super::resume::AttachedRun;
use crate::dispatch::DispatchOutcome;
use crate::ending::EndCause;
use crate::event_buffer::EventBuffer;
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
        let dispatched = Box::pin(self.dispatcher.dispatch(live, run, &prepared)).await;
        // The context may be megabytes, and the run may take hours.
        prepared.context = RawValue::NULL.to_owned().into();
        let attached = match dispatched {
            Ok(DispatchOutcome::Started(grant, started)) => AttachedRun {
                grant,
                origin: ResultOrigin::Answer(started),
                restored: self.relayer.empty(&prepared),
            },
            Ok(DispatchOutcome::Disconnected(run)) => {
                let attached = self.attach_again(live, &prepared, &run, None);
                match Box::pin(attached).await {
                    Some((attached, _)) => attached,
                    None => return,
                }
            }
            Ok(DispatchOutcome::Failed(run, failure, rejection)) => {
                let ending = EndCause::Gateway {
                    failure,
                    messages: RunMessages::default(),
                };
                let mut buffer = EventBuffer::new(&run);
                // Operators see the runner's response with the rejected results of the run.
                buffer.record_response(rejection);
                let tally = ResultCounts::default();
                // Recovery ends the run if this fails.
                let ended = self.end(live, &prepared, &run, buffer, tally, ending);
                return drop(Box::pin(ended).await);
            }
            Ok(DispatchOutcome::Lost | DispatchOutcome::Released(_)) => {
                tracing::warn!(run.id = %id, "another replica executes run {id}, or a pause holds it");
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
        self.relay_to_end(live, &prepared, attached).await;
    }

    /// Relays the results of a dispatched run, and ends it.
    pub(super) async fn relay_to_end<'a>(
        self: &Arc<Self>,
        live: &LiveRun,
        prepared: &'a PreparedDispatch,
        mut attached: AttachedRun<'a>,
    ) {
        let mut lost = None;
        loop {
            let AttachedRun {
                grant,
                origin,
                restored,
            } = attached;
            let run = &grant.run;
            let relaying = self.relayer.relay(live, prepared, run, origin, restored);
            match after_relay(Box::pin(relaying).await) {
                TaskStep::Finish(relayed) => {
                    let Relayed {
                        buffer,
                        tally,
                        ending,
                    } = *relayed;
                    let ended = self.end(live, prepared, run, buffer, tally, ending);
                    if let Err(error) = Box::pin(ended).await {
                        self.stop_driving(run.id, &run.workspace, LeaseFilter::Own, &error)
                            .await;
                    }
                    return;
                }
                TaskStep::Leave => {
                    return tracing::warn!(
                        run.id = %run.id,
                        "another replica took over run {}; its stream is closed", run.id
                    );
                }
                TaskStep::Release => return self.release(run).await,
                TaskStep::Stop(error) => {
                    return self
                        .stop_driving(run.id, &run.workspace, LeaseFilter::Own, &error)
                        .await;
                }
                TaskStep::Resume => {
                    tracing::info!(run.id = %run.id, "the runner of run {} lost its connection, attaching again", run.id);
                    let again = self.attach_again(live, prepared, run, lost);
                    let Some((next, since)) = Box::pin(again).await else {
                        return;
                    };
                    (attached, lost) = (next, Some(since));
                }
            }
        }
    }

    /// Releases an async or resumable run. Another replica or the next start resumes it.
    pub(super) async fn release(&self, run: &Run) {
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
    pub(super) async fn stop_driving(
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
