//! Context of a run for its runner, with the current state.

use std::sync::Arc;

use domain::authorization::AuthorizationSnapshot;
use domain::canonical::canonical_json;
use domain::context::{ContextFrame, ContextParts, FrameMembers};
use domain::locale::RunLocale;
use domain::trace::RunTrace;
use protocol::JsonObject;
use protocol::admin::AgentSpec;
use protocol::context::AgentRunState;
use protocol::event::EventEnvelope;
use protocol::message::Message;
use protocol::resources::{AgentResources, StateScope, ToolResource};
use protocol::retry_origin::RetryOrigin;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use store::{ScopeState, SharedParts, StateAccess, StoreError, StoredText, sha256_hex};
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
    pub(super) snapshot: &'a AuthorizationSnapshot,
    pub(super) snapshot_sha256: &'a str,
    pub(super) spec: &'a AgentSpec,
    pub(super) event: &'a EventEnvelope,
    /// Arrival of the event in epoch milliseconds.
    pub(super) arrived_at: i64,
    pub(super) deadline_at: i64,
    pub(super) trace: RunTrace,
    /// Empty, unless the runner wants them.
    pub(super) static_refs: JsonObject,
    /// Results after which the run begins.
    pub(super) from: Option<RetryOrigin>,
}

/// A context without position and state, with its stored form.
pub(super) struct PreparedContext {
    frame: ContextFrame,
    before: StoredText,
    after: StoredText,
    shared: SharedParts,
}

/// A complete context.
pub(super) struct FilledContext {
    /// In the form in which it is sent.
    pub(super) sent: Arc<RawValue>,
    pub(super) stored: StoredText,
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
        position: ExpectedPosition,
    ) -> Result<Arc<RawValue>, StoreError> {
        let scopes: Vec<_> = scopes_of(inputs.snapshot).collect();
        let state = self.deps.store.state().context_state(&scopes).await?;
        let build = || {
            let (state, incomplete) = run_state(&state);
            let frame = self.frame(&inputs, incomplete);
            let members = self.members(&frame, inputs.snapshot, position, state);
            frame.with(&members).into()
        };
        if !is_large(&inputs.snapshot.resources.tools) {
            return Ok(build());
        }
        // Blocking threads are shared; large contexts must not take all of them.
        let _permit = LARGE.acquire().await;
        Ok(run_blocking(build))
    }

    /// Prepares a context for an event whose position and state are read later. `None`: it is large.
    pub(super) fn prepare(
        &self,
        inputs: &ContextInputs<'_>,
        shared: &SharedParts,
    ) -> Option<PreparedContext> {
        if is_large(&inputs.snapshot.resources.tools) {
            return None;
        }
        let frame = self.frame(inputs, Vec::new());
        Some(PreparedContext {
            before: shared.apart(frame.before()),
            after: shared.apart(frame.after()),
            shared: shared.clone(),
            frame,
        })
    }

    /// Completes a prepared context. `None`: the state is too large for it.
    pub(super) fn fill(
        &self,
        prepared: &PreparedContext,
        snapshot: &AuthorizationSnapshot,
        position: ExpectedPosition,
        state: &[ScopeState],
    ) -> Option<FilledContext> {
        let (state, incomplete) = run_state(state);
        let PreparedContext {
            frame,
            before,
            after,
            shared,
        } = prepared;
        incomplete.is_empty().then(|| {
            let members = self.members(frame, snapshot, position, state);
            FilledContext {
                sent: frame.with(&members).into(),
                stored: StoredText::joined([before, &shared.apart(&members), after]),
            }
        })
    }

    fn members(
        &self,
        frame: &ContextFrame,
        snapshot: &AuthorizationSnapshot,
        position: ExpectedPosition,
        state: AgentRunState,
    ) -> String {
        let latest = position.transcript_before;
        let conversation = snapshot.conversation.as_ref();
        let conversation = conversation.filter(|_| latest > snapshot.transcript_after());
        let (cursors, workspace) = (&self.deps.keys.cursors, &snapshot.workspace_id);
        frame.members(FrameMembers {
            event_seq: position.event_seq,
            transcript_before: latest,
            latest_cursor: conversation
                .map(|conversation| history_cursor(cursors, workspace, conversation, latest)),
            state,
        })
    }

    fn frame(&self, inputs: &ContextInputs<'_>, state_incomplete: Vec<StateScope>) -> ContextFrame {
        let snapshot = inputs.snapshot;
        ContextFrame::of(ContextParts {
            snapshot_sha256: inputs.snapshot_sha256,
            static_refs: inputs.static_refs.clone(),
            locale: RunLocale::of(inputs.event, inputs.spec),
            event: inputs.event,
            event_seq: None,
            transcript_before: 0,
            latest_cursor: None,
            state: AgentRunState::default(),
            state_incomplete,
            config: inputs.spec.config.clone(),
            arrived_at: inputs.arrived_at,
            deadline_at: inputs.deadline_at,
            trace_id: inputs.trace.trace_id.to_string(),
            limits: context_limits(&self.deps.limits),
            model_limits: self.deps.catalog.load().first_limits(&snapshot.resources),
            from: inputs.from.clone(),
            snapshot,
        })
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

/// Hashes of the parts of a context that runs share while the agent and its grants are unchanged. `prompt`: the
/// event's own prompt, if the run may read it.
pub(super) fn static_refs(
    spec: &AgentSpec,
    resources: &AgentResources,
    prompt: Option<&[Message]>,
) -> JsonObject {
    let policy = json!({"config": spec.config, "prompt": prompt});
    let tools = canonical_json(&resources.tools);
    [
        ("prompt_policy", canonical_json(&policy)),
        ("tool_schemas", tools),
        ("resource_manifest", canonical_json(resources)),
    ]
    .into_iter()
    .map(|(name, text)| {
        let hash = sha256_hex(text.as_bytes());
        (name.to_owned(), format!("sha256:{hash}").into())
    })
    .collect()
}

/// The prompt of an event, if the run may read it.
pub(super) fn readable_prompt<'a>(
    snapshot: &AuthorizationSnapshot,
    event: &'a EventEnvelope,
) -> Option<&'a [Message]> {
    let adapter = event.adapter.as_ref();
    let adapter = adapter.filter(|_| snapshot.available_apis.prompt_get);
    adapter.map(|adapter| adapter.prompt.as_slice())
}

/// True when the descriptions and schemas of these tools exceed `LARGE_BYTES`.
fn is_large(tools: &[ToolResource]) -> bool {
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
