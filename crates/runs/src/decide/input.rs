//! Input of the decision about an event.

use std::sync::Arc;

use domain::api_key::AgentReach;
use domain::authorization::{AuthorizationSnapshot, ParentGrant};
use domain::trace::TraceParent;
use protocol::child_run::ChildGrants;
use protocol::event::EventEnvelope;
use protocol::id::{AgentId, ApiKeyId, RunId, RunnerId, WorkspaceId};
use store::{ParentAttempt, UserMessage};

use crate::own_limits::KeyAllowance;

/// Everything that the decision about one event needs, except the facts that the store reads.
pub(crate) struct DecisionInput {
    pub(crate) workspace: WorkspaceId,
    pub(crate) event_id: String,
    pub(crate) event: Arc<EventEnvelope>,
    /// Arrival of the event in epoch milliseconds.
    pub(crate) arrived_at: i64,
    /// The only agent that may get the event: the author of its question, or the callee of a child run.
    pub(crate) only: Option<AgentId>,
    /// The agents that the sender reaches. The event is refused unless it goes to one of them.
    pub(crate) scope: AgentReach,
    /// Parent of the child run that the event asks for.
    pub(crate) parent: Option<ParentContext>,
    /// The ended run that the new one repeats.
    pub(crate) retry_of: Option<RunId>,
    /// The result of that run after which the new one begins.
    pub(crate) retry_point: Option<RetryPoint>,
    /// The API key that posted the event.
    pub(crate) posted_by: Option<ApiKeyId>,
    /// Limits of this key.
    pub(crate) key: KeyAllowance,
    /// Span that the run continues.
    pub(crate) trace_parent: Option<TraceParent>,
    /// Id of the run, should the event get one.
    pub(crate) run_id: RunId,
    /// Transcript item that the event adds to its conversation.
    pub(crate) message: Option<UserMessage>,
    /// The event was acknowledged earlier, so its runner is called even if no endpoint lists it now.
    pub(crate) was_accepted: bool,
}

/// A result of an ended run after which its retry begins.
#[derive(Clone, Debug)]
pub(crate) struct RetryPoint {
    /// Sequence in the ledger of the ended run.
    pub(crate) sequence: u64,
    /// The runner that sent the result.
    pub(crate) runner: RunnerId,
}

/// Parent of a child run that is to be started.
#[derive(Clone, Debug)]
pub(crate) struct ParentContext {
    pub(crate) parent: ParentAttempt,
    pub(crate) snapshot: Arc<AuthorizationSnapshot>,
    pub(crate) grants: Option<ChildGrants>,
    /// Latest deadline of the child run, in epoch milliseconds.
    pub(crate) deadline_at: i64,
}

impl ParentContext {
    /// Part of the parent's grant that the child run may have.
    pub(crate) fn grant(&self) -> ParentGrant<'_> {
        ParentGrant {
            snapshot: &self.snapshot,
            grants: self.grants.as_ref(),
        }
    }
}
