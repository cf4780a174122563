//! The run that an agent gets, before it is stored.

use std::sync::Arc;

use domain::authorization::AuthorizationSnapshot;
use domain::manifest::resume_window;
use domain::run::Run;
use protocol::admin::Concurrency;
use protocol::run::RunStatus;
use serde_json::json;
use store::{DecisionFacts, EndpointAddress, NewRun};

use super::input::DecisionInput;
use crate::agent_cache::CachedAgent;
use crate::context::PreparedContext;
use crate::inputs::{ExpectedPosition, RunInputs};

/// A run that is not stored yet.
pub(crate) struct RunDraft {
    pub(crate) row: NewRun,
    pub(crate) snapshot: Arc<AuthorizationSnapshot>,
    pub(crate) agent: Arc<CachedAgent>,
    /// Policy of the agent for this event.
    pub(crate) policy: Concurrency,
    /// Address of the runner.
    pub(super) endpoint: Option<Arc<EndpointAddress>>,
    /// `None`: it is large.
    pub(super) context: Option<Arc<PreparedContext>>,
}

impl RunDraft {
    /// The row to be stored, and the run as the database will have it.
    pub(super) fn into_inputs(
        self,
        input: &DecisionInput,
        facts: &DecisionFacts,
    ) -> (Box<NewRun>, Box<RunInputs>) {
        let in_conversation = facts.position.as_ref();
        let row = self.row;
        let run = Run {
            id: row.id,
            workspace: input.workspace.clone(),
            event_id: input.event_id.clone(),
            parent_run_id: row.parent_run_id,
            retry_of: row.retry_of,
            retry_from: row.retry_from,
            posted_by: row.posted_by,
            trace_parent: row.trace_parent,
            agent_id: row.agent_id,
            agent_version: row.agent_version,
            runner_id: row.runner_id.clone(),
            endpoint_id: row.endpoint_id,
            conversation_key: in_conversation
                .map(|in_conversation| in_conversation.conversation_key.clone()),
            status: RunStatus::Created,
            status_reason: None,
            attempt: 0,
            fencing_token: 0,
            last_sequence: 0,
            deadline_at: row.deadline_at,
            cancel_requested_at: None,
            cancelled_by: None,
            snapshot_sha256: row.snapshot_sha256.clone(),
            output: None,
            error: None,
            usage: None,
            metadata: json!({}).into(),
            created_at: input.arrived_at,
            started_at: None,
            finished_at: None,
            pruned_at: None,
        };
        let inputs = RunInputs {
            run,
            snapshot: self.snapshot,
            spec: Arc::clone(&self.agent.frozen),
            event: Arc::clone(&input.event),
            position: ExpectedPosition::of(in_conversation),
            arrived_at: input.arrived_at,
            interruptible: self.agent.manifest.capabilities.interrupt,
            resume_window: resume_window(&self.agent.manifest),
            wants_static_refs: self.agent.manifest.context.wants_static_context_refs,
            endpoint: self.endpoint,
            shared: row.shared.clone(),
            context: self.context,
            dispatch: None,
            live_entry: None,
        };
        (Box::new(row), Box::new(inputs))
    }
}
