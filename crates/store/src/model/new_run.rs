//! A new run and its first attempt.

use std::time::Duration;

use domain::generation::ConversationGeneration;
use domain::trace::TraceParent;
use protocol::id::{AgentId, ApiKeyId, EndpointId, RunId, RunnerId};
use uuid::Uuid;

use crate::part_text::{SharedParts, StoredText};

/// The row of a new run.
#[derive(Clone, Debug)]
pub struct NewRun {
    pub id: RunId,
    /// Span of the event's trace context, if stored.
    pub trace_parent: Option<TraceParent>,
    /// The parent, for a child run.
    pub parent_run_id: Option<RunId>,
    /// The run that this one repeats.
    pub retry_of: Option<RunId>,
    /// Sequence of the result of that run after which this one begins.
    pub retry_from: Option<u64>,
    /// The generation that the event begins in its conversation.
    pub begun: Option<ConversationGeneration>,
    /// The API key that posted the event, sent the answer or requested the retry.
    pub posted_by: Option<ApiKeyId>,
    pub agent_id: AgentId,
    pub agent_version: i64,
    pub runner_id: RunnerId,
    pub endpoint_id: EndpointId,
    pub deadline_at: i64,
    /// The frozen agent specification, as JSON.
    pub agent_spec: StoredText,
    /// The authorization snapshot.
    pub snapshot: StoredText,
    /// Hash of the complete snapshot.
    pub snapshot_sha256: String,
    /// Parts of these texts and of the run's contexts that are shared with other runs.
    pub shared: SharedParts,
}

/// The user's transcript item of a message event.
#[derive(Clone, Debug)]
pub struct UserMessage {
    pub id: Uuid,
    pub content: Option<String>,
    pub content_json: String,
    pub attachment_refs: String,
    /// The author, as JSON.
    pub author: Option<String>,
}

/// The first attempt of a run dispatched at ingest: one transaction stores its intent and the run.
#[derive(Clone, Debug)]
pub struct FirstAttempt {
    pub owner: String,
    /// Duration of the owner's lease, from the commit on.
    pub lease: Duration,
    /// The context as sent.
    pub context: StoredText,
}

impl FirstAttempt {
    /// Number of the attempt, and epoch of its lease.
    pub const NUMBER: u32 = 1;
}
