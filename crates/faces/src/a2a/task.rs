//! Tasks in A2A's JSON form.

use chrono::{DateTime, SecondsFormat};
use protocol::id::RunId;
use protocol::run::RunStatus;
use serde_json::{Value, json};

/// Identity of a task and addresses in its answers.
#[derive(Clone, Debug)]
pub(super) struct TaskHead {
    pub(super) run: RunId,
    /// `None`: a run without a conversation.
    pub(super) context: Option<String>,
    /// Public URL of the gateway.
    pub(super) root: String,
}

/// States that tasks of this face have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskState {
    Submitted,
    Working,
    InputRequired,
    Completed,
    Failed,
    Canceled,
}

impl TaskState {
    fn name(self) -> &'static str {
        match self {
            Self::Submitted => "TASK_STATE_SUBMITTED",
            Self::Working => "TASK_STATE_WORKING",
            Self::InputRequired => "TASK_STATE_INPUT_REQUIRED",
            Self::Completed => "TASK_STATE_COMPLETED",
            Self::Failed => "TASK_STATE_FAILED",
            Self::Canceled => "TASK_STATE_CANCELED",
        }
    }

    /// The state of a run without its questions.
    pub(super) fn of_run(status: RunStatus) -> Self {
        match status {
            RunStatus::Created | RunStatus::Queued => Self::Submitted,
            RunStatus::Claimed | RunStatus::Running => Self::Working,
            RunStatus::Completed => Self::Completed,
            RunStatus::Failed | RunStatus::Timeout => Self::Failed,
            RunStatus::Cancelled => Self::Canceled,
        }
    }
}

/// The status of a task.
#[derive(Clone, Debug)]
pub(super) struct A2aStatus {
    pub(super) state: TaskState,
    /// Parts of its message.
    pub(super) parts: Vec<Value>,
    /// Epoch milliseconds.
    pub(super) at: i64,
    /// Sequence of the event that set it.
    pub(super) sequence: u64,
}

impl TaskHead {
    pub(super) fn task(&self, status: &A2aStatus, artifacts: &[Value], is_cut: bool) -> Value {
        let mut task =
            json!({"id": self.run, "status": self.status(status), "artifacts": artifacts});
        self.complete(&mut task, is_cut);
        task
    }

    pub(super) fn status_update(&self, status: &A2aStatus, is_cut: bool) -> Value {
        let mut update = json!({"taskId": self.run, "status": self.status(status)});
        self.complete(&mut update, is_cut);
        json!({"statusUpdate": update})
    }

    pub(super) fn artifact_update(&self, artifact: &Value, appends: bool) -> Value {
        let mut update = json!({"taskId": self.run, "artifact": artifact, "append": appends});
        self.complete(&mut update, false);
        json!({"artifactUpdate": update})
    }

    fn complete(&self, object: &mut Value, is_cut: bool) {
        if let Some(context) = &self.context {
            object["contextId"] = json!(context);
        }
        if is_cut {
            object["metadata"] = json!({"truncated": true});
        }
    }

    fn status(&self, status: &A2aStatus) -> Value {
        let mut object = json!({"state": status.state.name()});
        if let Some(at) = DateTime::from_timestamp_millis(status.at) {
            object["timestamp"] = json!(at.to_rfc3339_opts(SecondsFormat::Millis, true));
        }
        if !status.parts.is_empty() {
            let mut message = json!({
                // Equal on each replica and in each answer.
                "messageId": format!("{}.{}", self.run, status.sequence),
                "taskId": self.run, "role": "ROLE_AGENT", "parts": status.parts,
            });
            self.complete(&mut message, false);
            object["message"] = message;
        }
        object
    }
}
