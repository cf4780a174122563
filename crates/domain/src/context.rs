//! Builds the `AgentRunContext` of a run (`docs/protocol.md`, Run protocol), without history.

use protocol::context::{
    AdapterContext, AgentEventContext, AgentInput, AgentRunContext, AgentRunState,
    AgentRuntimeContext, AgentTrigger, ContextAccess, ConversationContext, InlineContextPolicy,
    InlineMode, TriggerSource,
};
use protocol::event::EventEnvelope;
use protocol::resources::StateScope;
use protocol::{JsonObject, PROTOCOL_VERSION};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use crate::authorization::{AuthorizationSnapshot, ModelLimits};
use crate::locale::RunLocale;

/// Inputs of a context.
#[derive(Debug)]
pub struct ContextParts<'a> {
    pub snapshot: &'a AuthorizationSnapshot,
    pub snapshot_sha256: &'a str,
    /// Hashes of stable parts.
    pub static_refs: JsonObject,
    pub locale: RunLocale,
    pub event: &'a EventEnvelope,
    pub event_seq: Option<i64>,
    /// Newest transcript position before this event; 0 for none.
    pub transcript_before: i64,
    pub latest_cursor: Option<String>,
    pub state: AgentRunState,
    /// Scopes with truncated state.
    pub state_incomplete: Vec<StateScope>,
    pub config: JsonObject,
    /// Arrival time of the event, in epoch milliseconds.
    pub arrived_at: i64,
    /// Deadline, in epoch milliseconds.
    pub deadline_at: i64,
    /// Trace id: 32 hex digits.
    pub trace_id: String,
    pub limits: JsonObject,
    /// Token limits of the run's first model, if known.
    pub model_limits: ModelLimits,
}

/// Builds the context of a run, as it is sent and as `GET /context` repeats it.
pub fn build_context(parts: ContextParts<'_>) -> AgentRunContext {
    let ContextParts {
        snapshot, event, ..
    } = parts;
    let metadata = runtime_metadata(event, &parts);
    let conversation_id = snapshot
        .conversation
        .as_ref()
        .map(|c| c.conversation_id.clone());
    let thread_id = event
        .conversation
        .as_ref()
        .and_then(|c| c.thread_id.clone());
    AgentRunContext {
        run_id: snapshot.run_id.to_string(),
        trigger: AgentTrigger {
            kind: event.event_type.clone(),
            source: TriggerSource::of(&event.source),
            // `div_euclid` rounds down also before 1970.
            timestamp: event
                .event_time
                .or_else(|| Some(parts.arrived_at.div_euclid(1000))),
        },
        event: event_context(&snapshot.event_id, event),
        conversation: conversation(snapshot, event),
        actor: event.actor.clone(),
        subject: event.subject.clone(),
        input: event.input.clone().unwrap_or_else(AgentInput::default),
        delivery: event.delivery.clone(),
        resources: (*snapshot.resources).clone(),
        context: ContextAccess {
            conversation_id,
            thread_id,
            latest_cursor: parts.latest_cursor,
            event_seq: parts.event_seq,
            transcript_seq: snapshot
                .conversation
                .as_ref()
                .map(|_| parts.transcript_before),
            has_history_before: parts.transcript_before > snapshot.transcript_after(),
            inline_policy: inline_policy(event),
            available_apis: snapshot.available_apis,
        },
        state: parts.state,
        runtime: AgentRuntimeContext {
            host: "runnel".to_owned(),
            protocol_version: PROTOCOL_VERSION.to_owned(),
            // LangBot's version is unknown to the gateway.
            langbot_version: None,
            trace_id: Some(parts.trace_id),
            #[expect(
                clippy::cast_precision_loss,
                reason = "milliseconds fit f64 for 200,000 years"
            )]
            deadline_at: Some(parts.deadline_at as f64 / 1000.0),
            locale: parts.locale.locale,
            timezone: parts.locale.timezone,
            static_refs: parts.static_refs,
            metadata,
        },
        variables: variables(event),
        config: parts.config,
        adapter: event.adapter.as_ref().map(|adapter| AdapterContext {
            extra: adapter.extra.clone(),
        }),
        // The gateway's own metadata is in `runtime`.
        metadata: JsonObject::new(),
    }
}

/// Returns the scalar public variables of an adapter and the id of its query.
fn variables(event: &EventEnvelope) -> JsonObject {
    let Some(adapter) = &event.adapter else {
        return JsonObject::new();
    };
    let params = adapter.extra.get("params").and_then(Value::as_object);
    let query_id = adapter.extra.get("query_id");
    params
        .into_iter()
        .flatten()
        .filter(|(_, value)| !value.is_array() && !value.is_object())
        .map(|(name, value)| (name.clone(), value.clone()))
        .chain(query_id.map(|id| ("query_id".to_owned(), id.clone())))
        .collect()
}

/// Returns an event as runners see it.
pub fn event_context(event_id: &str, event: &EventEnvelope) -> AgentEventContext {
    AgentEventContext {
        event_id: event_id.to_owned(),
        event_type: event.event_type.clone(),
        event_time: event.event_time,
        source: event.source.clone(),
        source_event_type: event.source_event_type.clone(),
        raw_ref: event.raw_ref.clone(),
        data: event.data.clone(),
    }
}

/// Returns the conversation of an event as runners see it.
pub fn conversation(
    snapshot: &AuthorizationSnapshot,
    event: &EventEnvelope,
) -> Option<ConversationContext> {
    let frozen = snapshot.conversation.as_ref()?;
    let posted = event.conversation.as_ref()?;
    Some(ConversationContext {
        conversation_id: Some(frozen.conversation_id.clone()),
        thread_id: posted.thread_id.clone(),
        launcher_type: posted.launcher_type.clone(),
        launcher_id: posted.launcher_id.clone(),
        sender_id: event
            .actor
            .as_ref()
            .and_then(|actor| actor.actor_id.clone()),
        bot_id: event.bot_id.clone(),
        workspace_id: Some(snapshot.workspace_id.to_string()),
        session_id: None,
    })
}

fn inline_policy(event: &EventEnvelope) -> InlineContextPolicy {
    let (mode, reason) = match event.input {
        Some(_) => (InlineMode::CurrentEvent, "current_event_only"),
        None => (InlineMode::None, "event_without_input"),
    };
    InlineContextPolicy {
        mode,
        reason: Some(reason.to_owned()),
        ..InlineContextPolicy::default()
    }
}

fn runtime_metadata(event: &EventEnvelope, parts: &ContextParts<'_>) -> JsonObject {
    let metadata = json!({
        "bot_id": event.bot_id,
        "workspace_id": parts.snapshot.workspace_id,
        "authorization_sha256": parts.snapshot_sha256,
        "limits": parts.limits,
        "streaming_supported": event.delivery.supports_streaming,
    });
    let mut metadata = metadata.as_object().cloned().unwrap_or_default();
    // Runners read an absent member as complete state.
    if !parts.state_incomplete.is_empty() {
        let scopes = json!(parts.state_incomplete);
        metadata.insert("state_incomplete".to_owned(), scopes);
    }
    if let Some(generation) = parts.snapshot.generation {
        let number = json!(generation.number);
        metadata.insert("conversation_generation".to_owned(), number);
    }
    let model_limits = parts.model_limits;
    if let Some(tokens) = model_limits.context_window_tokens {
        metadata.insert("model_context_window_tokens".to_owned(), json!(tokens));
    }
    if let Some(tokens) = model_limits.max_output_tokens {
        metadata.insert("model_max_output_tokens".to_owned(), json!(tokens));
    }
    metadata
}

/// Returns the context as JSON text, for sending and storage.
pub fn context_json(context: &AgentRunContext) -> Box<RawValue> {
    to_raw_value(context).expect("our own types have string keys only")
}
