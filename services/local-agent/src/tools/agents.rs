//! Tool that starts child runs of other agents.

use protocol::JsonObject;
use protocol::child_run::ChildRun;
use protocol::message::Message;
use protocol::model::LlmTool;
use protocol::raw::RawJson;
use protocol::resources::{AgentOperation, AgentResource};
use protocol::run::RunStatus;
use runner_kit::HostError;
use serde_json::{Value, json};

use super::result::ToolOutcome;
use crate::host::LocalAgentHost;

pub(super) const NAME: &str = "ask_agent";

const DESCRIPTION: &str = "Has another agent do a task and gives its answer. The agent knows nothing of this conversation: \
    the prompt must say everything that it needs.";

/// Tool declaration, if the run may call agents.
pub(super) fn tool(agents: &[AgentResource]) -> Option<LlmTool> {
    let callable = agents
        .iter()
        .filter(|agent| agent.operations.contains(&AgentOperation::Call));
    let callable: Vec<_> = callable.collect();
    if callable.is_empty() {
        return None;
    }
    let names: Vec<_> = callable.iter().map(|agent| name_of(agent)).collect();
    let lines = callable.iter().filter_map(|agent| {
        let description = agent.description.as_deref()?;
        Some(format!("\n- {}: {description}", name_of(agent)))
    });
    let description = lines.fold(DESCRIPTION.to_owned(), |all, one| all + &one);
    let parameters = json!({
        "type": "object",
        "properties": {
            "agent": {"type": "string", "enum": names},
            "prompt": {"type": "string", "description": "The complete task."},
        },
        "required": ["agent", "prompt"],
        "additionalProperties": false,
    });
    Some(LlmTool {
        name: NAME.to_owned(),
        human_desc: String::new(),
        description,
        parameters: parameters.as_object().cloned().unwrap_or_default(),
    })
}

fn name_of(agent: &AgentResource) -> &str {
    agent.display_name.as_deref().unwrap_or(&agent.agent_id)
}

/// Calls an agent. Fails only when the run ends.
pub(super) async fn ask(
    host: &impl LocalAgentHost,
    parameters: &JsonObject,
    key: &str,
    limit: usize,
) -> Result<ToolOutcome, HostError> {
    let text = |name: &str| parameters.get(name).and_then(Value::as_str);
    let (Some(agent), Some(prompt)) = (text("agent"), text("prompt")) else {
        let error = "`agent` and `prompt` must be texts";
        return Ok(ToolOutcome::error(error, limit));
    };
    match host.ask_agent(agent, prompt, key).await {
        Ok(child) if child.status == RunStatus::Completed => {
            Ok(ToolOutcome::of(Value::String(answer_text(&child)), limit))
        }
        Ok(child) => Ok(ToolOutcome::error(&failure(&child), limit)),
        // The run is over: an error for the model would start another turn.
        Err(failed) if failed.is_cancelled() || failed.is_deadline_exceeded() => Err(failed),
        Err(failed) => {
            let error = format!("The agent was not called: {}", failed.message);
            Ok(ToolOutcome::error(&error, limit))
        }
    }
}

fn answer_text(child: &ChildRun) -> String {
    let output = child.output.as_ref();
    let message = output.and_then(|output| serde_json::from_str::<Message>(output.get()).ok());
    message
        .map(|message| message.plain_text())
        .unwrap_or_default()
}

fn failure(child: &ChildRun) -> String {
    let error = child.error.as_ref().map(RawJson::value);
    let why = error.and_then(|error| error["message"].as_str().map(str::to_owned));
    // A run that ended without an error object has only a reason.
    let why = why.or_else(|| child.status_reason.clone());
    let status = child.status.as_str();
    format!(
        "The run of the agent ended as {status}: {}",
        why.unwrap_or_default()
    )
}
