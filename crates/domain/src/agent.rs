//! Validation of agent specifications.

use protocol::admin::{AgentSpec, Fault, RestartPoint, ScopeKind};
use protocol::manifest::AgentRunnerManifest;

use crate::form::{TIMEOUT, check_config, escape_pointer};
use crate::locale::check_locale;
use crate::own_limits::check_limits;
use crate::platform_action::{definition, unknown_action};
use crate::tool_policy::check_policy;

/// Maximum characters of an agent's description.
const DESCRIPTION_CHARS: usize = 1_000;
/// One year.
pub const MAX_IDLE_SECONDS: u64 = 31_536_000;

/// Returns all faults of a specification, without its runner.
pub fn check_agent(spec: &AgentSpec) -> Vec<Fault> {
    let mut faults = Vec::new();
    // Collects all faults: a client corrects its request in one round trip.
    let mut fault = |pointer: &str, message: &str| faults.push(Fault::new(pointer, message));
    if !is_name(&spec.name) {
        fault(
            "/name",
            "must have 1 to 128 bytes and no control characters",
        );
    }
    if let Some(description) = &spec.description
        && (description.is_empty() || description.chars().count() > DESCRIPTION_CHARS)
    {
        fault("/description", "must have 1 to 1,000 characters");
    }
    if spec.event_types.is_empty() {
        fault(
            "/event_types",
            "must name at least one event type, or \"*\"",
        );
    }
    if let Some(value) = spec.config.get(TIMEOUT)
        && !value.is_null()
        && !value.as_f64().is_some_and(|seconds| seconds >= 0.0)
    {
        fault(
            "/config/timeout",
            "must be a number of seconds; 0 or null selects the maximum",
        );
    }
    for (index, pattern) in spec.event_types.iter().enumerate() {
        // Only a suffix is a wildcard: event types match by prefix, and other stars would never match.
        let stem = pattern.strip_suffix(".*").unwrap_or(pattern);
        if pattern != "*" && (stem.is_empty() || stem.contains('*')) {
            let pointer = format!("/event_types/{index}");
            fault(
                &pointer,
                "must be an exact event type or a prefix that ends in .*",
            );
        }
    }
    let scope = &spec.scope;
    // Conversation scopes may be of any bot: conversations of events without a bot exist as well.
    let (needs_bot, needs_conversation) = match scope.kind {
        ScopeKind::Global | ScopeKind::Workspace => (Some(false), false),
        ScopeKind::Bot => (Some(true), false),
        ScopeKind::Conversation => (None, true),
    };
    if needs_bot.is_some_and(|needed| needed != scope.bot_id.is_some()) {
        fault(
            "/scope/bot_id",
            "is required for scope bot, and has no place in a wider one",
        );
    }
    if needs_conversation != scope.conversation_id.is_some() {
        fault(
            "/scope/conversation_id",
            "is required for scope conversation, and only there",
        );
    }
    if spec.retry.max > 5 {
        fault("/retry/max", "must be 0 to 5");
    }
    if spec.retry.from == RestartPoint::Checkpoint && spec.retry.on.is_empty() {
        fault(
            "/retry/from",
            "has no effect without `on`; set on = [\"runner.lost\"], or leave `from` out",
        );
    }
    let idle = spec.conversation_idle_seconds;
    if idle.is_some_and(|seconds| !(1..=MAX_IDLE_SECONDS).contains(&seconds)) {
        let message =
            "must be 1 to 31,536,000 seconds; leave it out for conversations without an end";
        faults.push(Fault::new("/conversation_idle_seconds", message));
    }
    for name in spec.delivery_policy.platform_actions.keys() {
        if definition(name).is_none() {
            let pointer = format!("/delivery_policy/platform_actions/{}", escape_pointer(name));
            faults.push(Fault::new(pointer, unknown_action(name)));
        }
    }
    faults.extend(check_policy(&spec.resource_policy.tools));
    faults.extend(spec.limits.iter().flat_map(check_limits));
    let (locale, timezone) = (spec.locale.as_deref(), spec.timezone.as_deref());
    faults.extend(check_locale("", locale, timezone));
    faults
}

/// Returns true for a valid name of an agent or endpoint.
pub fn is_name(text: &str) -> bool {
    (1..=128).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// Returns all faults of a specification against its runner's manifest.
pub fn check_agent_for(spec: &AgentSpec, manifest: &AgentRunnerManifest) -> Vec<Fault> {
    check_config(&manifest.config_schema, &spec.config)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(changes: &Value, pointers: &[&str]) {
        let mut body =
            json!({"name": "a", "event_types": ["message.received"], "runner_id": "plugin:a/b/c"});
        body.as_object_mut()
            .unwrap()
            .extend(changes.as_object().unwrap().clone());
        let spec: AgentSpec = serde_json::from_value(body).unwrap();
        let found: Vec<_> = check_agent(&spec)
            .into_iter()
            .map(|fault| fault.pointer)
            .collect();
        assert_eq!(found, pointers, "{changes}");
    }

    #[test]
    fn reports_all_faults_of_agent_specs() {
        check(&json!({}), &[]);
        check(&json!({"event_types": ["*", "group.*", "a.b"]}), &[]);
        check(
            &json!({"event_types": ["a.*.b", ".*"]}),
            &["/event_types/0", "/event_types/1"],
        );
        check(
            &json!({"scope": {"kind": "bot"}, "retry": {"max": 9}}),
            &["/scope/bot_id", "/retry/max"],
        );
        check(
            &json!({"scope": {"kind": "conversation"}}),
            &["/scope/conversation_id"],
        );
        check(
            &json!({"scope": {"kind": "conversation", "conversation_id": "c"}}),
            &[],
        );
        check(&json!({"concurrency": "steer"}), &[]);
        check(&json!({"limits": {"burst": 1}}), &["/limits/burst"]);
        check(&json!({"retry": {"from": "checkpoint"}}), &["/retry/from"]);
        let lost = json!({"retry": {"on": ["runner.lost"], "max": 1, "from": "checkpoint"}});
        check(&lost, &[]);
        check(
            &json!({"locale": "German!", "timezone": "+02:00"}),
            &["/locale", "/timezone"],
        );
        for (seconds, pointers) in [
            (0, &["/conversation_idle_seconds"][..]),
            (1, &[]),
            (MAX_IDLE_SECONDS, &[]),
            (MAX_IDLE_SECONDS + 1, &["/conversation_idle_seconds"]),
        ] {
            check(&json!({"conversation_idle_seconds": seconds}), pointers);
        }
    }
}
