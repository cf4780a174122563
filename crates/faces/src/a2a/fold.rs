//! A task from the events of its run: a state machine without I/O.

use domain::run::Run;
use protocol::message::Message;
use protocol::raw::RawJson;
use protocol::result::{ArtifactCreatedPayload, ResultType, RunFailedPayload};
use protocol::run::AgentRunEvent;
use serde_json::{Value, json};

use super::task::{A2aStatus, ArtifactEffect, TaskExtent, TaskHead, TaskState};
use crate::follow::ANSWER_BYTES;
use crate::message_text::{OpenMessage, TextChange};
use crate::questions::OpenQuestion;

/// Bytes of an artifact in addition to its text.
const ARTIFACT_BYTES: usize = 256;

/// Task so far.
pub(super) struct TaskFold {
    pub(super) head: TaskHead,
    pub(super) status: A2aStatus,
    artifacts: Vec<TaskArtifact>,
    open: OpenMessage,
    /// Messages so far.
    messages: usize,
    /// Index of the artifact of the open message.
    writes: Option<usize>,
    questions: Vec<OpenQuestion>,
    bytes: usize,
    /// The state at the end of the run.
    end: Option<TaskState>,
}

struct TaskArtifact {
    id: String,
    content: ArtifactContent,
}

enum ArtifactContent {
    Text(String),
    Url(String),
}

impl TaskArtifact {
    /// Appends to the text, and returns the piece as an artifact.
    fn append(&mut self, text: &str) -> Value {
        if let ArtifactContent::Text(shown) = &mut self.content {
            shown.push_str(text);
        }
        json!({"artifactId": self.id, "parts": [{"text": text}]})
    }

    fn object(&self) -> Value {
        let part = match &self.content {
            ArtifactContent::Text(text) => json!({"text": text}),
            ArtifactContent::Url(url) => json!({"url": url}),
        };
        json!({"artifactId": self.id, "parts": [part]})
    }
}

impl TaskFold {
    /// `created_at`: epoch milliseconds.
    pub(super) fn new(head: TaskHead, created_at: i64) -> Self {
        let status = A2aStatus {
            state: TaskState::Submitted,
            parts: Vec::new(),
            at: created_at,
            sequence: 0,
        };
        Self {
            head,
            status,
            artifacts: Vec::new(),
            open: OpenMessage::default(),
            messages: 0,
            writes: None,
            questions: Vec::new(),
            bytes: 0,
            end: None,
        }
    }

    /// The updates by an event, in the form of a stream.
    pub(super) fn apply(&mut self, event: &AgentRunEvent) -> Vec<Value> {
        let mut updates = Vec::new();
        // Any event proves that the run works, also after a question.
        if matches!(
            self.status.state,
            TaskState::Submitted | TaskState::InputRequired
        ) {
            updates.push(self.set_status(TaskState::Working, Vec::new(), event));
        }
        // Bounds the memory of the task. Its end still arrives.
        if self.extent() == TaskExtent::Complete {
            for change in self.open.changes(event) {
                updates.extend(self.change(change));
            }
            updates.extend(self.file(event));
        }
        if let Some(question) = OpenQuestion::of(event) {
            let parts = parts_of(&question);
            let is_awaited = question.is_awaited;
            // Questions count, because the task repeats the last one.
            self.bytes += question.arguments.len();
            self.questions.push(question);
            if is_awaited {
                updates.push(self.set_status(TaskState::InputRequired, parts, event));
            }
        }
        updates.extend(self.end(event));
        updates
    }

    /// The status with the open questions of the run, which the events do not have. The ids of later frames do not
    /// depend on it.
    fn settled(&self, open: &[String]) -> A2aStatus {
        let mut status = self.status.clone();
        let mut questions = self.questions.iter().rev();
        let waiting = questions.find(|question| open.contains(&question.id));
        match (waiting, self.end) {
            // A failed run stays failed, although its question may still take an answer.
            (Some(question), None | Some(TaskState::Completed)) => {
                status.state = TaskState::InputRequired;
                status.parts = parts_of(question);
            }
            // The answer or the expiry of a question is no event.
            (None, end) if status.state == TaskState::InputRequired => {
                status.state = end.unwrap_or(TaskState::Working);
                status.parts = Vec::new();
            }
            _ => {}
        }
        status
    }

    /// The state and the last message of an ended run.
    pub(super) fn restore(&mut self, run: &Run) {
        self.status.state = TaskState::of_run(run.status);
        self.status.at = run.finished_at.unwrap_or(run.created_at);
        let output = run.output.as_ref().map(RawJson::value);
        let message = output.and_then(|output| serde_json::from_value::<Message>(output).ok());
        let text = message.map(|message| message.plain_text());
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            self.add("message-1".to_owned(), ArtifactContent::Text(text));
        }
    }

    /// `open`: ids of the open questions of the run.
    pub(super) fn task(&self, open: &[String]) -> Value {
        let artifacts: Vec<_> = self.artifacts.iter().map(TaskArtifact::object).collect();
        self.head
            .task(&self.settled(open), &artifacts, self.extent())
    }

    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.open.bytes()
    }

    fn extent(&self) -> TaskExtent {
        if self.bytes() > ANSWER_BYTES {
            TaskExtent::Truncated
        } else {
            TaskExtent::Complete
        }
    }

    fn set_status(&mut self, state: TaskState, parts: Vec<Value>, event: &AgentRunEvent) -> Value {
        self.status = A2aStatus {
            state,
            parts,
            // Events have seconds, runs have milliseconds.
            at: event.created_at.saturating_mul(1000).max(self.status.at),
            sequence: event.sequence,
        };
        self.head.status_update(&self.status, self.extent())
    }

    fn change(&mut self, change: TextChange) -> Option<Value> {
        let open = self.writes.and_then(|at| self.artifacts.get_mut(at));
        let (update, effect) = match (change, open) {
            (TextChange::Append(text), Some(artifact)) => {
                self.bytes += text.len();
                (artifact.append(&text), ArtifactEffect::Appends)
            }
            (TextChange::Append(text), None) => {
                self.bytes += text.len();
                self.messages += 1;
                self.writes = Some(self.artifacts.len());
                let id = format!("message-{}", self.messages);
                return Some(self.add(id, ArtifactContent::Text(text)));
            }
            (TextChange::Close, _) => {
                self.writes = None;
                return None;
            }
            // The artifact has another text from now on.
            (TextChange::Withdraw, artifact) => {
                let artifact = artifact?;
                artifact.content = ArtifactContent::Text(String::new());
                (artifact.object(), ArtifactEffect::Replaces)
            }
        };
        Some(self.head.artifact_update(&update, effect))
    }

    fn file(&mut self, event: &AgentRunEvent) -> Option<Value> {
        if ResultType::parse(&event.kind) != Some(ResultType::ArtifactCreated) {
            return None;
        }
        let payload = serde_json::from_value(Value::Object(event.data.clone()));
        let ArtifactCreatedPayload { artifact_id } = payload.ok()?;
        let url = format!("{}/v1/artifacts/{artifact_id}/content", self.head.root);
        Some(self.add(artifact_id, ArtifactContent::Url(url)))
    }

    fn add(&mut self, id: String, content: ArtifactContent) -> Value {
        self.bytes += ARTIFACT_BYTES;
        let artifact = TaskArtifact { id, content };
        let effect = ArtifactEffect::Replaces;
        let update = self.head.artifact_update(&artifact.object(), effect);
        self.artifacts.push(artifact);
        update
    }

    fn end(&mut self, event: &AgentRunEvent) -> Option<Value> {
        let (state, parts) = match ResultType::parse(&event.kind)? {
            ResultType::RunCompleted => (TaskState::Completed, Vec::new()),
            ResultType::RunFailed => failure_of(event),
            _ => return None,
        };
        self.end = Some(state);
        // The answer to a question of an ended run starts the next task of the context.
        let mut questions = self.questions.iter().rev();
        let question = questions.find(|question| !question.is_awaited);
        let question = question.filter(|_| state == TaskState::Completed);
        Some(match question.map(parts_of) {
            Some(parts) => self.set_status(TaskState::InputRequired, parts, event),
            None => self.set_status(state, parts, event),
        })
    }
}

fn failure_of(event: &AgentRunEvent) -> (TaskState, Vec<Value>) {
    let payload = serde_json::from_value(Value::Object(event.data.clone()));
    let Ok(RunFailedPayload {
        code,
        message,
        error,
        ..
    }) = payload
    else {
        return (TaskState::Failed, Vec::new());
    };
    // A2A has a state for it, which needs no text.
    if code == "cancelled" {
        return (TaskState::Canceled, Vec::new());
    }
    let message = message.or(error).unwrap_or_default();
    let text = json!({"text": format!("{code}: {message}"), "metadata": {"code": code}});
    (TaskState::Failed, vec![text])
}

/// A question as text, and as data for clients with forms.
fn parts_of(question: &OpenQuestion) -> Vec<Value> {
    let request: Value = serde_json::from_str(&question.arguments).unwrap_or_default();
    let text = request["fallback_text"].as_str().unwrap_or_default();
    let data = json!({"question": question.id, "request": request});
    vec![
        json!({"text": text}),
        json!({"data": data, "mediaType": "application/json"}),
    ]
}
