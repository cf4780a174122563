//! `AgentRunResult`: what a runner streams back (protocol §4). Unknown types survive.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::JsonObject;
use crate::message::{LlmTokenUsage, Message, MessageChunk};
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
    /// Starts at 1 and strictly rises; optional on a direct stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub sequence: Option<u64>,
    /// Epoch seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<i64>,
}

macro_rules! result_types {
    ($($variant:ident = $text:literal),+ $(,)?) => {
        /// The result types that the gateway knows. Any other is stored and not applied.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ResultType { $($variant),+ }

        impl ResultType {
            /// Every known type.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The known type of that name.
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
    /// True for the two types that end a run.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::RunCompleted | Self::RunFailed)
    }
}

/// `message.delta`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessageDeltaPayload {
    pub chunk: MessageChunk,
}

/// `message.completed`. `file_ids`: at most 100.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessageCompletedPayload {
    pub message: Message,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 100))]
    pub file_ids: Vec<String>,
}

/// `tool.call.started`: telemetry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolCallStartedPayload {
    /// The same in `tool.call.completed`.
    pub tool_call_id: String,
    pub tool_name: String,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub parameters: JsonObject,
}

/// `tool.call.completed`: telemetry. A call that went wrong has an `error`.
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

/// `state.updated`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StateUpdatedPayload {
    pub scope: StateScope,
    pub key: String,
    pub value: Value,
}

/// `processor.log`: kept in the ledger only. `text`: at most 65,536 characters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProcessorLogPayload {
    #[cfg_attr(feature = "openapi", schema(max_length = 65536))]
    pub text: String,
    /// `debug`, `info`, `warning` or `error`; `info` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
}

/// `action.requested`: recorded, not executed, but for `interaction.requested`, whose payload is an
/// [`InteractionRequest`](crate::interaction::InteractionRequest). The `target` is never used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ActionRequestedPayload {
    pub action: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub target: Value,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub payload: Value,
}

/// `run.completed`. A `finish_reason` that is a code of the gateway goes on as `stop`: `details.finish_reason` has the
/// runner's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunCompletedPayload {
    #[serde(default = "stop")]
    pub finish_reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Message>,
    /// Whether the task is done. Absent: `ok`; a value that is none of the three is read as `not_done`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "outcome"
    )]
    pub outcome: Option<RunOutcome>,
}

fn outcome<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<RunOutcome>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(match value {
        Value::Null => None,
        value => Some(serde_json::from_value(value).unwrap_or(RunOutcome::NotDone)),
    })
}

/// Whether a completed run did what it was asked. It decides nothing in the gateway: a parent reads it of its child runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    /// The task is done.
    Ok,
    /// The task is not done, and the message says why.
    NotDone,
    /// The task needs more input, and the message says which.
    NeedInput,
}

/// The finish reason of a `run.completed` without one, and of one whose reason is a code of the gateway.
pub const FINISH_REASON: &str = "stop";

fn stop() -> String {
    FINISH_REASON.to_owned()
}

/// `run.failed`: a `message` or an `error`. The gateway's own holds both with the same text; a runner's goes on to clients
/// as it was sent, unless its `code` is one that only the gateway gives: then `code` is `runner.error`, and `details.code`
/// the runner's own.
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

/// The code of a `run.failed` without one, and of one whose code is reserved for the gateway: `details.code` has that.
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
