//! Hosts and models for tests.

pub(crate) mod memory;
pub(crate) mod outputs;
pub(crate) mod script;

use futures_util::StreamExt as _;
use protocol::context::AgentRunContext;
use protocol::message::Message;
use protocol::result::AgentRunResult;
use protocol::run::RunStatus;
use runner_kit::{CancellationToken, testing};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::agent::run_on;
use crate::manifest::RUNNER_ID;

pub(crate) use outputs::{act, answer, call, carrier, done, fence, text};
pub(crate) use script::{GraphTestHost, ScriptedOutput, ToolReply};

/// Run id of a test's first event.
pub(crate) const RUN: &str = testing::RUN_ID;

/// Id of a further run.
pub(crate) fn new_run() -> String {
    Uuid::new_v4().to_string()
}

/// Fails unless the text contains every part.
#[track_caller]
pub(crate) fn has_parts(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} in {text}");
    }
}

/// Context with all grants: model `m`, tools `look` (reads), `note` (writes), `send` (irreversible) and `mystery`
/// (unknown), agent `writer`, and a surface that displays questions.
pub(crate) fn context(input: &str, config: &Value) -> AgentRunContext {
    let access = testing::offline_access();
    let request = testing::run_request(RUNNER_ID, input, &access).unwrap();
    let mut context = request.context;
    context.resources = serde_json::from_value(json!({
        "models": [{"model_id": "m", "operations": ["invoke", "stream"]}, {"model_id": "n", "operations": ["invoke"]}],
        "tools": [tool("look", Some("read")), tool("note", Some("write")), tool("send", Some("irreversible")), tool("mystery", None)],
        "knowledge_bases": [{"kb_id": "docs", "operations": ["retrieve"]}],
        "agents": [{"agent_id": "a-1", "display_name": "writer", "description": "Writes texts.", "operations": ["call"]}],
    }))
    .unwrap();
    context.context = serde_json::from_value(json!({
        "conversation_id": "c-7",
        "available_apis": {"history_page": true, "state": true, "steering_pull": true, "run_get": true,
            "child_runs": true},
    }))
    .unwrap();
    context.delivery.interactions = Some(serde_json::from_value(json!({})).unwrap());
    let mut all = json!({"model": "m", "protocol-enabled": true});
    let all = all.as_object_mut().unwrap();
    all.extend(config.as_object().unwrap().clone());
    context.config = all.clone();
    context
}

fn tool(name: &str, effect: Option<&str>) -> Value {
    json!({"tool_name": name, "description": format!("Does {name}."), "operations": ["detail", "call"], "effect": effect,
        "parameters": {"type": "object", "properties": {"x": {}}, "additionalProperties": false}})
}

/// The context of a later event of the same conversation, handled by another run.
pub(crate) fn later(context: &AgentRunContext, run: &str, event: &str) -> AgentRunContext {
    let mut context = context.clone();
    run.clone_into(&mut context.run_id);
    event.clone_into(&mut context.event.event_id);
    context
}

/// The same event as the answer to a question.
pub(crate) fn submitted(
    context: &AgentRunContext,
    run: &str,
    interaction: &str,
    action: &str,
    values: &Value,
) -> AgentRunContext {
    let mut context = later(context, run, &format!("e-{run}"));
    context.event.event_type = "interaction.submitted".to_owned();
    context.input = serde_json::from_value(json!({
        "interaction": {"interaction_id": interaction, "action_id": action, "values": values},
    }))
    .unwrap();
    context
}

/// All results of a run of this context.
pub(crate) async fn run(host: &GraphTestHost, context: AgentRunContext) -> Vec<AgentRunResult> {
    run_until(host, context, CancellationToken::new()).await
}

pub(crate) async fn run_until(
    host: &GraphTestHost,
    context: AgentRunContext,
    cancel: CancellationToken,
) -> Vec<AgentRunResult> {
    let host = host.begin(&context.run_id);
    let results = run_on(context, host.clone(), cancel);
    let results: Vec<_> = results.map(Result::unwrap).collect().await;
    let is_failed = results.last().is_some_and(|last| last.kind == "run.failed");
    host.memory.end(if is_failed {
        RunStatus::Failed
    } else {
        RunStatus::Completed
    });
    results
}

/// The text of the last `message.completed`.
pub(crate) fn final_message(results: &[AgentRunResult]) -> String {
    let message = results
        .iter()
        .rfind(|result| result.kind == "message.completed");
    let message = message.expect("a message was completed");
    let message: Message = serde_json::from_value(message.data["message"].clone()).unwrap();
    message.plain_text()
}

/// The type of the last result, and its finish reason or code.
pub(crate) fn ending(results: &[AgentRunResult]) -> (&str, &str) {
    let last = results.last().expect("a run has a terminal");
    let word = last
        .data
        .get("finish_reason")
        .or_else(|| last.data.get("code"));
    (&last.kind, word.and_then(Value::as_str).unwrap_or_default())
}

/// The data of all results of this type.
pub(crate) fn all<'a>(results: &'a [AgentRunResult], kind: &str) -> Vec<&'a protocol::JsonObject> {
    let of_kind = results.iter().filter(|result| result.kind == kind);
    of_kind.map(|result| &result.data).collect()
}

/// The questions of a run.
pub(crate) fn questions(results: &[AgentRunResult]) -> Vec<Value> {
    let requests = all(results, "action.requested");
    requests
        .into_iter()
        .map(|data| data["payload"].clone())
        .collect()
}
