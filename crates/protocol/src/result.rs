//! `AgentRunResult`: the stream of a runner's results (`docs/protocol.md`, Result stream). Unknown types are kept.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::JsonObject;
use crate::admin::RestartPoint;
use crate::approval::ArgumentRules;
use crate::id::ApprovalId;
use crate::message::{LlmTokenUsage, Message, MessageChunk};
use crate::principal::Principal;
use crate::resources::StateScope;

/// One result of a run, as a runner writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentRunResult {
    pub run_id: String,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub data: JsonObject,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<LlmTokenUsage>,
    /// Position in the stream. Starts at 1 and strictly increases. Optional on a direct stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub sequence: Option<u64>,
    /// Time of the result, in epoch seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<i64>,
}

macro_rules! result_types {
    ($($variant:ident = $text:literal),+ $(,)?) => {
        /// Result types that the gateway applies. Other types are stored but have no effect.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ResultType { $($variant),+ }

        impl ResultType {
            /// All known types.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the name on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// Parses the name of a known type.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

result_types!(
    MessageDelta = "message.delta",
    MessageCompleted = "message.completed",
    ToolCallStarted = "tool.call.started",
    ToolCallCompleted = "tool.call.completed",
    ArtifactCreated = "artifact.created",
    StateUpdated = "state.updated",
    ActionRequested = "action.requested",
    ProcessorLog = "processor.log",
    RunCompleted = "run.completed",
    RunFailed = "run.failed",
);

impl ResultType {
    /// Returns true for the two types that end a run.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::RunCompleted | Self::RunFailed)
    }
}

/// Type of the gateway's event at a new start of a run. Runners cannot send it.
pub const RUN_RESTARTED: &str = "run.restarted";

/// Payload of `run.restarted`: the runner's process was lost, and another attempt begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunRestartedPayload {
    /// Number of the attempt that begins.
    pub attempt: u32,
    /// Failure of the attempt before it.
    pub code: String,
    pub from: RestartPoint,
    /// The results between this sequence and this event are superseded; 0: all earlier results.
    pub after: u64,
}

/// Type of the gateway's event at an amendment of the run's grant. Runners cannot send it.
pub const RUN_AMENDED: &str = "run.amended";

/// Types of events that the gateway alone writes.
pub const GATEWAY_TYPES: [&str; 2] = [RUN_RESTARTED, RUN_AMENDED];

/// Payload of `run.amended`: a person has allowed calls of a tool that the run was not granted. Times are epoch seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunAmendedPayload {
    /// The amendment, as of `GET /v1/approvals/{approval_id}`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub approval_id: ApprovalId,
    /// The question, which shows the call that was held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interaction_id: Option<String>,
    pub tool: String,
    /// Rules for the arguments by JSON pointer. Absent: exactly the call of the question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<ArgumentRules>,
    /// Maximum number of calls. Absent: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    pub expires_at: i64,
    pub allowed_by: Principal,
}

/// Payload of `message.delta`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessageDeltaPayload {
    pub chunk: MessageChunk,
}

/// Payload of `message.completed`. `file_ids`: at most 100.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessageCompletedPayload {
    pub message: Message,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 100))]
    pub file_ids: Vec<String>,
}

/// Payload of `tool.call.started`: telemetry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolCallStartedPayload {
    /// Id that the matching `tool.call.completed` repeats.
    pub tool_call_id: String,
    pub tool_name: String,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub parameters: JsonObject,
}

/// Payload of `tool.call.completed`: telemetry. A failed call has an `error`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolCallCompletedPayload {
    pub tool_call_id: String,
    pub tool_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub result: Option<JsonObject>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Payload of `artifact.created`. The gateway binds the artifact to the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ArtifactCreatedPayload {
    /// Id of an artifact that this run uploaded.
    pub artifact_id: String,
}

/// Payload of `state.updated`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StateUpdatedPayload {
    pub scope: StateScope,
    pub key: String,
    pub value: Value,
}

/// Payload of `processor.log`, kept in the ledger only. `text`: at most 65,536 characters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProcessorLogPayload {
    #[cfg_attr(feature = "openapi", schema(max_length = 65536))]
    pub text: String,
    /// `debug`, `info`, `warning` or `error`; default `info`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
}

/// Payload of `action.requested`. The payload of the action `interaction.requested` is an
/// [`InteractionRequest`](crate::interaction::InteractionRequest), and its `target` is ignored. A granted platform
/// action opens as by `POST /host/v1/platform/actions`. All other actions are only recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ActionRequestedPayload {
    pub action: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub target: Value,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub payload: Value,
    /// Of a platform action: a repeated request with the same key opens no second action; 1–255 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Of a platform action: seconds in which a program must claim it, 1–86,400. Default: 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
}

/// Payload of `run.completed`. A `finish_reason` reserved for the gateway is replaced by `stop`;
/// `details.finish_reason` keeps the runner's value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunCompletedPayload {
    #[serde(default = "stop")]
    pub finish_reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Message>,
    /// Task result. Absent: `ok`. Unknown values are read as `not_done`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "outcome"
    )]
    pub outcome: Option<RunOutcome>,
}

fn outcome<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<RunOutcome>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    // An explicit null counts as absent, as SDKs serialize it.
    Ok(match value {
        Value::Null => None,
        // A newer value must not fail the run. The cautious reading is that the task is not done.
        value => Some(serde_json::from_value(value).unwrap_or(RunOutcome::NotDone)),
    })
}

/// Task result of a completed run. The gateway ignores it; a parent reads it from its child runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    /// The task is done.
    Ok,
    /// The task is not done; the message gives the reason.
    NotDone,
    /// The task needs more input; the message names it.
    NeedInput,
}

/// Default `finish_reason` of `run.completed`, also in place of a reserved one.
pub const DEFAULT_FINISH_REASON: &str = "stop";

fn stop() -> String {
    DEFAULT_FINISH_REASON.to_owned()
}

/// Payload of `run.failed`: a `message` or an `error`. The gateway's own failures contain both with the same
/// text. Clients receive a runner's failure unchanged, unless its `code` is reserved for the gateway. Then
/// `code` is `runner.error`, and `details.code` keeps the runner's value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunFailedPayload {
    #[serde(default = "runner_error")]
    pub code: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default)]
    pub retryable: bool,
}

/// Default `code` of `run.failed`, also in place of a reserved one; `details.code` keeps the reserved code.
pub const RUNNER_ERROR: &str = "runner.error";

fn runner_error() -> String {
    RUNNER_ERROR.to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unknown_outcome_is_not_done() {
        for (outcome, expected) in [
            (json!(null), None),
            (json!("ok"), Some(RunOutcome::Ok)),
            (json!("need_input"), Some(RunOutcome::NeedInput)),
            (json!("fine"), Some(RunOutcome::NotDone)),
            (json!({"a": 1}), Some(RunOutcome::NotDone)),
        ] {
            let payload = json!({"outcome": outcome});
            let payload: RunCompletedPayload = serde_json::from_value(payload).unwrap();
            assert_eq!(payload.outcome, expected);
        }
        let absent: RunCompletedPayload = serde_json::from_value(json!({})).unwrap();
        assert_eq!(absent.outcome, None);
    }
}
