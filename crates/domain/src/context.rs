//! Builds the `AgentRunContext` of a run (`docs/protocol.md`, Run protocol), without history.

use std::collections::BTreeMap;

use protocol::context::{
    AdapterContext, AgentEventContext, AgentInput, AgentRunContext, AgentRunState,
    AgentRuntimeContext, AgentTrigger, ContextAccess, ConversationContext, InlineContextPolicy,
    InlineMode, RunResume, TriggerSource,
};
use protocol::event::EventEnvelope;
use protocol::resources::StateScope;
use protocol::retry_origin::RetryOrigin;
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
    /// Results after which the run begins.
    pub from: Option<RetryOrigin>,
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
            resume: None,
            from: parts.from,
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

/// Returns a context with `runtime.resume`. `None`: the text is no context.
pub fn with_resume(context: &str, resume: &RunResume) -> Option<Box<RawValue>> {
    // Parses only the path to the member: a context may be megabytes.
    let mut members: BTreeMap<&str, &RawValue> = serde_json::from_str(context).ok()?;
    let runtime = members.get("runtime")?;
    let mut runtime: BTreeMap<&str, &RawValue> = serde_json::from_str(runtime.get()).ok()?;
    let resume = to_raw_value(resume).ok()?;
    runtime.insert("resume", &resume);
    let runtime = to_raw_value(&runtime).ok()?;
    members.insert("runtime", &runtime);
    to_raw_value(&members).ok()
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

/// A context as JSON text without the members that depend on the position of the event and on state. These are read
/// under the lock of the conversation.
#[derive(Clone, Debug)]
pub struct ContextFrame {
    before: String,
    after: String,
    access: ContextAccess,
    transcript_after: i64,
}

/// Values of the members that a frame leaves out.
#[derive(Debug)]
pub struct FrameMembers {
    pub event_seq: Option<i64>,
    /// Newest transcript position before this event; 0 for none.
    pub transcript_before: i64,
    pub latest_cursor: Option<String>,
    pub state: AgentRunState,
}

impl ContextFrame {
    /// Ignores position and state of `parts`.
    pub fn of(parts: ContextParts<'_>) -> Self {
        let transcript_after = parts.snapshot.transcript_after();
        let mut context = build_context(ContextParts {
            state: AgentRunState::default(),
            ..parts
        });
        // The sender of the event cannot guess the id of its run, so no text of the event equals these members.
        context.context.latest_cursor = Some(context.run_id.clone());
        let members = members_json(&context.context, &context.state);
        let text = json_text(&context);
        let (before, after) = text
            .split_once(&members)
            .expect("a context contains its members");
        Self {
            before: before.to_owned(),
            after: after.to_owned(),
            access: context.context,
            transcript_after,
        }
    }

    /// Text before the members.
    pub fn before(&self) -> &str {
        &self.before
    }

    /// Text after the members.
    pub fn after(&self) -> &str {
        &self.after
    }

    /// Text of the members.
    pub fn members(&self, values: FrameMembers) -> String {
        let before = values.transcript_before;
        let access = ContextAccess {
            latest_cursor: values.latest_cursor,
            event_seq: values.event_seq,
            transcript_seq: self.access.transcript_seq.map(|_| before),
            has_history_before: before > self.transcript_after,
            ..self.access.clone()
        };
        members_json(&access, &values.state)
    }

    /// Returns the context with these members.
    pub fn with(&self, members: &str) -> Box<RawValue> {
        let text = [&self.before, members, &self.after].concat();
        RawValue::from_string(text).expect("JSON between parts of JSON")
    }
}

/// The adjacent members `context` and `state`, in the order of [`AgentRunContext`].
fn members_json(access: &ContextAccess, state: &AgentRunState) -> String {
    let (access, state) = (json_text(access), json_text(state));
    format!("\"context\":{access},\"state\":{state}")
}

fn json_text<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("our own types have string keys only")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts<'a>(
        snapshot: &'a AuthorizationSnapshot,
        event: &'a EventEnvelope,
    ) -> ContextParts<'a> {
        ContextParts {
            snapshot,
            snapshot_sha256: "0",
            static_refs: JsonObject::new(),
            locale: RunLocale::default(),
            event,
            event_seq: None,
            transcript_before: 0,
            latest_cursor: None,
            state: AgentRunState::default(),
            state_incomplete: Vec::new(),
            config: JsonObject::new(),
            arrived_at: 1_000,
            deadline_at: 9_000,
            trace_id: "0".repeat(32),
            limits: JsonObject::new(),
            model_limits: ModelLimits::default(),
            from: None,
        }
    }

    #[test]
    fn filled_frame_equals_context() {
        let snapshot: AuthorizationSnapshot = serde_json::from_value(json!({
            "v": 1, "run_id": "01a22ad7-1644-75e4-bfc4-81ecb9d800f1", "workspace_id": "default",
            "agent_id": "01a22ad7-15fe-710b-a9e1-61f171ff2672", "agent_version": 1,
            "runner_id": "plugin:a/b/c", "endpoint_id": "01a22ad7-15ea-77ec-a06f-e7f1f2f63b88",
            "event_id": "e", "resources": {}, "available_apis": {}, "operations": [], "state": {},
            "conversation": {"bot_id": "", "conversation_id": "c", "thread_id": ""}, "decisions": [],
        }))
        .unwrap();
        let event = |data: Value| -> EventEnvelope {
            let conversation = json!({"conversation_id": "c"});
            let event = json!({"event_type": "e", "conversation": conversation, "data": data});
            serde_json::from_value(event).unwrap()
        };
        // An event that repeats the members of its context.
        let plain = event(json!({}));
        let context = build_context(parts(&snapshot, &plain));
        let event = event(json!({"context": context.context, "state": context.state}));
        let state: AgentRunState =
            serde_json::from_value(json!({"conversation": {"k": 1}})).unwrap();
        for transcript_before in [0, 7] {
            let latest_cursor = Some("cursor".to_owned());
            let full = build_context(ContextParts {
                event_seq: Some(3),
                transcript_before,
                latest_cursor: latest_cursor.clone(),
                state: state.clone(),
                ..parts(&snapshot, &event)
            });
            let frame = ContextFrame::of(parts(&snapshot, &event));
            let members = frame.members(FrameMembers {
                event_seq: Some(3),
                transcript_before,
                latest_cursor,
                state: state.clone(),
            });
            assert_eq!(frame.with(&members).get(), context_json(&full).get());
        }
    }

    #[test]
    fn adds_checkpoint_to_context() {
        let resume = RunResume {
            checkpoint: json!({"step": 2}),
            after: 4,
        };
        let context =
            json!({"run_id": "r", "runtime": {"host": "runnel"}, "config": {"runtime": 1}});
        let written = with_resume(&context.to_string(), &resume).unwrap();
        let mut expected = context;
        expected["runtime"]["resume"] = json!({"checkpoint": {"step": 2}, "after": 4});
        assert_eq!(
            serde_json::from_str::<Value>(written.get()).unwrap(),
            expected
        );
        for broken in ["null", "{}", r#"{"runtime": 1}"#] {
            assert!(with_resume(broken, &resume).is_none(), "{broken}");
        }
    }
}
