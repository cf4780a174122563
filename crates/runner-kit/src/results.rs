//! Constructors of results. The kit fills in `run_id` and `sequence`.

use protocol::JsonObject;
use protocol::message::{LlmTokenUsage, Message, MessageChunk, MessageContent};
use protocol::resources::StateScope;
use protocol::result::{
    AgentRunResult, MessageCompletedPayload, MessageDeltaPayload, ProcessorLogPayload, ResultType,
    RunCompletedPayload, RunFailedPayload, RunOutcome, StateUpdatedPayload,
};
use serde::Serialize;
use serde_json::Value;

use crate::runner::RunError;

/// A result of any type, known to the gateway or not.
pub fn custom(kind: impl Into<String>, data: JsonObject) -> AgentRunResult {
    AgentRunResult {
        run_id: String::new(),
        kind: kind.into(),
        data,
        usage: None,
        sequence: None,
        timestamp: None,
    }
}

/// Result of a protocol type. `payload`: the payload struct of that type.
///
/// # Panics
///
/// If the payload is no JSON object.
pub fn typed(kind: ResultType, payload: &impl Serialize) -> AgentRunResult {
    let Ok(Value::Object(data)) = serde_json::to_value(payload) else {
        unreachable!("every payload of the protocol is a struct with text keys")
    };
    custom(kind.as_str(), data)
}

/// `message.delta`: next piece of the assistant's text.
pub fn delta(text: impl Into<String>) -> AgentRunResult {
    let chunk = MessageChunk {
        role: "assistant".to_owned(),
        content: Some(MessageContent::Text(text.into())),
        ..MessageChunk::default()
    };
    typed(ResultType::MessageDelta, &MessageDeltaPayload { chunk })
}

/// `message.completed`: complete text of the assistant.
pub fn completed(text: impl Into<String>) -> AgentRunResult {
    message_completed(Message::text("assistant", text), Vec::new())
}

/// `message.completed` with a message of any shape and at most 100 files.
pub fn message_completed(message: Message, file_ids: Vec<String>) -> AgentRunResult {
    typed(
        ResultType::MessageCompleted,
        &MessageCompletedPayload { message, file_ids },
    )
}

/// `state.updated`: requests the gateway to store the value.
pub fn state_updated(
    scope: StateScope,
    key: impl Into<String>,
    value: impl Into<Value>,
) -> AgentRunResult {
    let payload = StateUpdatedPayload {
        scope,
        key: key.into(),
        value: value.into(),
    };
    typed(ResultType::StateUpdated, &payload)
}

/// `processor.log`: ledger only.
pub fn log(text: impl Into<String>) -> AgentRunResult {
    typed(
        ResultType::ProcessorLog,
        &ProcessorLogPayload {
            text: text.into(),
            level: None,
        },
    )
}

/// `run.completed`: terminal result of a successful run.
pub fn run_completed() -> AgentRunResult {
    run_completed_because("stop")
}

/// `run.completed` with a finish reason: `stop`, `length` (token limit), `content_filter`, or a value of the
/// runner.
pub fn run_completed_because(finish_reason: impl Into<String>) -> AgentRunResult {
    let payload = RunCompletedPayload {
        finish_reason: finish_reason.into(),
        message: None,
        outcome: None,
    };
    typed(ResultType::RunCompleted, &payload)
}

/// `run.completed` with the outcome of the task, for the parent run.
pub fn run_completed_with_outcome(
    finish_reason: impl Into<String>,
    outcome: RunOutcome,
) -> AgentRunResult {
    let payload = RunCompletedPayload {
        finish_reason: finish_reason.into(),
        message: None,
        outcome: Some(outcome),
    };
    typed(ResultType::RunCompleted, &payload)
}

/// `run.completed` with the run's token usage.
pub fn run_completed_with_usage(usage: LlmTokenUsage) -> AgentRunResult {
    AgentRunResult {
        usage: Some(usage),
        ..run_completed()
    }
}

/// `run.failed`: terminal result of a failed run.
pub fn run_failed(error: RunError) -> AgentRunResult {
    let payload = RunFailedPayload {
        code: error.code,
        message: Some(error.message.clone()),
        error: Some(error.message),
        retryable: error.retryable,
    };
    typed(ResultType::RunFailed, &payload)
}
