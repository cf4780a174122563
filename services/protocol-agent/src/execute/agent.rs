//! Delegation: actions as child runs of other agents.

use std::time::Duration;

use action_graph::action::AUTHORITY;
use action_graph::code::Code;
use action_graph::delegate::{node_request, task_summary};
use action_graph::graph::Graph;
use action_graph::node::{ActionOutput, Node, Sent};
use action_graph::result::deliver::policy_of;
use action_graph::schedule::{ActionFailure, ActionOutcome, Execute};
use protocol::child_run::{ChildGrants, ChildRun, ChildRunRequest, SUMMARY_CHARS};
use protocol::context::AgentInput;
use protocol::id::RunId;
use protocol::message::Message;
use protocol::resources::ToolResource;
use protocol::result::RunOutcome;
use protocol::run::RunStatus;
use runner_kit::HostError;
use serde_json::{Value, json};

use crate::catalog::{agent_name, effects_or_unknown};
use crate::execute::tool::failure_of;
use crate::execute::{AttemptReport, ExecutorEnv, jitter};
use crate::host::GraphAgentHost;

/// Long-poll timeout for the end of a child run, in seconds.
const WAIT_SECONDS: u64 = 25;
/// Maximum consecutive failures of that poll.
const MAX_FAILURES: u32 = 20;
/// Pause after a failed call.
const PAUSE: Duration = Duration::from_secs(1);
const NO_QUESTIONS: &str = "You cannot ask the user. If a person must answer first, say so with the outcome \
need_input; if the work cannot be done, say why with the outcome not_done.";

/// Request for the child run of an action. Fails for a reference without a value, or a right that may not be passed on.
pub(crate) fn request(
    env: &ExecutorEnv<impl GraphAgentHost>,
    graph: &Graph,
    execute: &Execute,
    limit_ms: u32,
) -> Result<ChildRunRequest, ActionFailure> {
    let unresolved = |message| ActionFailure::new(Code::InputUnresolved, message, Sent::No);
    let node = graph.node(&execute.id);
    let task = node_request(graph, &execute.id);
    let (Some(node), Some(task)) = (node, task) else {
        return Err(unresolved("a reference of the request has no value"));
    };
    let form = policy_of(graph, node).return_to_model.as_str();
    let text = format!("{task}\nExpected result: {form}.\n{NO_QUESTIONS}\n");
    let mut agents = env.context.resources.agents.iter();
    let agent = agents
        .find(|agent| agent_name(agent) == execute.target)
        .ok_or_else(|| unresolved("the agent is not granted"))?;
    let context = json!({"graph": graph.id, "action": execute.id, "attempt": execute.attempt});
    Ok(ChildRunRequest {
        agent_id: agent.agent_id.clone(),
        input: AgentInput {
            text: Some(text),
            ..AgentInput::default()
        },
        context: context.as_object().cloned().unwrap_or_default(),
        summary: task_summary(graph, &execute.id, SUMMARY_CHARS),
        grants: Some(grants(env, node, execute)?),
        deadline_seconds: Some(env.time_of(limit_ms).as_secs().max(1)),
        idempotency_key: execute.key.clone(),
    })
}

/// Grants of the child run: those that the action requests, or all tools that need no approval.
fn grants(
    env: &ExecutorEnv<impl GraphAgentHost>,
    node: &Node,
    execute: &Execute,
) -> Result<ChildGrants, ActionFailure> {
    let refused = |code, message: String| Err(ActionFailure::new(code, &message, Sent::No));
    let mut grants = match execute.input.get(AUTHORITY) {
        None | Some(Value::Null) => ChildGrants::default(),
        Some(named) => match serde_json::from_value(named.clone()) {
            Ok(grants) => grants,
            Err(error) => return refused(Code::ArgsSchema, format!("/{AUTHORITY}: {error}")),
        },
    };
    let rules = &env.config.rules;
    let guarded = |tool: &ToolResource| rules.guarded(&effects_or_unknown(tool, &env.config));
    let tools = &env.context.resources.tools;
    let Some(named) = &grants.tools else {
        let open = tools.iter().filter(|tool| guarded(tool).is_empty());
        grants.tools = Some(open.map(|tool| tool.tool_name.clone()).collect());
        return Ok(grants);
    };
    // A child run cannot ask a person. A guarded tool needs an approval that included its name.
    let resolved = node.action.resolved.as_ref();
    let approved = resolved.filter(|resolved| resolved.approval);
    for tool in tools.iter().filter(|tool| named.contains(&tool.tool_name)) {
        let effects = guarded(tool);
        let is_allowed = effects.is_empty()
            || effects.is_disjoint(&rules.forbid)
                && approved.is_some_and(|resolved| effects.is_subset(&resolved.effects));
        if !is_allowed {
            let name = &tool.tool_name;
            let message = format!(
                "`{name}` needs an approval of this delegation: write its name into `{AUTHORITY}.tools`, without a reference"
            );
            return refused(Code::NotGranted, message);
        }
    }
    Ok(grants)
}

/// Starts the child run.
pub(crate) async fn spawn(
    env: &ExecutorEnv<impl GraphAgentHost>,
    request: &ChildRunRequest,
) -> AttemptReport {
    let mut answer = env.host.spawn_child(request).await;
    // A lost response is safe to repeat: the same idempotency key returns the same run.
    if answer.as_ref().is_err_and(|error| error.retryable) {
        tokio::time::sleep(PAUSE).await;
        answer = env.host.spawn_child(request).await;
    }
    match answer {
        Ok(child) => AttemptReport::Spawned(child.run_id),
        Err(error) => AttemptReport::Finished(ActionOutcome::Err(host_failure(&error))),
    }
}

fn host_failure(error: &HostError) -> ActionFailure {
    let failure = failure_of(error);
    // The model sees the code; a delegation is neither a tool nor its arguments.
    let code = match failure.code {
        Code::ToolError | Code::ArgsSchema => Code::ChildFailed,
        code => code,
    };
    ActionFailure { code, ..failure }
}

/// Waits for the end of a child run.
pub(crate) async fn follow(env: &ExecutorEnv<impl GraphAgentHost>, run: RunId) -> ActionOutcome {
    let mut failures = 0;
    loop {
        match env.host.child_run(run, WAIT_SECONDS).await {
            Ok(Some(child)) if child.status.is_terminal() => return outcome_of(&child),
            Ok(Some(_)) => failures = 0,
            Ok(None) => return ActionOutcome::Err(unknown()),
            // The child run continues during an outage of the gateway, so the poll does, too.
            Err(error) if error.retryable && failures < MAX_FAILURES => {
                failures += 1;
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return ActionOutcome::Err(host_failure(&error)),
        }
    }
}

/// Failure of a child run that the host does not find.
pub(crate) fn unknown() -> ActionFailure {
    let message = "the child run is not known any more";
    ActionFailure {
        retryable: true,
        jitter: jitter(),
        ..ActionFailure::new(Code::ChildFailed, message, Sent::Yes)
    }
}

/// Converts the end of a child run to the outcome of its action.
pub(crate) fn outcome_of(child: &ChildRun) -> ActionOutcome {
    let code = match child.status {
        RunStatus::Completed => return completed(child),
        RunStatus::Cancelled => Code::ChildCancelled,
        RunStatus::Timeout => Code::Timeout,
        _ => Code::ChildFailed,
    };
    let error = child.error.as_ref();
    let error = error.and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
    let error = error.unwrap_or_default();
    let message = error.get("message").and_then(Value::as_str);
    let message = message.or(child.status_reason.as_deref());
    ActionOutcome::Err(ActionFailure {
        retryable: error.get("retryable") == Some(&Value::Bool(true)),
        jitter: jitter(),
        ..ActionFailure::new(code, message.unwrap_or("no reason was given"), Sent::Yes)
    })
}

fn completed(child: &ChildRun) -> ActionOutcome {
    let message = child.output.as_ref();
    let message = message.and_then(|raw| serde_json::from_str::<Message>(raw.get()).ok());
    let answer = message.map(|message| message.plain_text());
    let answer = answer.unwrap_or_default();
    let outcome = child.outcome.unwrap_or(RunOutcome::Ok);
    let text = match outcome {
        RunOutcome::Ok => answer.clone(),
        RunOutcome::NotDone => format!("The work is not done.\n\n{answer}"),
        RunOutcome::NeedInput => format!("The agent needs an answer first.\n\n{answer}"),
    };
    let mut output = ActionOutput::text(&text);
    let reference = format!("run:{}", child.run_id);
    output.artifacts.push(("child".to_owned(), reference));
    ActionOutcome::Ok {
        output,
        // An unfinished task is delivered to the model, but starts no dependent action.
        satisfying: outcome == RunOutcome::Ok && !answer.trim().is_empty(),
    }
}
