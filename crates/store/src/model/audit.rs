//! Audited host calls.

use std::borrow::Cow;

use domain::tool_call::CallEffect;
use protocol::id::{ApprovalId, RunId, WorkspaceId};
use uuid::Uuid;

/// An audited call. Contains no values, tokens or user texts.
#[derive(Clone, Debug)]
pub struct AuditEntry {
    /// A `UUIDv7`, which orders the entries of a run.
    pub id: Uuid,
    pub workspace: WorkspaceId,
    pub run_id: RunId,
    pub action: &'static str,
    pub resource: String,
    pub operation: &'static str,
    pub allowed: bool,
    pub rule: Cow<'static, str>,
    /// The gateway's id of the answered question that the runner names as approval.
    pub interaction_id: Option<String>,
    pub bytes: u64,
    pub at: i64,
    /// Aggregates denied calls: an existing id increments its count.
    pub is_shared: bool,
}

/// Outcome of an allowed call.
#[derive(Clone, Debug)]
pub struct AuditOutcome {
    /// Id of the call's entry.
    pub id: Uuid,
    pub run_id: RunId,
    /// Bytes sent to the runner.
    pub bytes: u64,
    /// `ok`, or the error code.
    pub outcome: &'static str,
    pub duration_ms: i64,
    /// Of a tool call with a ticket.
    pub effect: Option<TicketEffect>,
    /// The approval that a tool call used.
    pub approval: Option<ApprovalId>,
    /// Type and id of the actor whose token a tool call used.
    pub on_behalf_of: Option<String>,
}

/// Ticket of a tool call, and the effect of the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketEffect {
    /// The idempotency key that the tool received.
    pub ticket: String,
    pub effect: CallEffect,
}
