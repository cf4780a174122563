//! Least rights: the grants of an agent's policy next to the calls of its runs (`docs/agents.md`).
//!
//! Policies are judged in their JSON form, `{"resource_policy", "state_policy"}`, so that each list has one code path.

use std::collections::{BTreeMap, BTreeSet};

use protocol::admin::{ToolPolicy, ToolRule};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::audited::{NeededDecision, needed};
use crate::tool_policy::{matches_tool, rule_for};

/// The lists of a policy that calls are judged by, as JSON pointers. The calls of other lists, such as `skills`, do not
/// name the entry that allowed them.
const LISTS: [&str; 9] = [
    "/resource_policy/models",
    "/resource_policy/tools",
    "/resource_policy/knowledge_bases",
    "/resource_policy/storage",
    "/resource_policy/history",
    "/resource_policy/events",
    "/resource_policy/artifacts",
    "/resource_policy/schedules",
    "/state_policy/scopes",
];

/// Host API calls of an agent's runs with the same target and decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallSum {
    pub action: String,
    pub resource: String,
    pub operation: String,
    pub allowed: bool,
    /// The last rule of these calls in alphabetical order.
    pub rule: String,
    pub calls: u64,
    /// Epoch milliseconds.
    pub first_at: i64,
    pub last_at: i64,
}

/// An entry of a policy, and the allowed calls that needed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantUse {
    /// JSON pointer of the list.
    pub list: &'static str,
    pub entry: String,
    pub calls: u64,
    /// Epoch milliseconds; absent without a call.
    pub first_at: Option<i64>,
    pub last_at: Option<i64>,
}

/// A list of the policy, replaced by its used entries.
#[derive(Clone, Debug, PartialEq)]
pub struct ListChange {
    /// JSON pointer of the list.
    pub list: &'static str,
    pub value: Value,
}

/// Use of each grant, and the changes that remove those without a use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RightsAdvice {
    pub grants: Vec<GrantUse>,
    pub changes: Vec<ListChange>,
}

/// An entry that a policy must have to allow a call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NeededEntry {
    list: &'static str,
    entry: String,
}

impl CallSum {
    /// The entry of a policy that these calls need. `None`: no list decides them.
    fn needed_entry(&self) -> Option<NeededEntry> {
        let NeededDecision {
            kind,
            id,
            operation,
        } = needed(&self.action, &self.resource, &self.operation)?;
        let (list, entry) = match kind {
            "model" => ("/resource_policy/models", id),
            "tool" => ("/resource_policy/tools", id),
            "knowledge_base" => ("/resource_policy/knowledge_bases", id),
            "storage" => ("/resource_policy/storage", id),
            "state" => ("/state_policy/scopes", id),
            "history" => ("/resource_policy/history", operation),
            "events" => ("/resource_policy/events", operation),
            "artifact" => ("/resource_policy/artifacts", operation),
            "schedules" => ("/resource_policy/schedules", operation),
            _ => return None,
        };
        let entry = entry.to_owned();
        Some(NeededEntry { list, entry })
    }
}

/// Compares a policy with the allowed calls of its runs.
pub fn advise(policies: &Value, calls: &[CallSum]) -> RightsAdvice {
    let mut used = BTreeMap::<NeededEntry, GrantUse>::new();
    for call in calls.iter().filter(|call| call.allowed) {
        let Some(needed) = call.needed_entry() else {
            continue;
        };
        // Calls of an earlier policy are no use of this one.
        if !has_entry(policies, &needed) {
            continue;
        }
        let sum = used
            .entry(needed.clone())
            .or_insert_with(|| GrantUse::unused(needed.list, needed.entry));
        sum.calls += call.calls;
        sum.first_at = Some(
            sum.first_at
                .map_or(call.first_at, |at| at.min(call.first_at)),
        );
        sum.last_at = sum.last_at.max(Some(call.last_at));
    }
    let mut advice = RightsAdvice::default();
    for list in LISTS {
        let of_list: Vec<_> = used.values().filter(|one| one.list == list).collect();
        let names: BTreeSet<_> = of_list.iter().map(|one| one.entry.as_str()).collect();
        let unused = entries(policies, list).filter(|entry| !is_used(entry, &names));
        let unused = unused.map(|entry| GrantUse::unused(list, entry.to_owned()));
        advice.grants.extend(of_list.iter().copied().cloned());
        advice.grants.extend(unused);
        if let Some(value) = narrowed(policies, list, &names) {
            advice.changes.push(ListChange { list, value });
        }
    }
    advice
}

/// The groups of past calls that another policy decides differently.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyDifference<'a> {
    /// Allowed calls that it would deny.
    pub denied: Vec<&'a CallSum>,
    /// Denied calls that it would allow, unless another layer denies them.
    pub allowed: Vec<&'a CallSum>,
}

/// Compares the decisions of two policies about past calls.
pub fn compare<'a>(before: &Value, after: &Value, calls: &'a [CallSum]) -> PolicyDifference<'a> {
    let mut difference = PolicyDifference::default();
    for call in calls {
        let Some(needed) = call.needed_entry() else {
            continue;
        };
        match (call.allowed, has_entry(after, &needed)) {
            (true, false) => difference.denied.push(call),
            // Another layer denied what the policy before allowed.
            (false, true) if !has_entry(before, &needed) => difference.allowed.push(call),
            _ => {}
        }
    }
    difference
}

impl GrantUse {
    fn unused(list: &'static str, entry: String) -> Self {
        Self {
            list,
            entry,
            calls: 0,
            first_at: None,
            last_at: None,
        }
    }
}

fn has_entry(policies: &Value, needed: &NeededEntry) -> bool {
    if needed.list.starts_with("/state_policy") && policies["state_policy"]["enabled"] == false {
        return false;
    }
    match policies.pointer(needed.list) {
        Some(Value::String(all)) => all == "*",
        Some(Value::Array(listed)) => listed.iter().any(|one| *one == needed.entry.as_str()),
        // Only tools have rules.
        Some(rules) => ToolPolicy::deserialize(rules)
            .is_ok_and(|policy| rule_for(&policy, &needed.entry) < ToolRule::Deny),
        None => false,
    }
}

/// The entries of a list that allow something; `*` stands for all.
fn entries<'a>(policies: &'a Value, list: &str) -> impl Iterator<Item = &'a str> {
    let found = policies.pointer(list);
    let listed = found.and_then(Value::as_array).into_iter().flatten();
    let rules = found.and_then(Value::as_object).into_iter().flatten();
    let patterns = rules.filter(|(_, rule)| *rule != "deny");
    let patterns = patterns.map(|(pattern, _)| pattern.as_str());
    listed
        .chain(found)
        .filter_map(Value::as_str)
        .chain(patterns)
}

/// True if a used name is the entry, or a tool of its pattern.
fn is_used(entry: &str, used: &BTreeSet<&str>) -> bool {
    // `*` as a list of its own stands for names that become entries.
    entry != "*" && used.iter().any(|name| matches_tool(entry, name))
}

/// The list with its used entries only. `None`: it stays as it is.
fn narrowed(policies: &Value, list: &'static str, used: &BTreeSet<&str>) -> Option<Value> {
    let value = match policies.pointer(list)? {
        // Each name that `*` stood for becomes an entry of its own.
        Value::String(_) => json!(used),
        Value::Array(listed) => {
            let is_needed = |one: &&Value| {
                let entry = one.as_str().unwrap_or_default();
                // The audit log does not tell pages of other conversations from those of the run's own.
                let opens_others = entry == "workspace" && list == "/resource_policy/history";
                used.contains(entry) || (opens_others && !used.is_empty())
            };
            let left: Vec<_> = listed.iter().filter(is_needed).collect();
            if left.len() == listed.len() {
                return None;
            }
            json!(left)
        }
        Value::Object(rules) => {
            let mut left = rules.clone();
            // A rule that denies may narrow a pattern that stays.
            left.retain(|pattern, rule| *rule == "deny" || is_used(pattern, used));
            if left.len() == rules.len() {
                return None;
            }
            Value::Object(left)
        }
        _ => return None,
    };
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(action: &str, resource: &str, operation: &str) -> CallSum {
        CallSum {
            action: action.to_owned(),
            resource: resource.to_owned(),
            operation: operation.to_owned(),
            allowed: true,
            rule: String::new(),
            calls: 3,
            first_at: 1_000,
            last_at: 2_000,
        }
    }

    fn denied(action: &str, resource: &str, operation: &str) -> CallSum {
        CallSum {
            allowed: false,
            ..call(action, resource, operation)
        }
    }

    fn policies() -> Value {
        json!({
            "resource_policy": {
                "models": "*", "tools": ["search", "mail"], "knowledge_bases": [], "skills": ["s"],
                "storage": ["plugin"], "history": ["page", "search", "workspace"], "events": [], "artifacts": ["read"],
            },
            "state_policy": {"enabled": true, "scopes": ["conversation", "actor"]},
        })
    }

    #[test]
    fn advice_drops_unused_entries() {
        let calls = [
            call("models_stream", "gpt", "stream"),
            call("models_invoke", "gpt", "invoke"),
            call("call_tool", "search", "call"),
            // A tool that the policy no longer names.
            call("call_tool", "gone", "call"),
            denied("call_tool", "mail", "call"),
            call("history_page", "", "page"),
            call("state_get", "conversation", "get"),
            call("run_get", "", "get"),
        ];
        let advice = advise(&policies(), &calls);
        let changes: Vec<_> = advice
            .changes
            .iter()
            .map(|one| (one.list, &one.value))
            .collect();
        assert_eq!(
            changes,
            [
                ("/resource_policy/models", &json!(["gpt"])),
                ("/resource_policy/tools", &json!(["search"])),
                ("/resource_policy/storage", &json!([])),
                ("/resource_policy/history", &json!(["page", "workspace"])),
                ("/resource_policy/artifacts", &json!([])),
                ("/state_policy/scopes", &json!(["conversation"])),
            ]
        );
        let uses: Vec<_> = advice
            .grants
            .iter()
            .map(|one| (one.entry.as_str(), one.calls))
            .collect();
        let expected = [
            ("gpt", 6),
            ("*", 0),
            ("search", 3),
            ("mail", 0),
            ("plugin", 0),
            ("page", 3),
            ("search", 0),
            ("workspace", 0),
            ("read", 0),
            ("conversation", 3),
            ("actor", 0),
        ];
        assert_eq!(uses, expected);
    }

    #[test]
    fn advised_policy_denies_no_past_call() {
        let calls = [
            call("models_invoke", "gpt", "invoke"),
            call("call_tool", "mail", "call"),
            call("history_search", "", "search"),
            call("storage_get", "plugin", "get"),
            call("state_set", "actor", "set"),
        ];
        let mut after = policies();
        for change in advise(&after, &calls).changes {
            *after.pointer_mut(change.list).unwrap() = change.value;
        }
        assert_eq!(
            compare(&policies(), &after, &calls),
            PolicyDifference::default()
        );
        assert!(advise(&after, &calls).changes.is_empty());
    }

    #[test]
    fn advice_keeps_denying_rules_of_tools() {
        let mut rules = policies();
        rules["resource_policy"]["tools"] =
            json!({"github:*": "allow", "mail": "ask", "idle:*": "allow", "github:delete": "deny"});
        let calls = [
            call("call_tool", "github:read", "call"),
            call("call_tool", "mail", "call"),
            // Denied by the policy of today.
            call("call_tool", "github:delete", "call"),
        ];
        let advice = advise(&rules, &calls);
        let tools = advice
            .changes
            .iter()
            .find(|one| one.list == "/resource_policy/tools");
        assert_eq!(
            tools.map(|one| &one.value),
            Some(&json!({"github:*": "allow", "mail": "ask", "github:delete": "deny"}))
        );
        let unused = advice
            .grants
            .iter()
            .filter(|one| one.list == "/resource_policy/tools" && one.calls == 0);
        assert_eq!(
            unused.map(|one| one.entry.as_str()).collect::<Vec<_>>(),
            ["idle:*"]
        );
    }

    #[test]
    fn compares_decisions_of_two_policies() {
        let mut after = policies();
        after["resource_policy"]["tools"] = json!(["search", "new"]);
        after["state_policy"]["enabled"] = json!(false);
        let calls = [
            call("call_tool", "mail", "call"),
            call("call_tool", "search", "call"),
            call("state_get", "actor", "get"),
            denied("call_tool", "new", "call"),
            denied("call_tool", "other", "call"),
            // Denied by another layer: the policy before named it.
            denied("call_tool", "search", "call"),
        ];
        let difference = compare(&policies(), &after, &calls);
        assert_eq!(difference.denied, [&calls[0], &calls[2]]);
        assert_eq!(difference.allowed, [&calls[3]]);
    }
}
