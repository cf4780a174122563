//! Writes the events of AG-UI from those of a run: a state machine without I/O. Each frame has an id, by which a client
//! continues a cut stream.

use std::collections::HashSet;

use chrono::{DateTime, SecondsFormat};
use domain::form::escape_pointer;
use domain::usage::TokenParts;
use protocol::id::RunId;
use protocol::interaction::{InteractionKind, InteractionRequest};
use protocol::resources::StateScope;
use protocol::result::{
    ArtifactCreatedPayload, ResultType, RunFailedPayload, StateUpdatedPayload,
    ToolCallCompletedPayload, ToolCallStartedPayload,
};
use protocol::run::AgentRunEvent;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{PROTOCOL_VERSION, error_event};
use crate::answer::answer_schema;
use crate::follow::{ANSWER_BYTES, FaceWriter, reported_tokens};
use crate::frame_position::FramePosition;
use crate::message_text::{OpenMessage, TextChange};
use crate::questions::OpenQuestion;
use web::error::ApiError;

/// Members that the events of a run do not have.
pub(super) struct AgUiHead {
    pub(super) run: RunId,
    pub(super) thread: String,
    /// Id of the client.
    pub(super) run_id: String,
    /// Public URL of the gateway.
    pub(super) root: String,
    /// Sequence of the event before the first one.
    pub(super) after: u64,
}

/// End of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AgUiEnd {
    Success,
    Interrupt,
    Cancelled,
    Failed { code: String, message: String },
}

/// Writer of one stream.
pub(super) struct AgUiWriter {
    head: AgUiHead,
    /// The last frame that the client has.
    seen: Option<FramePosition>,
    /// Sequence of the event that is being written.
    sequence: u64,
    /// Frames of this event so far.
    number: u32,
    frames: String,
    open: OpenMessage,
    /// Id of the open message.
    message: Option<String>,
    calls: HashSet<String>,
    /// Bytes of the ids of calls and of the questions.
    bytes: usize,
    questions: Vec<(OpenQuestion, Option<i64>)>,
    reported: Option<TokenParts>,
    end: Option<AgUiEnd>,
}

impl AgUiWriter {
    /// `seen`: the last frame of the cut stream.
    pub(super) fn new(head: AgUiHead, seen: Option<FramePosition>) -> Self {
        Self {
            sequence: head.after,
            head,
            seen,
            number: 0,
            frames: String::new(),
            open: OpenMessage::default(),
            message: None,
            calls: HashSet::new(),
            bytes: 0,
            questions: Vec::new(),
            reported: None,
            end: None,
        }
    }

    /// Numbers an event, and writes it if the client has not seen it.
    fn emit(&mut self, event: &Value) {
        // Hidden events count, so that ids do not depend on the begin of a stream.
        self.number += 1;
        self.show(FramePosition::of(self.sequence, self.number), event);
    }

    fn show(&mut self, at: FramePosition, event: &Value) {
        if self.seen.is_none_or(|seen| at > seen) {
            for part in [
                "id: ",
                &at.to_string(),
                "\ndata: ",
                &event.to_string(),
                "\n\n",
            ] {
                self.frames.push_str(part);
            }
        }
    }

    fn apply(&mut self, change: TextChange) {
        match change {
            TextChange::Append(text) => {
                let id = self.open_message();
                let event = json!({"type": "TEXT_MESSAGE_CONTENT", "messageId": id, "delta": text});
                self.emit(&event);
            }
            // AG-UI takes no text back: a replaced message ends as it is, and another one begins.
            TextChange::Close | TextChange::Withdraw => self.close_message(),
        }
    }

    /// Id of the open message; without one, a new one begins.
    fn open_message(&mut self) -> String {
        if let Some(id) = &self.message {
            return id.clone();
        }
        // By the position: unique in the thread, and equal in each stream of the run.
        let id = format!("{}.{}.{}", self.head.run, self.sequence, self.number + 1);
        self.emit(&json!({"type": "TEXT_MESSAGE_START", "messageId": id, "role": "assistant"}));
        self.message.insert(id).clone()
    }

    fn close_message(&mut self) {
        if let Some(id) = self.message.take() {
            self.emit(&json!({"type": "TEXT_MESSAGE_END", "messageId": id}));
        }
    }

    fn begin_call(&mut self, call: &ToolCallStartedPayload) {
        let id = self.call_id(&call.tool_call_id);
        // A second start of the same call would not be valid.
        if !self.calls.insert(call.tool_call_id.clone()) {
            return;
        }
        self.bytes += call.tool_call_id.len();
        let arguments = Value::Object(call.parameters.clone()).to_string();
        self.emit(
            &json!({"type": "TOOL_CALL_START", "toolCallId": id, "toolCallName": call.tool_name}),
        );
        self.emit(&json!({"type": "TOOL_CALL_ARGS", "toolCallId": id, "delta": arguments}));
        self.emit(&json!({"type": "TOOL_CALL_END", "toolCallId": id}));
    }

    fn end_call(&mut self, call: ToolCallCompletedPayload) {
        let id = self.call_id(&call.tool_call_id);
        let content = match (call.error, call.result) {
            (Some(error), _) => json!({"error": error}),
            (None, result) => json!(result),
        };
        self.emit(
            &json!({"type": "TOOL_CALL_RESULT", "messageId": format!("{id}.result"),
            "toolCallId": id, "content": content.to_string()}),
        );
    }

    /// Ids of runners are unique in their run only, and a thread has several.
    fn call_id(&self, id: &str) -> String {
        format!("{}.{id}", self.head.run)
    }

    fn update_state(&mut self, update: &StateUpdatedPayload) {
        // Other scopes are not the state of this thread.
        if update.scope == StateScope::Conversation {
            let path = format!("/{}", escape_pointer(&update.key));
            let change = json!({"op": "add", "path": path, "value": update.value});
            self.emit(&json!({"type": "STATE_DELTA", "delta": [change]}));
        }
    }

    fn add_artifact(&mut self, artifact: &str) {
        let url = format!("{}/v1/artifacts/{artifact}/content", self.head.root);
        let content = json!({"artifact_id": artifact, "url": url});
        self.emit(&json!({"type": "ACTIVITY_SNAPSHOT", "messageId": format!("{}.{artifact}", self.head.run),
            "activityType": "artifact", "content": content}));
    }

    fn ask(&mut self, question: OpenQuestion, event: &AgentRunEvent) {
        self.bytes += question.arguments.len();
        // The client must answer before the run continues.
        if question.is_awaited {
            self.end = Some(AgUiEnd::Interrupt);
        }
        let expires_at = event.metadata["interaction"]["expires_at"].as_i64();
        self.questions.push((question, expires_at));
    }

    /// The end by an event.
    fn end_of(&self, event: &AgentRunEvent) -> Option<AgUiEnd> {
        match ResultType::parse(&event.kind)? {
            ResultType::RunCompleted if self.questions.is_empty() => Some(AgUiEnd::Success),
            ResultType::RunCompleted => Some(AgUiEnd::Interrupt),
            ResultType::RunFailed => {
                let payload = data_of::<RunFailedPayload>(event);
                let (code, message) = payload.map_or_else(Default::default, |payload| {
                    (payload.code, payload.message.or(payload.error))
                });
                Some(if code == "cancelled" {
                    AgUiEnd::Cancelled
                } else {
                    AgUiEnd::Failed {
                        code,
                        message: message.unwrap_or_default(),
                    }
                })
            }
            _ => None,
        }
    }

    fn last_event(&self, tokens: Option<TokenParts>) -> Value {
        let outcome = match &self.end {
            Some(AgUiEnd::Failed { code, message }) => {
                return json!({"type": "RUN_ERROR", "message": message, "code": code});
            }
            Some(AgUiEnd::Cancelled) => json!({"type": "cancelled"}),
            Some(AgUiEnd::Interrupt) => {
                let interrupts: Vec<_> = self.questions.iter().map(interrupt_of).collect();
                json!({"type": "interrupt", "interrupts": interrupts})
            }
            Some(AgUiEnd::Success) | None => json!({"type": "success"}),
        };
        let mut event = json!({"type": "RUN_FINISHED", "threadId": self.head.thread,
            "runId": self.head.run_id, "outcome": outcome});
        if let Some(tokens) = self.reported.or(tokens) {
            event["usage"] = json!([usage_of(tokens)]);
        }
        event
    }
}

impl FaceWriter for AgUiWriter {
    fn begin(&mut self) -> String {
        let event = json!({"type": "RUN_STARTED", "threadId": self.head.thread,
            "runId": self.head.run_id, "protocolVersion": PROTOCOL_VERSION});
        self.show(FramePosition::after(self.head.after), &event);
        std::mem::take(&mut self.frames)
    }

    fn write(&mut self, event: &AgentRunEvent) -> String {
        (self.sequence, self.number) = (event.sequence, 0);
        self.reported = reported_tokens(event).or(self.reported);
        for change in self.open.changes(event) {
            self.apply(change);
        }
        match ResultType::parse(&event.kind) {
            Some(ResultType::ToolCallStarted) => {
                if let Some(call) = data_of(event) {
                    self.begin_call(&call);
                }
            }
            Some(ResultType::ToolCallCompleted) => {
                if let Some(call) = data_of(event) {
                    self.end_call(call);
                }
            }
            Some(ResultType::StateUpdated) => {
                if let Some(update) = data_of(event) {
                    self.update_state(&update);
                }
            }
            Some(ResultType::ArtifactCreated) => {
                if let Some(ArtifactCreatedPayload { artifact_id }) = data_of(event) {
                    self.add_artifact(&artifact_id);
                }
            }
            _ => {}
        }
        if let Some(question) = OpenQuestion::of(event) {
            self.ask(question, event);
        }
        // An end that is set already wins: nothing follows a question that waits.
        let end = self.end_of(event);
        self.end = self.end.take().or(end);
        if self.end.is_none() && self.bytes() > ANSWER_BYTES {
            self.end = Some(AgUiEnd::Failed {
                code: "answer_too_long".to_owned(),
                message: "the answer is longer than 4 MiB; the run continues".to_owned(),
            });
        }
        // In the same step, so that the ids do not depend on the read.
        if self.end.is_some() {
            self.close_message();
        }
        std::mem::take(&mut self.frames)
    }

    fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    fn finish(&mut self, tokens: Option<TokenParts>) -> String {
        let event = self.last_event(tokens);
        self.emit(&event);
        std::mem::take(&mut self.frames)
    }

    fn cut(&mut self) -> String {
        let message = "the gateway stops, or the API key was revoked; \
            send the input again with the id of the last frame as Last-Event-ID";
        let (_, error) = ApiError::unavailable(message).into_parts();
        // Without an id: it is no part of the run.
        format!("data: {}\n\n", error_event(&error))
    }

    fn bytes(&self) -> usize {
        self.bytes + self.open.bytes()
    }
}

fn interrupt_of((question, expires_at): &(OpenQuestion, Option<i64>)) -> Value {
    let mut interrupt = json!({"id": question.id, "reason": "input_required"});
    // The gateway has checked it when it opened the question.
    let request = serde_json::from_str::<InteractionRequest>(&question.arguments);
    if let Ok(request) = request {
        if request.kind == InteractionKind::Confirmation {
            interrupt["reason"] = json!("confirmation");
        }
        interrupt["message"] = json!(request.fallback_text);
        interrupt["responseSchema"] = answer_schema(&request);
        interrupt["metadata"] = json!({"request": request});
    }
    let expires_at = expires_at.and_then(|at| DateTime::from_timestamp(at, 0));
    if let Some(at) = expires_at {
        interrupt["expiresAt"] = json!(at.to_rfc3339_opts(SecondsFormat::Secs, true));
    }
    interrupt
}

fn data_of<T: DeserializeOwned>(event: &AgentRunEvent) -> Option<T> {
    serde_json::from_value(Value::Object(event.data.clone())).ok()
}

fn usage_of(tokens: TokenParts) -> Value {
    let (input, output) = (tokens.prompt(), tokens.completion());
    json!({
        "inputTokens": input,
        "outputTokens": output,
        "totalTokens": input.saturating_add(output),
        "reasoningTokens": tokens.reasoning,
        "cachedInputTokens": tokens.cache_read,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e61";

    fn events(of: &[(&str, Value, Value)]) -> Vec<AgentRunEvent> {
        let events = (1..).zip(of).map(|(sequence, (kind, data, metadata))| {
            let event = json!({"run_id": RUN, "sequence": sequence, "type": kind, "data": data,
                "metadata": metadata, "created_at": 1, "source": "runner"});
            serde_json::from_value(event).unwrap()
        });
        events.collect()
    }

    fn talk() -> Vec<AgentRunEvent> {
        let chunk = |text: &str| json!({"chunk": {"role": "assistant", "content": text}});
        let snapshot = json!({"chunk": {"role": "assistant", "all_content": "other"}});
        let call = json!({"tool_call_id": "t", "tool_name": "search", "parameters": {"q": 1}});
        let result = json!({"tool_call_id": "t", "tool_name": "search", "error": "down"});
        let state = |scope: &str| json!({"scope": scope, "key": "a/b", "value": 2});
        let question = json!({"interaction_id": "q", "title": "t", "fallback_text": "Sure?",
            "kind": "confirmation", "actions": [{"id": "yes", "label": "Yes"}]});
        let action = json!({"action": "interaction.requested", "payload": question});
        let none = || json!({});
        events(&[
            ("message.delta", chunk("a"), none()),
            ("tool.call.started", call.clone(), none()),
            ("tool.call.started", call, none()),
            ("tool.call.completed", result, none()),
            ("message.delta", snapshot, none()),
            ("state.updated", state("conversation"), none()),
            ("state.updated", state("actor"), none()),
            ("artifact.created", json!({"artifact_id": "f"}), none()),
            (
                "action.requested",
                action,
                json!({"interaction": {"id": "i", "expires_at": 60}}),
            ),
            ("run.completed", json!({"finish_reason": "stop"}), none()),
        ])
    }

    fn written(events: &[AgentRunEvent], seen: Option<&str>) -> Vec<(String, Value)> {
        let head = AgUiHead {
            run: RUN.parse().map(RunId).unwrap(),
            thread: "t".to_owned(),
            run_id: "r".to_owned(),
            root: "https://gateway".to_owned(),
            after: 0,
        };
        let mut writer = AgUiWriter::new(head, seen.and_then(FramePosition::parse));
        let mut text = writer.begin();
        for event in events {
            if !writer.has_ended() {
                text += &writer.write(event);
            }
        }
        text += &writer.finish(None);
        let frames = text.split_terminator("\n\n").map(|frame| {
            let (id, data) = frame.split_once("\ndata: ").unwrap();
            (id.replace("id: ", ""), serde_json::from_str(data).unwrap())
        });
        frames.collect()
    }

    fn kinds(frames: &[(String, Value)]) -> Vec<&str> {
        let kinds = frames.iter().map(|(_, event)| event["type"].as_str());
        kinds.flatten().collect()
    }

    #[test]
    fn writes_all_that_a_run_has() {
        let frames = written(&talk(), None);
        let expected = [
            "RUN_STARTED",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_CONTENT",
            "TOOL_CALL_START",
            "TOOL_CALL_ARGS",
            "TOOL_CALL_END",
            "TOOL_CALL_RESULT",
            "TEXT_MESSAGE_END",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_CONTENT",
            "STATE_DELTA",
            "ACTIVITY_SNAPSHOT",
            "TEXT_MESSAGE_END",
            "RUN_FINISHED",
        ];
        assert_eq!(kinds(&frames), expected);
        assert_eq!(frames[6].1["content"], r#"{"error":"down"}"#);
        let delta = json!([{"op": "add", "path": "/a~1b", "value": 2}]);
        assert_eq!(frames[10].1["delta"], delta);
        let outcome = &frames[13].1["outcome"];
        assert_eq!(outcome["type"], "interrupt");
        let interrupt = &outcome["interrupts"][0];
        assert_eq!(interrupt["reason"], "confirmation");
        assert_eq!(interrupt["expiresAt"], "1970-01-01T00:01:00Z");
    }

    #[test]
    fn any_cut_continues_after_its_last_frame() {
        let full = written(&talk(), None);
        for (at, (id, _)) in full.iter().enumerate() {
            assert_eq!(written(&talk(), Some(id)), full[at + 1..], "after {id}");
        }
    }

    #[test]
    fn ends_have_failures_and_cancels() {
        let failed = |code: &str| {
            let data = json!({"code": code, "message": "it broke"});
            let frames = written(&events(&[("run.failed", data, json!({}))]), None);
            frames[1].1.clone()
        };
        let error = json!({"type": "RUN_ERROR", "message": "it broke", "code": "boom"});
        assert_eq!(failed("boom"), error);
        assert_eq!(failed("cancelled")["outcome"], json!({"type": "cancelled"}));
    }
}
