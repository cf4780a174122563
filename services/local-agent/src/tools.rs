//! Tools of a run: their declaration to the model, and execution of its calls.

mod agents;
mod media;
mod result;

use std::collections::HashSet;

use agent_core::model::FinishKind;
use agent_core::output::LineLimit;
use futures_util::FutureExt as _;
use futures_util::stream::{self, StreamExt as _};
use protocol::JsonObject;
use protocol::message::{Message, ToolCall};
use protocol::model::LlmTool;
use protocol::resources::{AgentResources, ToolEffect, ToolOperation, ToolResource};
use protocol::result::{ResultType, ToolCallCompletedPayload, ToolCallStartedPayload};
use runner_kit::{HostError, results};
use serde_json::Value;

use crate::config::{Config, ToolExecution};
use crate::host::LocalAgentHost;
use crate::message_writer::MessageWriter;
use crate::side_effects::SideEffects;
use crate::turns::TurnParts;

use result::ToolOutcome;

/// Concurrent calls per turn.
const AT_ONCE: usize = 16;
/// Concurrent requests for tool details.
const DETAILS_AT_ONCE: usize = 8;

/// Error reasons of calls whose outcome is unknown.
const UNKNOWN_REASONS: [&str; 6] = [
    "outcome_unknown",
    "upstream_broken",
    "upstream_failing",
    "upstream_malformed",
    "upstream_timeout",
    "upstream_too_large",
];
const UNKNOWN: &str =
    "\nThe call may have taken effect all the same: find out before you make it again.";

/// Granted tools and their execution.
#[derive(Debug)]
pub(crate) struct Toolbox {
    pub(crate) tools: Vec<LlmTool>,
    /// Names of read-only tools.
    readers: HashSet<String>,
    /// True when the tool that starts child runs is included.
    asks_agents: bool,
    execution: ToolExecution,
    max_result_chars: usize,
}

/// Results of the calls of one turn.
#[derive(Debug)]
pub(crate) struct CallBatch {
    /// One message of role `tool` per call, in call order.
    pub(crate) messages: Vec<Message>,
    /// True when every tool marked its result as final for the user.
    pub(crate) terminates: bool,
}

impl Toolbox {
    /// Fetches granted tools by name. A tool without a readable schema is left out.
    pub(crate) async fn open(
        host: &impl LocalAgentHost,
        resources: &AgentResources,
        config: &Config,
    ) -> Result<Self, HostError> {
        let granted = resources.tools.iter();
        let granted = granted.filter(|tool| tool.operations.contains(&ToolOperation::Call));
        let granted: Vec<_> = granted.map(|tool| describe(host, tool).boxed()).collect();
        let described: Vec<_> = stream::iter(granted)
            .buffered(DETAILS_AT_ONCE)
            .collect()
            .await;
        let mut tools = Vec::new();
        for tool in described {
            tools.extend(tool?);
        }
        let asking = agents::tool(&resources.agents);
        // A granted tool of the same name takes precedence.
        let asking =
            asking.filter(|asking| tools.iter().all(|tool: &LlmTool| tool.name != asking.name));
        let asks_agents = asking.is_some();
        tools.extend(asking);
        // Sorted: the declaration is the same in each run, whatever the order of the grant.
        tools.sort_by(|one: &LlmTool, other| one.name.cmp(&other.name));
        let readers = resources.tools.iter();
        let readers = readers.filter(|tool| tool.effect == Some(ToolEffect::Read));
        Ok(Self {
            tools,
            readers: readers.map(|tool| tool.tool_name.clone()).collect(),
            asks_agents,
            execution: config.tool_execution,
            max_result_chars: config.max_tool_result_chars,
        })
    }

    /// Executes the calls of a turn. Fails only when the run ends.
    pub(crate) async fn run(
        &self,
        work: &TurnParts<'_, impl LocalAgentHost>,
        message_writer: &MessageWriter,
        turn: u64,
        calls: &[ToolCall],
    ) -> Result<CallBatch, HostError> {
        let (host, side_effects) = (work.host, work.side_effects);
        let at_once = match self.execution {
            ToolExecution::Parallel => AT_ONCE,
            ToolExecution::Serial => 1,
        };
        if self.execution == ToolExecution::Parallel {
            // All calls are reported before the first result, because they run at the same time.
            for call in calls {
                message_writer
                    .send(started(call, message_writer.line_limit()))
                    .await;
            }
        }
        let work = calls.iter().enumerate().map(|(index, call)| {
            let work = async move {
                if self.execution == ToolExecution::Serial {
                    message_writer
                        .send(started(call, message_writer.line_limit()))
                        .await;
                }
                // Stable across retries of this run, so that the gateway executes the call once.
                let key = format!("turn-{turn}-call-{index}");
                let outcome = self.call(host, side_effects, call, &key).await?;
                message_writer
                    .send(completed(call, &outcome, message_writer.line_limit()))
                    .await;
                Ok::<_, HostError>((index, outcome))
            };
            // Boxed: the stream needs one type for all calls.
            work.boxed()
        });
        let work: Vec<_> = work.collect();
        let mut working = stream::iter(work).buffer_unordered(at_once);
        let mut outcomes: Vec<Option<ToolOutcome>> = calls.iter().map(|_| None).collect();
        // Completion order: a slow call must not delay the results of others.
        while let Some(done) = working.next().await {
            let (index, outcome) = done?;
            outcomes[index] = Some(outcome);
        }
        Ok(Self::batch(calls, outcomes.into_iter().flatten().collect()))
    }

    /// Answers the calls of a truncated answer without executing them.
    pub(crate) async fn refuse(
        &self,
        message_writer: &MessageWriter,
        calls: &[ToolCall],
        ending: FinishKind,
    ) -> CallBatch {
        let reason = ending.as_str();
        let error = format!(
            "The answer was cut off (finish_reason {reason}), so this call was not made. Call again, with less in it."
        );
        let outcome = ToolOutcome::error(&error, self.max_result_chars);
        // Reported as started and completed: clients pair both results.
        for call in calls {
            message_writer
                .send(started(call, message_writer.line_limit()))
                .await;
            message_writer
                .send(completed(call, &outcome, message_writer.line_limit()))
                .await;
        }
        Self::batch(calls, vec![outcome; calls.len()])
    }

    fn batch(calls: &[ToolCall], outcomes: Vec<ToolOutcome>) -> CallBatch {
        let terminates = !outcomes.is_empty() && outcomes.iter().all(|outcome| outcome.terminates);
        let messages = calls.iter().zip(outcomes);
        let messages = messages.map(|(call, outcome)| tool_message(call, outcome.text));
        CallBatch {
            messages: messages.collect(),
            terminates,
        }
    }

    async fn call(
        &self,
        host: &impl LocalAgentHost,
        side_effects: &SideEffects,
        call: &ToolCall,
        key: &str,
    ) -> Result<ToolOutcome, HostError> {
        let name = &call.function.name;
        // The list of allowed names lets the model correct itself in the next turn.
        if !self.tools.iter().any(|tool| tool.name == *name) {
            let names: Vec<_> = self.tools.iter().map(|tool| tool.name.as_str()).collect();
            let allowed = match names.as_slice() {
                [] => "none".to_owned(),
                names => names.join(", "),
            };
            let error = format!("Tool {name:?} is not available. Available tools: {allowed}");
            return Ok(ToolOutcome::error(&error, self.max_result_chars));
        }
        let parameters = match parameters(&call.function.arguments) {
            Ok(parameters) => parameters,
            Err(error) => return Ok(ToolOutcome::error(&error, self.max_result_chars)),
        };
        if self.asks_agents && name == agents::NAME {
            // Before the call: if the response is lost, the child run may exist all the same.
            side_effects.add();
            return agents::ask(host, &parameters, key, self.max_result_chars).await;
        }
        let changes_nothing = self.readers.contains(name);
        // Before the call, for the same reason. Tools without a declared effect count as writing.
        if !changes_nothing {
            side_effects.add();
        }
        let mut answer = host.call_tool(name, parameters.clone(), key).await;
        let was_lost = answer.as_ref().is_err_and(is_lost);
        // Once only, and with the same key: the gateway returns the first call's result if there was one.
        if was_lost {
            answer = host.call_tool(name, parameters, key).await;
        }
        match answer {
            Ok(result) => Ok(ToolOutcome::of(result, self.max_result_chars)),
            // The run is over: an error for the model would start another turn.
            Err(failed) if failed.is_cancelled() || failed.is_deadline_exceeded() => Err(failed),
            Err(failed) => {
                let mut error = format!("Tool execution failed: {}", failed.message);
                // A repeated read is harmless, so the warning would only cost tokens.
                if !changes_nothing && (was_lost || is_unknown(&failed)) {
                    error.push_str(UNKNOWN);
                }
                Ok(ToolOutcome::error(&error, self.max_result_chars))
            }
        }
    }
}

async fn describe(
    host: &impl LocalAgentHost,
    tool: &ToolResource,
) -> Result<Option<LlmTool>, HostError> {
    let (description, parameters) = match &tool.parameters {
        // The grant may carry the schema, which saves a request per tool.
        Some(parameters) => (
            tool.description.clone().unwrap_or_default(),
            parameters.clone(),
        ),
        None => match host.tool(&tool.tool_name).await {
            Ok(detail) => (detail.description, detail.parameters),
            Err(failed) if failed.is_cancelled() || failed.is_deadline_exceeded() => {
                return Err(failed);
            }
            // Without a schema the model would guess the arguments; the other tools stay usable.
            Err(failed) => {
                let name = &tool.tool_name;
                tracing::warn!(tool.name = name, "tool {name} is left out: {failed}");
                return Ok(None);
            }
        },
    };
    Ok(Some(LlmTool {
        name: tool.tool_name.clone(),
        human_desc: String::new(),
        description,
        parameters,
    }))
}

/// The response was lost; a retry under the same idempotency key is safe.
fn is_lost(failed: &HostError) -> bool {
    failed.retryable && failed.code.starts_with("callback.")
}

/// True when the outcome of the call is unknown.
fn is_unknown(failed: &HostError) -> bool {
    let reason = failed.details.get("reason").and_then(Value::as_str);
    is_lost(failed) || reason.is_some_and(|reason| UNKNOWN_REASONS.contains(&reason))
}

/// Parses arguments of a model; an empty text is an empty object.
fn parameters(arguments: &str) -> Result<JsonObject, String> {
    if arguments.trim().is_empty() {
        return Ok(JsonObject::new());
    }
    match serde_json::from_str(arguments) {
        Ok(Value::Object(parameters)) => Ok(parameters),
        Ok(_) => Err("Tool arguments must be a JSON object".to_owned()),
        Err(error) => Err(format!("Tool arguments are not valid JSON: {error}")),
    }
}

/// Model message for the history, with `{}` for arguments that are no object. Some providers reject other
/// arguments.
pub(crate) fn with_valid_arguments(mut message: Message) -> Message {
    for call in message.tool_calls.iter_mut().flatten() {
        if parameters(&call.function.arguments).is_err() {
            "{}".clone_into(&mut call.function.arguments);
        }
    }
    message
}

fn tool_message(call: &ToolCall, text: String) -> Message {
    Message {
        name: Some(call.function.name.clone()),
        tool_call_id: Some(call.id.clone()),
        ..Message::text("tool", text)
    }
}

fn started(call: &ToolCall, line_limit: LineLimit) -> protocol::result::AgentRunResult {
    // Malformed arguments are shown as an empty object, because the payload demands one.
    let parameters = parameters(&call.function.arguments).unwrap_or_default();
    let payload = ToolCallStartedPayload {
        tool_call_id: call.id.clone(),
        tool_name: call.function.name.clone(),
        parameters: shown(parameters, "tool_parameters_preview", line_limit),
    };
    results::typed(ResultType::ToolCallStarted, &payload)
}

fn completed(
    call: &ToolCall,
    outcome: &ToolOutcome,
    line_limit: LineLimit,
) -> protocol::result::AgentRunResult {
    let result = outcome.shown.clone();
    let error = outcome.error.as_deref();
    let payload = ToolCallCompletedPayload {
        tool_call_id: call.id.clone(),
        tool_name: call.function.name.clone(),
        result: result.map(|result| shown(result, "tool_result_preview", line_limit)),
        // Half of the limit: the other half is for the result in the same payload.
        error: error.map(|error| line_limit.half().beginning(error).to_owned()),
    };
    results::typed(ResultType::ToolCallCompleted, &payload)
}

/// The value, or a prefix when it exceeds the limit of a result.
fn shown(value: JsonObject, kind: &str, line_limit: LineLimit) -> JsonObject {
    if line_limit.half().holds(&value) {
        return value;
    }
    let mut preview = line_limit.preview(&value);
    preview.insert("type".to_owned(), kind.into());
    preview
}
