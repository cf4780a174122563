//! Approvals of tool calls: rules for arguments, and the question that asks a person.

mod question;
mod rules;
#[cfg(test)]
mod tests;

use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::approval::{ApprovalSpec, ArgumentRules};
use protocol::resources::ToolResource;
use serde_json::json;

use crate::canonical::canonical_json;
use crate::tool_policy::{matches_tool, pattern_fault};

pub use question::{
    ApprovalAnswer, ApprovalDecision, HeldCall, NeededAmendment, decision_of, denial_reason,
    question, read_answer,
};
pub use rules::{check_rules, covers};

/// Default lifetime of an approval, in seconds.
pub const DEFAULT_SECONDS: i64 = 30 * 24 * 60 * 60;
/// Maximum lifetime of an approval, in seconds.
const MAX_SECONDS: i64 = 366 * 24 * 60 * 60;
/// Maximum count of an approval.
const MAX_COUNT: u64 = 1_000_000;

/// Returns the text whose hash identifies a call: its tool and its parameters, as canonical JSON.
pub fn call_text(tool: &str, parameters: &JsonObject) -> String {
    canonical_json(&json!({"tool": tool, "parameters": parameters}))
}

/// Returns the text whose hash identifies the definition of a tool, as canonical JSON. An amendment opens a tool of this
/// definition only.
pub fn definition_text(tool: &ToolResource) -> String {
    let ToolResource {
        tool_name,
        parameters,
        source,
        effect,
        ..
    } = tool;
    canonical_json(&json!({
        "tool": tool_name, "parameters": parameters, "source": source, "effect": effect,
    }))
}

/// Returns true if an approval with this pattern and these rules covers a call.
pub fn covers_call(
    pattern: &str,
    rules: &ArgumentRules,
    tool: &str,
    parameters: &JsonObject,
) -> bool {
    matches_tool(pattern, tool) && covers(rules, &parameters.clone().into())
}

/// Returns all faults of a new approval. `now`: epoch seconds.
pub fn check_approval(spec: &ApprovalSpec, now: i64) -> Vec<Fault> {
    let mut faults = Vec::new();
    if let Some(fault) = pattern_fault(&spec.tool) {
        faults.push(Fault::new("/tool", fault));
    }
    faults.extend(check_rules(&spec.arguments, "/arguments"));
    if spec
        .count
        .is_some_and(|count| !(1..=MAX_COUNT).contains(&count))
    {
        faults.push(Fault::new("/count", "must be 1 to 1,000,000"));
    }
    let latest = now.saturating_add(MAX_SECONDS);
    if spec.expires_at.is_some_and(|at| at <= now || at > latest) {
        let message = "must be later than now, by 366 days at most";
        faults.push(Fault::new("/expires_at", message));
    }
    match (&spec.agent, spec.run_id) {
        (None, None) => {
            let message = "is required: name the agent, or a run of the conversation in `run_id`";
            faults.push(Fault::new("/agent", message));
        }
        (Some(_), Some(_)) => {
            let message = "must be absent with `agent`: the run names its agent";
            faults.push(Fault::new("/run_id", message));
        }
        _ => {}
    }
    faults
}
