//! The tool `child_run`: delegates a task to another agent and returns its answer.

use std::time::Duration;

use domain::authorization::AuthorizationSnapshot;
use protocol::JsonObject;
use protocol::child_run::{ChildRun, ChildRunRequest, MAX_WAIT_SECONDS};
use protocol::context::AgentInput;
use protocol::message::Message;
use protocol::run::RunStatus;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use super::values::MAX_ID_BYTES;
use crate::child_runs;
use runs::intake::IntakeError;
use web::auth::RunCaller;
use web::error::{ApiError, ApiResult};
use web::json::BODY_BYTES;
use web::mcp::read_arguments;
use web::state::ApiState;

pub(super) const NAME: &str = "child_run";
/// Required arguments.
pub(super) const REQUIRED: [&str; 2] = ["agent", "prompt"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    agent: String,
    prompt: String,
    deadline_seconds: Option<u64>,
}

/// Names of the granted agents.
pub(super) fn names(snapshot: &AuthorizationSnapshot) -> Vec<&str> {
    let agents = snapshot.resources.agents.iter();
    agents
        .map(|agent| agent.display_name.as_deref().unwrap_or(&agent.agent_id))
        .collect()
}

/// Description and argument schemas. `names` is the schema of an agent name.
pub(super) fn form(names: &Value) -> (&'static str, Value) {
    let description = "Has another agent do a task in a run of its own, waits for its end and gives its answer. The \
        agent knows nothing of this conversation: the prompt must say everything.";
    let properties = json!({
        "agent": names,
        "prompt": {"type": "string", "maxLength": BODY_BYTES},
        "deadline_seconds": {"type": "integer", "minimum": 1,
            "description": "How long the agent may take; never longer than this run."},
    });
    (description, properties)
}

/// Starts a child run and waits for its end.
pub(super) async fn call(
    caller: &RunCaller,
    state: &ApiState,
    arguments: &JsonObject,
) -> ApiResult<CallToolResult> {
    let arguments: Arguments = read_arguments(arguments)?;
    // The id is written to the audit log before it is looked up.
    if arguments.agent.len() > MAX_ID_BYTES {
        return Err(ApiError::invalid("/agent", "must be an agent of this run"));
    }
    let request = ChildRunRequest {
        agent_id: arguments.agent,
        input: AgentInput {
            text: Some(arguments.prompt),
            ..AgentInput::default()
        },
        context: JsonObject::new(),
        summary: None,
        grants: None,
        deadline_seconds: arguments.deadline_seconds,
        // MCP calls have no idempotency key, so each call is a new task.
        idempotency_key: Uuid::new_v4().to_string(),
    };
    let mut child = child_runs::start(caller, state, request)
        .await
        .map_err(|error| error.moved(named_here))?;
    while !child.status.is_terminal() {
        // The loop ends at the latest with this run's deadline.
        let began = Instant::now();
        child = child_runs::follow(caller, state, child.run_id, MAX_WAIT_SECONDS).await?;
        let waited = began.elapsed() >= Duration::from_secs(MAX_WAIT_SECONDS);
        // An early end of the wait is no timeout: the gateway stops, or the run was cancelled.
        if !child.status.is_terminal() && !waited {
            return Err(wait_aborted(state));
        }
    }
    Ok(result(&child))
}

/// The error of a wait that ends early: the gateway is shutting down, or the run was cancelled.
fn wait_aborted(state: &ApiState) -> ApiError {
    if state.runs.stopping().is_cancelled() {
        IntakeError::Stopping.into()
    } else {
        ApiError::cancelled()
    }
}

/// Maps a pointer of the request to the tool argument.
fn named_here(pointer: &str) -> String {
    // Clients know the argument names of the tool only.
    let pointer = pointer.replacen("/input", "/prompt", 1);
    pointer.replacen("/agent_id", "/agent", 1)
}

fn result(child: &ChildRun) -> CallToolResult {
    let text = result_text(child);
    let content = vec![ContentBlock::text(text)];
    let mut result = if child.status == RunStatus::Completed {
        CallToolResult::success(content)
    } else {
        CallToolResult::error(content)
    };
    result.structured_content = Some(json!({
        "run_id": child.run_id, "status": child.status, "outcome": child.outcome,
        "error": child.error,
    }));
    result
}

/// The last message, or the reason for its absence.
fn result_text(child: &ChildRun) -> String {
    let message = child.output.as_ref();
    let message = message.and_then(|output| serde_json::from_str::<Message>(output.get()).ok());
    let text = message.map(|message| message.plain_text());
    if child.status == RunStatus::Completed {
        return text.unwrap_or_default();
    }
    let error = child.error.as_ref().map(protocol::raw::RawJson::value);
    let why = error.and_then(|error| error["message"].as_str().map(str::to_owned));
    let status = child.status.as_str();
    let why = why.or_else(|| child.status_reason.clone());
    format!(
        "the agent's run ended as {status}: {}",
        why.unwrap_or_default()
    )
}
