//! Reading a created run again, and building its context.

use std::sync::Arc;

use domain::authorization::AuthorizationSnapshot;
use domain::context::{ContextParts, build_context, context_json};
use domain::run::Run;
use protocol::JsonObject;
use protocol::admin::{AgentSpec, DeltaMode};
use protocol::context::AgentRunState;
use protocol::event::EventEnvelope;
use protocol::id::{RunId, WorkspaceId};
use protocol::manifest::AgentRunnerManifest;
use protocol::resources::StateScope;
use protocol::run::RunStatus;
use serde_json::json;
use store::{StateAccess, StoreError};

use crate::cursor::history_cursor;
use crate::outbound::runner::Endpoint;
use crate::runs::discovery::open_endpoint;
use crate::runs::grant::read_snapshot;
use crate::runs::{Inner, RunLimits};

/// How much state of one scope a context carries: the rest is read through the host API.
const STATE_KEYS: u64 = 100;
const STATE_BYTES: usize = 256 * 1024;

/// A run and all that its dispatch needs.
pub(super) struct Prepared {
    pub(super) run: Run,
    pub(super) snapshot: Arc<AuthorizationSnapshot>,
    pub(super) spec: AgentSpec,
    pub(super) event: EventEnvelope,
    pub(super) endpoint: Endpoint,
    pub(super) delta_mode: DeltaMode,
    pub(super) interruptible: bool,
    /// The context as it is sent.
    pub(super) context: String,
}

/// Why a run cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    #[error("the run cannot be prepared: {0}")]
    Broken(&'static str),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Reads a created run again and builds its context.
pub(super) async fn prepare(
    inner: &Inner,
    workspace: &WorkspaceId,
    id: RunId,
) -> Result<Option<Prepared>, PrepareError> {
    let Some(mut run) = inner.store.find_run(workspace, id).await? else {
        return Ok(None);
    };
    if run.status != RunStatus::Created {
        return Ok(None);
    }
    // The time of a run begins now, however long it has waited for its turn.
    run.deadline_at += inner.clock.now_ms() - run.created_at;
    let broken = PrepareError::Broken;
    let inputs = inner
        .store
        .find_run_inputs(&run)
        .await?
        .ok_or(broken("its event is gone"))?;
    let spec: AgentSpec =
        serde_json::from_str(&inputs.agent_spec).map_err(|_| broken("its agent is unreadable"))?;
    let event: EventEnvelope =
        serde_json::from_str(&inputs.envelope).map_err(|_| broken("its event is unreadable"))?;
    let snapshot =
        read_snapshot(&run.snapshot).map_err(|_| broken("its snapshot is unreadable"))?;
    let record = inner
        .store
        .find_endpoint(workspace, run.endpoint_id)
        .await?;
    let record = record.ok_or(broken("its endpoint is gone"))?;
    let endpoint = open_endpoint(&inner.master_key, &record)
        .map_err(|_| broken("its endpoint cannot be opened with this master key"))?;
    let runner = inner.store.find_runner(workspace, &run.runner_id).await?;
    let latest = (inputs.transcript_before > 0).then_some(inputs.transcript_before);
    let context = build_context(ContextParts {
        snapshot_sha256: &run.snapshot_sha256,
        event: &event,
        event_seq: inputs.event_seq,
        transcript_before: inputs.transcript_before,
        latest_cursor: latest
            .zip(snapshot.conversation.as_ref())
            .map(|(seq, conversation)| {
                history_cursor(&inner.keys.cursors, workspace, conversation, seq)
            }),
        state: read_state(inner, &snapshot).await?,
        config: spec.config.clone(),
        deadline_at: run.deadline_at,
        trace_id: run.id.0.simple().to_string(),
        limits: told_limits(&inner.limits),
        context_window: inner.catalog.context_window(&snapshot.resources),
        snapshot: &snapshot,
    });
    let manifest = runner
        .and_then(|runner| serde_json::from_str::<AgentRunnerManifest>(&runner.manifest).ok());
    Ok(Some(Prepared {
        context: context_json(&context),
        snapshot: Arc::new(snapshot),
        spec,
        event,
        endpoint,
        delta_mode: record.delta_mode,
        interruptible: manifest.is_some_and(|manifest| manifest.capabilities.interrupt),
        run,
    }))
}

async fn read_state(
    inner: &Inner,
    snapshot: &AuthorizationSnapshot,
) -> Result<AgentRunState, StoreError> {
    let mut state = AgentRunState::default();
    for (&scope, identity) in &snapshot.state {
        let access = StateAccess {
            scope,
            identity: identity.clone(),
        };
        let entries = inner
            .store
            .read_state(&access, STATE_KEYS, STATE_BYTES)
            .await?;
        let map = match scope {
            StateScope::Conversation => &mut state.conversation,
            StateScope::Actor => &mut state.actor,
            StateScope::Subject => &mut state.subject,
            StateScope::Runner => &mut state.runner,
            StateScope::Binding => &mut state.binding,
        };
        for entry in entries {
            if let Ok(value) = serde_json::from_str(&entry.value) {
                map.insert(entry.key, value);
            }
        }
    }
    Ok(state)
}

/// The bounds of a run, as its runner is told.
pub(crate) fn told_limits(limits: &RunLimits) -> JsonObject {
    let told = json!({
        "line_bytes": limits.line_bytes,
        "event_bytes": limits.results.event_bytes,
        "run_bytes": limits.results.run_bytes,
        "run_events": limits.results.run_events,
        "state_value_bytes": limits.results.state_value_bytes,
        "first_byte_seconds": limits.first_byte.as_secs_f64(),
        "silence_seconds": limits.silence.as_secs_f64(),
    });
    told.as_object().cloned().unwrap_or_default()
}
