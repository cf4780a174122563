//! What a runner is told of its run: the context, with the state as it is.

use std::sync::Arc;

use domain::authorization::AuthorizationSnapshot;
use domain::context::{ContextParts, build_context, context_json};
use domain::trace::RunTrace;
use protocol::JsonObject;
use protocol::admin::AgentSpec;
use protocol::context::AgentRunState;
use protocol::event::EventEnvelope;
use protocol::id::WorkspaceId;
use protocol::resources::{StateScope, ToolResource};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use store::{StateAccess, StoreError};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

use crate::{Inner, RunLimits};
use keys::cursor::history_cursor;

/// How much state of one scope a context carries. It says where there is more, which is read through the host API.
const STATE_KEYS: u64 = 100;
const STATE_BYTES: usize = 256 * 1024;

/// Bytes of schemas from which on a context is made off the async workers.
const LARGE_BYTES: usize = 64 * 1024;
/// Large contexts that are made at a time; the next one waits.
static LARGE: Semaphore = Semaphore::const_new(4);

/// What a context tells of its run.
pub(super) struct Told<'a> {
    pub(super) workspace: &'a WorkspaceId,
    pub(super) snapshot: &'a AuthorizationSnapshot,
    pub(super) snapshot_sha256: &'a str,
    pub(super) spec: &'a AgentSpec,
    pub(super) event: &'a EventEnvelope,
    pub(super) event_seq: Option<i64>,
    pub(super) transcript_before: i64,
    /// When the event arrived, in epoch milliseconds.
    pub(super) arrived_at: i64,
    pub(super) deadline_at: i64,
    pub(super) trace: RunTrace,
}

/// Builds a context, with the state as it is now.
pub(super) async fn write_context(
    inner: &Inner,
    told: Told<'_>,
) -> Result<Arc<RawValue>, StoreError> {
    let snapshot = told.snapshot;
    let latest = (told.transcript_before > 0).then_some(told.transcript_before);
    let (state, state_incomplete) = read_state(inner, snapshot).await?;
    let parts = ContextParts {
        snapshot_sha256: told.snapshot_sha256,
        event: told.event,
        event_seq: told.event_seq,
        transcript_before: told.transcript_before,
        latest_cursor: latest
            .zip(snapshot.conversation.as_ref())
            .map(|(seq, conversation)| {
                history_cursor(&inner.keys.cursors, told.workspace, conversation, seq)
            }),
        state,
        state_incomplete,
        config: told.spec.config.clone(),
        arrived_at: told.arrived_at,
        deadline_at: told.deadline_at,
        trace_id: told.trace.trace_id.to_string(),
        limits: told_limits(&inner.limits),
        model_limits: inner.catalog.load().first_limits(&snapshot.resources),
        snapshot,
    };
    let make = || -> Arc<RawValue> { context_json(&build_context(parts)).into() };
    if !is_large(&snapshot.resources.tools) {
        return Ok(make());
    }
    let _turn = LARGE.acquire().await;
    Ok(aside(make))
}

/// Whether the descriptions and schemas of these tools have more bytes than a worker copies in passing.
fn is_large(tools: &[ToolResource]) -> bool {
    let mut left = LARGE_BYTES;
    !tools.iter().all(|tool| {
        let described = tool.description.as_ref().map_or(0, String::len);
        let schema = tool.parameters.iter().flatten();
        take(described, &mut left) && fit(schema, &mut left)
    })
}

/// Takes the bytes of these members of what is left; false when they are more.
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

/// `bytes`: besides those of its marks.
fn take(bytes: usize, left: &mut usize) -> bool {
    *left = left.saturating_sub(bytes + 4);
    *left > 0
}

/// Does it while other tasks leave this thread. A runtime of one thread has no other for them.
fn aside<T>(work: impl FnOnce() -> T) -> T {
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return work();
    }
    tokio::task::block_in_place(work)
}

/// The state, and the scopes of which some had no room.
async fn read_state(
    inner: &Inner,
    snapshot: &AuthorizationSnapshot,
) -> Result<(AgentRunState, Vec<StateScope>), StoreError> {
    let (mut state, mut incomplete) = (AgentRunState::default(), Vec::new());
    let granted = snapshot.state.iter().map(|(&scope, identity)| StateAccess {
        scope,
        identity: identity.clone(),
    });
    // Most scopes of most runs are empty, which one question tells.
    for access in inner.store.state().filled_scopes(granted.collect()).await? {
        let part = inner
            .store
            .state()
            .read_state(&access, STATE_KEYS, STATE_BYTES)
            .await?;
        let map = match access.scope {
            StateScope::Conversation => &mut state.conversation,
            StateScope::Actor => &mut state.actor,
            StateScope::Subject => &mut state.subject,
            StateScope::Runner => &mut state.runner,
            StateScope::Binding => &mut state.binding,
        };
        if !part.is_whole {
            incomplete.push(access.scope);
        }
        for entry in part.entries {
            if let Ok(value) = serde_json::from_str(&entry.value) {
                map.insert(entry.key, value);
            }
        }
    }
    Ok((state, incomplete))
}

/// The bounds of a run, as its runner is told.
pub fn told_limits(limits: &RunLimits) -> JsonObject {
    let told = json!({
        "line_bytes": limits.line_bytes,
        "event_bytes": limits.results.event_bytes,
        "run_bytes": limits.results.run_bytes,
        "run_events": limits.results.run_events,
        "state_value_bytes": limits.results.state_value_bytes,
        "first_byte_seconds": limits.first_byte.as_secs_f64(),
        "silence_seconds": limits.silence.as_secs_f64(),
        "append_lease_seconds": limits.append_lease.as_secs_f64(),
    });
    told.as_object().cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_of_many_bytes_are_large() {
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
