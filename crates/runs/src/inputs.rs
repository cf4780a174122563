//! Inputs of a created run, and the dispatch that is prepared from them.

use std::sync::Arc;
use std::time::Duration;

use domain::authorization::AuthorizationSnapshot;
use domain::normalize::ExpectedOutput;
use domain::run::Run;
use protocol::admin::{AgentSpec, DeltaMode, RetryPolicy};
use protocol::event::EventEnvelope;
use serde_json::value::RawValue;
use store::{ConversationPosition, EndpointAddress, SharedParts};
use tokio::time::Instant;

use crate::context::PreparedContext;
use crate::live::LiveEntry;
use runner_client::Endpoint;

/// A run that can be dispatched.
#[derive(Clone)]
pub(super) struct PreparedDispatch {
    /// Context in the form in which it is sent.
    pub(super) context: Arc<RawValue>,
    /// Parts of the context that other runs share.
    pub(super) shared: SharedParts,
    pub(super) snapshot: Arc<AuthorizationSnapshot>,
    pub(super) agent_name: String,
    pub(super) retry: RetryPolicy,
    pub(super) expected_output: ExpectedOutput,
    /// `None`: the endpoint was removed after another process had called it.
    pub(super) endpoint: Option<Arc<Endpoint>>,
    pub(super) delta_mode: DeltaMode,
    pub(super) interruptible: bool,
    /// Time in which the runner can be attached to again. `None`: its runs end with their connection.
    pub(super) resume_window: Option<Duration>,
    /// Request time of the lease, for a run that is dispatched by the commit of its event.
    pub(super) lease_requested_at: Option<Instant>,
}

/// A created run with everything that its dispatch is prepared from.
pub(super) struct RunInputs {
    pub(super) run: Run,
    pub(super) snapshot: Arc<AuthorizationSnapshot>,
    pub(super) spec: Arc<AgentSpec>,
    pub(super) event: Arc<EventEnvelope>,
    pub(super) position: ExpectedPosition,
    /// Arrival of the event in epoch milliseconds.
    pub(super) arrived_at: i64,
    pub(super) interruptible: bool,
    pub(super) resume_window: Option<Duration>,
    pub(super) wants_static_refs: bool,
    /// `None`: the address must be read.
    pub(super) endpoint: Option<Arc<EndpointAddress>>,
    pub(super) shared: SharedParts,
    /// Set for a run that its event may dispatch.
    pub(super) context: Option<Arc<PreparedContext>>,
    /// Set for a run that is dispatched by the commit of its event.
    pub(super) dispatch: Option<PreparedDispatch>,
    /// Entry of the run in the registry of live runs, if it has one already.
    pub(super) live_entry: Option<LiveEntry>,
}

impl RunInputs {
    /// Bytes of the prepared context, which is most of what these inputs hold; 0 without one.
    pub(super) fn context_bytes(&self) -> usize {
        let dispatch = self.dispatch.as_ref();
        dispatch.map_or(0, |dispatch| dispatch.context.get().len())
    }
}

/// Position of an event in its conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ExpectedPosition {
    /// `None`: the event belongs to no conversation.
    pub(super) event_seq: Option<i64>,
    /// Newest position of the transcript before the event's own message; 0 for none.
    pub(super) transcript_before: i64,
}

impl ExpectedPosition {
    /// The position that the store assigned.
    pub(super) fn of(position: Option<&ConversationPosition>) -> Self {
        Self {
            event_seq: position.map(|position| position.event_seq),
            transcript_before: position.map_or(0, |position| position.transcript_before),
        }
    }
}
