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

/// Text of a task: complete, or cut at its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskExtent {
    Complete,
    Truncated,
}

/// Effect of an update on the artifact that the client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArtifactEffect {
    Replaces,
    Appends,
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
    pub(super) fn task(
        &self,
        status: &A2aStatus,
        artifacts: &[Value],
        extent: TaskExtent,
    ) -> Value {
        let mut task =
            json!({"id": self.run, "status": self.status(status), "artifacts": artifacts});
        self.complete(&mut task, extent);
        task
    }

    pub(super) fn status_update(&self, status: &A2aStatus, extent: TaskExtent) -> Value {
        let mut update = json!({"taskId": self.run, "status": self.status(status)});
        self.complete(&mut update, extent);
        json!({"statusUpdate": update})
    }

    pub(super) fn artifact_update(&self, artifact: &Value, effect: ArtifactEffect) -> Value {
        let appends = effect == ArtifactEffect::Appends;
        let mut update = json!({"taskId": self.run, "artifact": artifact, "append": appends});
        self.complete(&mut update, TaskExtent::Complete);
        json!({"artifactUpdate": update})
    }

    fn complete(&self, object: &mut Value, extent: TaskExtent) {
        if let Some(context) = &self.context {
            object["contextId"] = json!(context);
        }
        // A client must not take a cut text for the complete answer.
        if extent == TaskExtent::Truncated {
            object["metadata"] = json!({"truncated": true});
        }
    }

    fn status(&self, status: &A2aStatus) -> Value {
        let mut object = json!({"state": status.state.name()});
        // Out of the range of dates, the status has no time.
        if let Some(at) = DateTime::from_timestamp_millis(status.at) {
            object["timestamp"] = json!(at.to_rfc3339_opts(SecondsFormat::Millis, true));
        }
        // A message without parts is not valid in A2A.
        if !status.parts.is_empty() {
            let mut message = json!({
                // Equal on each replica and in each answer.
                "messageId": format!("{}.{}", self.run, status.sequence),
                "taskId": self.run, "role": "ROLE_AGENT", "parts": status.parts,
            });
            self.complete(&mut message, TaskExtent::Complete);
            object["message"] = message;
        }
        object
    }
}
