//! The rule that allows a host call, for the audit log.

use super::{AuthorizationSnapshot, Decision};

/// Rule of calls that need no grant.
const OPEN: &str = "open to every run";
/// Rule of calls whose decision the snapshot does not name.
const GRANTED: &str = "granted by the run's snapshot";

/// The decision that an audited call needs.
pub(super) struct NeededDecision<'a> {
    pub(super) kind: &'static str,
    pub(super) id: &'a str,
    pub(super) operation: &'a str,
}

impl AuthorizationSnapshot {
    /// Returns the rule that allows an audited call: that of its decision, for example
    /// `resource_policy.tools allows it`.
    pub fn allowing_rule(&self, action: &str, resource: &str, operation: &str) -> String {
        let Some(needed) = needed(action, resource, operation) else {
            return OPEN.to_owned();
        };
        let is_it = |one: &&Decision| {
            one.granted
                && one.kind == needed.kind
                && one.id == needed.id
                && one.operation == needed.operation
        };
        let decision = self.decisions.iter().find(is_it);
        decision.map_or_else(|| GRANTED.to_owned(), |decision| decision.rule.to_string())
    }
}

/// The decision that allows or denies an audited call. `None`: it needs no grant.
pub(super) fn needed<'a>(
    action: &str,
    resource: &'a str,
    operation: &'a str,
) -> Option<NeededDecision<'a>> {
    let (kind, id, operation) = match action {
        "call_tool" | "get_tool_detail" => ("tool", resource, operation),
        "retrieve_knowledge_base" => ("knowledge_base", resource, operation),
        "models_list" => return None,
        _ if action.starts_with("models_") => ("model", resource, operation),
        "child_run_start" => ("agent", resource, "call"),
        "history_page" | "history_search" => ("history", "conversation", operation),
        "event_get" | "event_page" => ("events", "conversation", operation),
        "run_list" => ("run", "conversation", operation),
        "steering_pull" => ("steering", "conversation", operation),
        "prompt_get" => ("prompt", "effective", operation),
        "interaction_get" => ("interactions", "delivery", "request"),
        "wake_request" | "wake_cancel" => ("schedules", "agent", "wake"),
        "platform_action_request" => ("platform_api", resource, "request"),
        "artifact_metadata" | "artifact_read" | "artifact_create" => ("artifact", "run", operation),
        "checkpoint_get" | "checkpoint_put" => ("state", resource, operation),
        _ if action.starts_with("storage_") => ("storage", resource, resource),
        _ if action.starts_with("state_") => {
            // Resources of state are a scope, or a scope and a key.
            let scope = resource.split('/').next().unwrap_or_default();
            ("state", scope, scope)
        }
        _ => return None,
    };
    Some(NeededDecision {
        kind,
        id,
        operation,
    })
}
