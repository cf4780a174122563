//! Context of a run for its runner, with the current state.

use std::sync::Arc;

use domain::authorization::AuthorizationSnapshot;
use domain::canonical::canonical_json;
use domain::context::{ContextParts, build_context, context_json};
use domain::locale::RunLocale;
use domain::trace::RunTrace;
use protocol::JsonObject;
use protocol::admin::AgentSpec;
use protocol::context::AgentRunState;
use protocol::event::EventEnvelope;
use protocol::id::WorkspaceId;
use protocol::resources::{StateScope, ToolResource};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use store::{ScopeState, StateAccess, StoreError, sha256_hex};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

use crate::deps::RunDeps;
use crate::inputs::ExpectedPosition;
use crate::limits::context_limits;
use keys::cursor::history_cursor;

/// Bytes of schemas from which a context is built off the async workers.
const LARGE_BYTES: usize = 64 * 1024;
/// Concurrent builds of large contexts; further ones wait.
static LARGE: Semaphore = Semaphore::const_new(4);

/// Facts that a context is built from.
pub(super) struct ContextInputs<'a> {
    pub(super) workspace: &'a WorkspaceId,
    pub(super) snapshot: &'a AuthorizationSnapshot,
    pub(super) snapshot_sha256: &'a str,
    pub(super) spec: &'a AgentSpec,
    pub(super) event: &'a EventEnvelope,
    pub(super) position: ExpectedPosition,
    /// Arrival of the event in epoch milliseconds.
    pub(super) arrived_at: i64,
    pub(super) deadline_at: i64,
    pub(super) trace: RunTrace,
    pub(super) wants_static_refs: bool,
}

/// Writes the contexts that runners get with their runs.
#[derive(Clone)]
pub(super) struct ContextWriter {
    pub(super) deps: Arc<RunDeps>,
}

impl ContextWriter {
    /// Builds a context, with the state as it is now.
    pub(super) async fn write(
        &self,
        inputs: ContextInputs<'_>,
    ) -> Result<Arc<RawValue>, StoreError> {
        let scopes: Vec<_> = scopes_of(inputs.snapshot).collect();
        let state = self.deps.store.state().context_state(&scopes).await?;
        if !is_large(&inputs.snapshot.resources.tools) {
            return Ok(self.build(&inputs, &state));
        }
        // Blocking threads are shared; large contexts must not take all of them.
        let _permit = LARGE.acquire().await;
        Ok(run_blocking(|| self.build(&inputs, &state)))
    }

    /// Builds a context with this state.
    pub(super) fn build(&self, inputs: &ContextInputs<'_>, state: &[ScopeState]) -> Arc<RawValue> {
        let snapshot = inputs.snapshot;
        let transcript_before = inputs.position.transcript_before;
        let has_history = transcript_before > snapshot.transcript_after();
        let latest = has_history.then_some(transcript_before);
        let (state, state_incomplete) = run_state(state);
        let cursors = &self.deps.keys.cursors;
        let static_refs = if inputs.wants_static_refs {
            static_refs(inputs.spec, snapshot, inputs.event)
        } else {
            JsonObject::new()
        };
        let context = build_context(ContextParts {
            snapshot_sha256: inputs.snapshot_sha256,
            static_refs,
            locale: RunLocale::of(inputs.event, inputs.spec),
            event: inputs.event,
            event_seq: inputs.position.event_seq,
            transcript_before,
            latest_cursor: latest
                .zip(snapshot.conversation.as_ref())
                .map(|(seq, conversation)| {
                    history_cursor(cursors, inputs.workspace, conversation, seq)
                }),
            state,
            state_incomplete,
            config: inputs.spec.config.clone(),
            arrived_at: inputs.arrived_at,
            deadline_at: inputs.deadline_at,
            trace_id: inputs.trace.trace_id.to_string(),
            limits: context_limits(&self.deps.limits),
            model_limits: self.deps.catalog.load().first_limits(&snapshot.resources),
            snapshot,
        });
        context_json(&context).into()
    }
}

/// Scopes of state that a run was granted.
pub(super) fn scopes_of(snapshot: &AuthorizationSnapshot) -> impl Iterator<Item = StateAccess> {
    snapshot.state.iter().map(|(&scope, identity)| StateAccess {
        scope,
        identity: identity.clone(),
    })
}

/// The state of a context, and the scopes whose state did not fit. The context marks these; they are read through
/// the host API.
fn run_state(scopes: &[ScopeState]) -> (AgentRunState, Vec<StateScope>) {
    let (mut state, mut incomplete) = (AgentRunState::default(), Vec::new());
    for ScopeState { scope, part } in scopes {
        let map = match scope {
            StateScope::Conversation => &mut state.conversation,
            StateScope::Actor => &mut state.actor,
            StateScope::Subject => &mut state.subject,
            StateScope::Runner => &mut state.runner,
            StateScope::Binding => &mut state.binding,
        };
        if !part.is_complete {
            incomplete.push(*scope);
        }
        for entry in &part.entries {
            // A corrupt entry must not block every run of the scope.
            if let Ok(value) = serde_json::from_str(&entry.value) {
                map.insert(entry.key.clone(), value);
            }
        }
    }
    (state, incomplete)
}

/// Hashes of the parts of a context that runs share while the agent and its grants are unchanged.
fn static_refs(
    spec: &AgentSpec,
    snapshot: &AuthorizationSnapshot,
    event: &EventEnvelope,
) -> JsonObject {
    let adapter = event.adapter.as_ref();
    let prompt = adapter.filter(|_| snapshot.available_apis.prompt_get);
    let policy = json!({"config": spec.config, "prompt": prompt.map(|adapter| &adapter.prompt)});
    let tools = canonical_json(&snapshot.resources.tools);
    [
        ("prompt_policy", canonical_json(&policy)),
        ("tool_schemas", tools),
        ("resource_manifest", canonical_json(&*snapshot.resources)),
    ]
    .into_iter()
    .map(|(name, text)| {
        let hash = sha256_hex(text.as_bytes());
        (name.to_owned(), format!("sha256:{hash}").into())
    })
    .collect()
}

/// True when the descriptions and schemas of these tools exceed `LARGE_BYTES`.
pub(super) fn is_large(tools: &[ToolResource]) -> bool {
    let mut left = LARGE_BYTES;
    !tools.iter().all(|tool| {
        let described = tool.description.as_ref().map_or(0, String::len);
        let schema = tool.parameters.iter().flatten();
        // Stops at the limit, so that the measurement itself is bounded.
        take(described, &mut left) && fit(schema, &mut left)
    })
}

/// Subtracts the bytes of these members from `left`. False: nothing is left.
fn fit<'a>(members: impl IntoIterator<Item = (&'a String, &'a Value)>, left: &mut usize) -> bool {
    members
        .into_iter()
        .all(|(name, value)| take(name.len(), left) && fits(value, left))
}

fn fits(value: &Value, left: &mut usize) -> bool {
    match value {
        Value::String(text) => take(text.len(), left),
        Value::Array(items) => items.iter().all(|item| fits(item, left)),
        Value::Object(members) => fit(members, left),
        _ => take(1, left),
    }
}

/// `bytes`: without its punctuation.
fn take(bytes: usize, left: &mut usize) -> bool {
    *left = left.saturating_sub(bytes + 4);
    *left > 0
}

/// Runs blocking work while other tasks move to other threads. A single-threaded runtime runs it in place.
fn run_blocking<T>(work: impl FnOnce() -> T) -> T {
    // `block_in_place` panics on a single-threaded runtime.
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return work();
    }
    tokio::task::block_in_place(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_large_tool_schemas() {
        let tools = |count: usize, description: &str| -> Vec<ToolResource> {
            let properties = json!({"a": {"type": "string", "description": description}});
            let tool = json!({"tool_name": "t", "parameters": {"type": "object", "properties": properties}});
            let tool: ToolResource = serde_json::from_value(tool).unwrap();
            vec![tool; count]
        };
        for (tools, expected) in [
            (tools(0, ""), false),
            (tools(20, "short"), false),
            (tools(1, &"x".repeat(LARGE_BYTES)), true),
            (
                tools(1000, "as long as many descriptions of parameters are"),
                true,
            ),
        ] {
            assert_eq!(is_large(&tools), expected);
        }
    }
}
