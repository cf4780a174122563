//! Retry of an ended run: its event is decided again, with the agents and permissions of now.

use std::sync::Arc;

use domain::run::Run;
use domain::trace::TraceParent;
use egress::limiter::Permit;
use protocol::event::EventEnvelope;
use protocol::id::{AgentId, ApiKeyId, RunId, WorkspaceId};
use protocol::interaction::INTERACTION_SUBMITTED;
use protocol::run::RunStatus;
use store::{Retried, RetryOutcome, RetryRun, StoreError};
use uuid::Uuid;

use super::{EventSender, Intake, IntakeError, run_to_start};
use crate::decide::{DecisionEffects, DecisionInput, PendingDecision, RetryPoint};
use crate::own_limits::KeyAllowance;
use crate::retry_origin::{RetryPointError, read_origin};

/// The run of a retry.
#[derive(Clone, Copy, Debug)]
pub struct RetriedRun {
    pub run_id: RunId,
    /// An earlier retry made it.
    pub replayed: bool,
}

/// Cause of a refused retry. Nothing is stored.
#[derive(Debug, thiserror::Error)]
pub enum RetryError {
    #[error("there is no run {0}")]
    Unknown(RunId),
    #[error("the run is {}; wait until it ends, or cancel it first", .0.as_str())]
    Live(RunStatus),
    #[error("the run completed, and only other ends are retried; post a new event to ask again")]
    Completed,
    #[error("run {0} started this run as its child; retry that run")]
    Child(RunId),
    #[error(
        "run {0} repeats the run from another result, and a run is retried once; retry that one"
    )]
    Retried(RunId),
    /// The requested result.
    #[error(transparent)]
    Point(#[from] RetryPointError),
    /// With the hint of the decision.
    #[error("the event gets no run: {0}")]
    NoAgent(String),
    #[error(transparent)]
    Refused(#[from] IntakeError),
}

impl From<StoreError> for RetryError {
    fn from(error: StoreError) -> Self {
        Self::Refused(error.into())
    }
}

impl Intake {
    /// Runs the event of an ended run again; with `from`, after the result with this sequence of its ledger. A run is
    /// retried at most once; a repeated retry returns the same run. `trace`: the `traceparent` of the request.
    pub async fn retry(
        &self,
        sender: EventSender<'_>,
        id: RunId,
        from: Option<u64>,
        trace: Option<&str>,
    ) -> Result<RetriedRun, RetryError> {
        let workspace = sender.workspace;
        self.admit_start(workspace, sender.key)?;
        let run = self.deps.find_run(workspace, id).await?;
        let run = run.ok_or(RetryError::Unknown(id))?;
        check_retryable(&run)?;
        if let Some(from) = from {
            read_origin(&self.deps.store, &run, from).await?;
        }
        let parent = self.deps.spans.parent_of(trace);
        let (limits, store) = (&self.deps.own_limits, &self.deps.store);
        let start = limits.begin(store, workspace, sender.key).await?;
        let start = start.map_err(IntakeError::from)?;
        let mut input = self.retry_input(&run, sender, from, parent).await?;
        input.key = start.allowance;
        let retry = RetryRun {
            workspace: workspace.clone(),
            run_id: id,
            event_id: run.event_id,
            conversation_key: run.conversation_key,
            from,
            max_live_runs: self.deps.limits.workspace_runs,
            at: input.arrived_at,
            decide: PendingDecision::new(&self.decider, input),
        };
        let (retried, effects) = self.store_retry(retry, start.permit).await?;
        match retried {
            Retried::Created(run_id) => Ok(RetriedRun {
                run_id,
                replayed: false,
            }),
            Retried::Existing(run_id) => {
                // No decision was made now, and the earlier retry may be of another key.
                self.check_reach(sender, Some(run_id)).await?;
                self.check_point(workspace, run_id, from).await?;
                Ok(RetriedRun {
                    run_id,
                    replayed: true,
                })
            }
            Retried::Refused => Err(match effects.refused {
                Some(refused) => {
                    if refused.is_full_key() {
                        limits.note_full(workspace, sender.key.limited_id());
                    }
                    RetryError::Refused(refused)
                }
                None => RetryError::NoAgent(
                    effects
                        .answer
                        .and_then(|answer| answer.hint)
                        .unwrap_or_default(),
                ),
            }),
        }
    }

    /// Fails if an earlier retry begins after another result than `from`.
    async fn check_point(
        &self,
        workspace: &WorkspaceId,
        retry: RunId,
        from: Option<u64>,
    ) -> Result<(), RetryError> {
        let Some(from) = from else { return Ok(()) };
        let run = self.deps.find_run(workspace, retry).await?;
        match run.and_then(|run| run.retry_from) {
            Some(earlier) if earlier == from => Ok(()),
            _ => Err(RetryError::Retried(retry)),
        }
    }

    async fn retry_input(
        &self,
        run: &Run,
        sender: EventSender<'_>,
        from: Option<u64>,
        trace_parent: Option<TraceParent>,
    ) -> Result<DecisionInput, StoreError> {
        let stored = self
            .deps
            .store
            .events()
            .find_event(&run.workspace, &run.event_id);
        let envelope = stored.await?.map(|event| event.envelope);
        let event: EventEnvelope =
            serde_json::from_str(&envelope.unwrap_or_default()).map_err(|_| {
                StoreError::Corrupt {
                    column: "events.envelope",
                    row: run.event_id.clone(),
                }
            })?;
        Ok(DecisionInput {
            workspace: run.workspace.clone(),
            event_id: run.event_id.clone(),
            // The results of a run go to its own agent.
            only: asking_agent(&event, run).or(from.map(|_| run.agent_id)),
            scope: sender.scope.clone(),
            posted_by: Some(sender.key.id),
            key: KeyAllowance::default(),
            event: Arc::new(event),
            arrived_at: self.deps.clock.now_ms(),
            parent: None,
            retry_of: Some(run.id),
            retry_point: from.map(|sequence| RetryPoint {
                sequence,
                runner: run.runner_id.clone(),
            }),
            trace_parent,
            run_id: RunId(Uuid::now_v7()),
            // The first run has added it to the conversation.
            message: None,
            was_accepted: false,
        })
    }

    /// Stores the new run and starts it, if it is to start now.
    async fn store_retry(
        &self,
        retry: RetryRun<PendingDecision>,
        start: Option<Permit<ApiKeyId>>,
    ) -> Result<(Retried, DecisionEffects), StoreError> {
        let (deps, executor) = (Arc::clone(&self.deps), Arc::clone(&self.executor));
        // A task of its own: the client may disconnect, but a stored run must be driven.
        let storing = self.deps.lifecycle.tasks.spawn(async move {
            let (workspace, at) = (retry.workspace.clone(), retry.at);
            let RetryOutcome { retried, effects } = deps.store.runs().retry_run(retry).await?;
            // The next start of the key counts the stored run.
            drop(start);
            let mut effects = effects.unwrap_or_default();
            if let Retried::Created(run) = retried {
                deps.notifier.notify_changed(run);
                for run in std::mem::take(&mut effects.cancelled) {
                    deps.send_cancel(run, at);
                }
                if let Some(run) = run_to_start(&effects) {
                    executor.spawn(run, workspace, None);
                }
            }
            Ok((retried, effects))
        });
        storing.await.map_err(|_| StoreError::Closed)?
    }
}

/// Ended runs are retried, except completed ones and child runs.
fn check_retryable(run: &Run) -> Result<(), RetryError> {
    if let Some(parent) = run.parent_run_id {
        return Err(RetryError::Child(parent));
    }
    match run.status {
        RunStatus::Failed | RunStatus::Timeout | RunStatus::Cancelled => Ok(()),
        RunStatus::Completed => Err(RetryError::Completed),
        live @ (RunStatus::Created
        | RunStatus::Queued
        | RunStatus::Claimed
        | RunStatus::Running) => Err(RetryError::Live(live)),
    }
}

/// The asking agent of an answer; `None` for other events, which any agent may take.
fn asking_agent(event: &EventEnvelope, run: &Run) -> Option<AgentId> {
    (event.event_type == INTERACTION_SUBMITTED).then_some(run.agent_id)
}
