//! Rules of an agent's policy for tools, and patterns of tool names.

use protocol::admin::{Fault, IdList, ToolPolicy, ToolRule};

use crate::form::escape_pointer;

/// Maximum entries of a policy.
const MAX_RULES: usize = 1_000;
/// Maximum bytes of a pattern: the longest name of a tool is shorter.
const PATTERN_BYTES: usize = 128;

/// A name, or the texts around the one `*` of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamePattern<'a> {
    Name(&'a str),
    Around(&'a str, &'a str),
}

impl<'a> NamePattern<'a> {
    fn of(text: &'a str) -> Self {
        match text.split_once('*') {
            Some((before, after)) => Self::Around(before, after),
            None => Self::Name(text),
        }
    }

    fn matches(self, name: &str) -> bool {
        match self {
            Self::Name(text) => text == name,
            // The parts must not overlap in the name.
            Self::Around(before, after) => name
                .strip_prefix(before)
                .is_some_and(|rest| rest.ends_with(after)),
        }
    }

    /// True if this pattern matches a part of what `other` matches.
    fn is_narrower(self, other: Self) -> bool {
        match (self, other) {
            (Self::Name(_), Self::Around(..)) => true,
            (Self::Around(before, after), Self::Around(wide_before, wide_after)) => {
                self != other && before.starts_with(wide_before) && after.ends_with(wide_after)
            }
            (_, Self::Name(_)) => false,
        }
    }
}

/// Returns true if `pattern`, a name or a text with one `*`, matches the name of a tool.
pub fn matches_tool(pattern: &str, name: &str) -> bool {
    NamePattern::of(pattern).matches(name)
}

/// Returns the fault of a pattern, if any.
pub fn pattern_fault(pattern: &str) -> Option<&'static str> {
    let is_plain = |letter: u8| letter.is_ascii_alphanumeric() || b"_-.:*".contains(&letter);
    if pattern.is_empty() || pattern.len() > PATTERN_BYTES || !pattern.bytes().all(is_plain) {
        return Some(
            "must be 1 to 128 letters, digits, `_`, `-`, `.` and `:`, with one `*` at most",
        );
    }
    (pattern.matches('*').count() > 1).then_some("must have one `*` at most")
}

/// Returns the rule of a policy for a tool. `Deny` without a matching entry.
pub fn rule_for(policy: &ToolPolicy, name: &str) -> ToolRule {
    matching_rule(policy, name).unwrap_or(ToolRule::Deny)
}

/// Returns the rule of the entries that match a tool. `None`: the policy has no entry for it.
pub fn matching_rule(policy: &ToolPolicy, name: &str) -> Option<ToolRule> {
    match policy {
        ToolPolicy::List(listed) => listed.names(name).then_some(ToolRule::Allow),
        ToolPolicy::Rules(rules) => {
            let matching = || {
                let patterns = rules.iter();
                let patterns = patterns.map(|(text, rule)| (NamePattern::of(text), *rule));
                patterns.filter(|(pattern, _)| pattern.matches(name))
            };
            let is_replaced =
                |pattern: NamePattern<'_>| matching().any(|(other, _)| other.is_narrower(pattern));
            // Entries that do not contain each other are equally narrow: the strictest of them wins.
            let narrowest = matching().filter(|(pattern, _)| !is_replaced(*pattern));
            narrowest.map(|(_, rule)| rule).max()
        }
    }
}

/// Returns true if the policy names the tool itself, without a pattern, and does not deny it.
pub fn lists_by_name(policy: &ToolPolicy, name: &str) -> bool {
    match policy {
        ToolPolicy::List(listed) => match listed {
            IdList::All(_) => false,
            IdList::Ids(ids) => ids.iter().any(|id| id == name),
        },
        ToolPolicy::Rules(rules) => rules.get(name).is_some_and(|rule| *rule < ToolRule::Deny),
    }
}

/// Returns all faults of a policy, with pointers into the agent.
pub fn check_policy(policy: &ToolPolicy) -> Vec<Fault> {
    let ToolPolicy::Rules(rules) = policy else {
        return Vec::new();
    };
    let at = "/resource_policy/tools";
    if rules.len() > MAX_RULES {
        let message = format!("must have at most {MAX_RULES} entries");
        return vec![Fault::new(at, message)];
    }
    let faults = rules.keys().filter_map(|pattern| {
        let pointer = format!("{at}/{}", escape_pointer(pattern));
        Some(Fault::new(pointer, pattern_fault(pattern)?))
    });
    faults.collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn policy(value: Value) -> ToolPolicy {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn narrower_entries_win_then_stricter_ones() {
        let rules = policy(json!({
            "*": "deny", "github_*": "allow", "*_delete": "deny", "github_repo_delete": "ask", "mail_send": "ask",
            "github_issue_*": "ask", "github_*_list": "allow",
        }));
        for (name, expected) in [
            ("other", ToolRule::Deny),
            ("github_search", ToolRule::Allow),
            // Neither of `github_*` and `*_delete` contains the other.
            ("github_delete", ToolRule::Deny),
            ("github_repo_delete", ToolRule::Ask),
            ("mail_send", ToolRule::Ask),
            ("mail_sender", ToolRule::Deny),
            ("github_issue_open", ToolRule::Ask),
            ("github_issue_list", ToolRule::Ask),
            ("github_repo_list", ToolRule::Allow),
            ("github_", ToolRule::Allow),
            ("github", ToolRule::Deny),
        ] {
            assert_eq!(rule_for(&rules, name), expected, "{name}");
        }
    }

    #[test]
    fn lists_allow_and_missing_entries_deny() {
        for (value, name, expected) in [
            (json!(["a"]), "a", ToolRule::Allow),
            (json!(["a"]), "b", ToolRule::Deny),
            (json!(["a*"]), "ab", ToolRule::Deny),
            (json!("*"), "b", ToolRule::Allow),
            (json!({}), "b", ToolRule::Deny),
            (json!({"a": "allow"}), "b", ToolRule::Deny),
        ] {
            assert_eq!(rule_for(&policy(value.clone()), name), expected, "{value}");
        }
    }

    #[test]
    fn parts_of_a_pattern_do_not_overlap() {
        assert!(matches_tool("ab*ba", "abba"));
        assert!(!matches_tool("aba*ba", "aba"));
        assert!(!matches_tool("ab*ba", "aba"));
    }

    #[test]
    fn faults_name_the_entry() {
        let rules = policy(
            json!({"a*b*": "ask", "": "ask", "ok_*": "ask", "\u{430}": "ask", "a/b": "deny"}),
        );
        let faults = check_policy(&rules);
        let pointers: Vec<_> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
        let expected = ["", "a*b*", "a~1b", "\u{430}"];
        assert_eq!(
            pointers,
            expected.map(|name| format!("/resource_policy/tools/{name}"))
        );
        let refused = serde_json::from_value::<ToolPolicy>(json!({"a": "maybe"})).unwrap_err();
        assert!(
            refused.to_string().contains("allow, ask or deny"),
            "{refused}"
        );
    }

    #[test]
    fn own_names_are_explicit() {
        let rules = policy(json!({"register_*": "allow"}));
        assert!(!lists_by_name(&rules, "register_skill"));
        assert!(lists_by_name(
            &policy(json!({"register_skill": "ask"})),
            "register_skill"
        ));
        assert!(!lists_by_name(
            &policy(json!({"register_skill": "deny"})),
            "register_skill"
        ));
    }

    proptest! {
        /// An exact entry decides alone, whatever patterns exist.
        #[test]
        fn exact_entries_decide_alone(patterns in prop::collection::btree_map("[ab]{0,2}\\*[ab]{0,2}", 0..3_u8, 0..6)) {
            let rules = [ToolRule::Allow, ToolRule::Ask, ToolRule::Deny];
            for exact in rules {
                let mut entries: std::collections::BTreeMap<_, _> =
                    patterns.iter().map(|(text, at)| (text.clone(), rules[usize::from(*at)])).collect();
                entries.insert("abba".to_owned(), exact);
                prop_assert_eq!(rule_for(&ToolPolicy::Rules(entries), "abba"), exact);
            }
        }
    }
}
