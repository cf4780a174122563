//! Reasons for which an event is refused.

use std::time::Duration;

use protocol::admin::Fault;
use protocol::id::{AgentId, RunId, RunnerId};
use store::{ChildRefused, StoreError, Unanswerable};

use crate::artifacts::{AttachError, UploadError};
use crate::hooks::HookRefused;
use crate::own_limits::StartLimit;

/// Cause of a refused event. None of it is stored.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    #[error(
        "this idempotency key, or event_id, was used with another body; send that body, or use a new one"
    )]
    IdempotencyMismatch,
    #[error(
        "this event_id was posted under another idempotency key, or without one; send it as it was sent first"
    )]
    EventExists,
    #[error(
        "several agents want this event with equal right: {}; give one of them a higher priority",
        .0.join(", ")
    )]
    BindingConflict(Vec<String>),
    #[error(
        "run {0} of the same agent is active in this conversation; post the event again when it has ended, or cancel it"
    )]
    RunActive(RunId),
    #[error(
        "{limit} runs live in this workspace, and no more may (limits.workspace_runs); post the event \
         again when some have ended"
    )]
    WorkspaceFull { limit: u64 },
    #[error(
        "{limit} runs live at the runner's endpoint, and no more may (max_runs); post the event again \
         when some have ended"
    )]
    EndpointFull { limit: u64 },
    /// `wait`: time until the next event is admitted.
    #[error(
        "this workspace posts events too fast (limits.workspace_events_per_second); retry later"
    )]
    TooFast { wait: Duration },
    #[error(transparent)]
    Limit(#[from] StartLimit),
    #[error(transparent)]
    Hook(#[from] HookRefused),
    #[error("100 runs of this agent wait in this conversation")]
    QueueFull,
    /// `status`: status of the runner in the registry.
    #[error("runner {runner} cannot be called: {why}")]
    RunnerUnavailable {
        runner: RunnerId,
        status: &'static str,
        why: String,
    },
    #[error("a file of the event cannot be stored: {0}")]
    Attachment(UploadError),
    #[error("{} {}", .0.pointer, .0.message)]
    Reference(Fault),
    /// With the agents of the key.
    #[error(
        "this API key is restricted to agents (details.agents), and the event does not go to one of them; \
         use another key, or ask the operator to change the binding"
    )]
    OutsideScope(Vec<AgentId>),
    #[error("the agent of the run is disabled or deleted; enable it and try again")]
    AgentGone,
    #[error(
        "needs a runner with the capability resumable, and {0} is none; retry the run without `from`"
    )]
    NotResumable(RunnerId),
    #[error(
        "the agent has the runner {0} now, which did not send the results of the run; retry it without `from`"
    )]
    RunnerChanged(RunnerId),
    #[error("the agent is disabled or deleted; continue without it")]
    CalledAgentGone,
    #[error("the question no longer accepts answers")]
    Unanswerable(Unanswerable),
    #[error("{0}")]
    ChildRefused(ChildRefused),
    #[error("the gateway is stopping")]
    Stopping,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl IntakeError {
    /// The refusal of an event that goes to none of these agents.
    pub(crate) fn outside(agents: &[AgentId]) -> Self {
        Self::OutsideScope(agents.to_vec())
    }

    /// True if as many runs of the key live as may.
    pub(super) fn is_full_key(&self) -> bool {
        matches!(self, Self::Limit(StartLimit::KeyRuns { .. }))
    }

    /// Name of the reason, for metrics and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::IdempotencyMismatch => "idempotency_mismatch",
            Self::EventExists => "event_exists",
            Self::BindingConflict(_) => "binding_conflict",
            Self::RunActive(_) => "run_active",
            Self::WorkspaceFull { .. } => "workspace_full",
            Self::EndpointFull { .. } => "endpoint_full",
            Self::TooFast { .. } => "too_fast",
            Self::Limit(StartLimit::KeyRate { .. }) => "key_too_fast",
            Self::Limit(StartLimit::KeyRuns { .. }) => "key_full",
            Self::Limit(StartLimit::AgentRate { .. }) => "agent_too_fast",
            Self::Limit(StartLimit::AgentRuns { .. }) => "agent_full",
            Self::Hook(refused) => refused.code(),
            Self::QueueFull => "queue_full",
            Self::RunnerUnavailable { .. } => "runner_unavailable",
            Self::Attachment(_) | Self::Reference(_) => "attachment",
            Self::OutsideScope(_) => "outside_scope",
            Self::AgentGone | Self::CalledAgentGone => "agent_gone",
            Self::NotResumable(_) => "not_resumable",
            Self::RunnerChanged(_) => "runner_changed",
            Self::Unanswerable(_) => "unanswerable",
            Self::ChildRefused(_) => "childless",
            Self::Stopping => "stopping",
            Self::Store(_) => "store",
        }
    }
}

impl From<AttachError> for IntakeError {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::Reference(fault) => Self::Reference(fault),
            AttachError::Upload(error) => Self::Attachment(error),
            AttachError::Store(error) => Self::Store(error),
        }
    }
}
