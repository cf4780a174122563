//! Rules for the arguments of a call.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use protocol::admin::Fault;
use protocol::approval::{ArgumentRule, ArgumentRules, NumberBounds};
use serde_json::{Number, Value};

use crate::canonical::canonical_json;
use crate::event::contains_nul;
use crate::form::escape_pointer;

/// Maximum rules of an approval.
const MAX_RULES: usize = 50;
/// Maximum values of `one_of`.
const MAX_VALUES: usize = 100;
/// Maximum bytes of all rules, as JSON.
pub(super) const RULES_BYTES: usize = 32 * 1024;
/// Characters that may follow a prefix, in addition to letters and digits. None of them ends a path, quotes, expands or
/// starts another command in a shell.
const AFTER_PREFIX: &str = " _-./=:,+@";
/// Largest integer up to which each integer is a `f64` of its own.
const EXACT_F64: f64 = 9_007_199_254_740_992.0;

/// Returns all faults of rules. `at`: pointer of their object.
pub fn check_rules(rules: &ArgumentRules, at: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    let json = canonical_json(rules);
    if rules.len() > MAX_RULES || json.len() > RULES_BYTES {
        let message = format!("must have {MAX_RULES} rules and 32 KiB at most");
        faults.push(Fault::new(at, message));
        return faults;
    }
    if contains_nul(&json) {
        faults.push(Fault::new(at, "must not contain the character U+0000"));
    }
    for (pointer, rule) in rules {
        let at = format!("{at}/{}", escape_pointer(pointer));
        if !is_pointer(pointer) {
            let message =
                "must be a JSON pointer: \"\", or / before each name, with ~0 and ~1 for ~ and /";
            faults.push(Fault::new(&at, message));
        }
        if let Some(message) = rule_fault(rule) {
            faults.push(Fault::new(&at, message));
        }
    }
    faults
}

fn is_pointer(text: &str) -> bool {
    let mut escapes = text.split('~').skip(1);
    (text.is_empty() || text.starts_with('/'))
        && escapes.all(|rest| rest.starts_with('0') || rest.starts_with('1'))
}

fn rule_fault(rule: &ArgumentRule) -> Option<&'static str> {
    match rule {
        ArgumentRule::Any(false) => Some("`any` must be true; leave the rule out instead"),
        ArgumentRule::Prefix(prefix) if prefix.is_empty() => {
            Some("`prefix` must not be empty; use `any` for each value")
        }
        ArgumentRule::Prefix(prefix) => {
            has_parent_part(prefix).then_some("`prefix` must have no part `..`")
        }
        ArgumentRule::OneOf(values) if values.is_empty() || values.len() > MAX_VALUES => {
            Some("`one_of` must have 1 to 100 values")
        }
        ArgumentRule::Range(NumberBounds {
            min: None,
            max: None,
        }) => Some("`range` needs `min` or `max`"),
        ArgumentRule::Equals(_)
        | ArgumentRule::Any(true)
        | ArgumentRule::OneOf(_)
        | ArgumentRule::Range(_) => None,
    }
}

/// Returns true if the rules cover these arguments: each argument has a rule that holds, and each rule but `any` has its
/// argument.
pub fn covers(rules: &ArgumentRules, arguments: &Value) -> bool {
    let mut met = BTreeSet::new();
    if !covers_at(rules, String::new(), arguments, &mut met) {
        return false;
    }
    // A rule about an absent argument is a condition that does not hold.
    let is_met = |(pointer, rule): (&String, &ArgumentRule)| {
        matches!(rule, ArgumentRule::Any(_)) || met.contains(pointer.as_str())
    };
    rules.iter().all(is_met)
}

/// The depth of the recursion is that of the arguments, which the parser of the request bounds.
fn covers_at(
    rules: &ArgumentRules,
    pointer: String,
    value: &Value,
    met: &mut BTreeSet<String>,
) -> bool {
    if let Some(rule) = rules.get(&pointer) {
        let holds = holds(rule, value);
        met.insert(pointer);
        return holds;
    }
    match value {
        Value::Object(members) if !members.is_empty() || pointer.is_empty() => {
            members.iter().all(|(name, value)| {
                let pointer = format!("{pointer}/{}", escape_pointer(name));
                covers_at(rules, pointer, value, met)
            })
        }
        Value::Array(items) if !items.is_empty() => items
            .iter()
            .enumerate()
            .all(|(index, value)| covers_at(rules, format!("{pointer}/{index}"), value, met)),
        // An argument without a rule is not covered.
        _ => false,
    }
}

fn holds(rule: &ArgumentRule, value: &Value) -> bool {
    match (rule, value) {
        (ArgumentRule::Any(any), _) => *any,
        (ArgumentRule::Equals(expected), value) => expected == value,
        (ArgumentRule::OneOf(values), value) => values.contains(value),
        (ArgumentRule::Prefix(prefix), Value::String(text)) => {
            let rest = text.strip_prefix(prefix.as_str());
            rest.is_some_and(|rest| rest.chars().all(is_harmless)) && !has_parent_part(text)
        }
        (ArgumentRule::Range(bounds), Value::Number(number)) => is_within(bounds, number),
        _ => false,
    }
}

/// Only ASCII and letters: other characters can look like a separator or become one by normalization.
fn is_harmless(letter: char) -> bool {
    letter.is_ascii_alphanumeric()
        || AFTER_PREFIX.contains(letter)
        || !letter.is_ascii() && letter.is_alphabetic()
}

/// True if a path or an option in the text climbs to a parent folder.
fn has_parent_part(text: &str) -> bool {
    let mut parts = text.split(['/', '\\', ' ', '=', ':', ',']);
    parts.any(|part| part == "..")
}

fn is_within(NumberBounds { min, max }: &NumberBounds, number: &Number) -> bool {
    let is_at_least = |bound: &Number| {
        matches!(
            compare(number, bound),
            Some(Ordering::Greater | Ordering::Equal)
        )
    };
    let is_at_most = |bound: &Number| {
        matches!(
            compare(number, bound),
            Some(Ordering::Less | Ordering::Equal)
        )
    };
    min.as_ref().is_none_or(is_at_least) && max.as_ref().is_none_or(is_at_most)
}

/// `None` if the comparison would be inexact.
fn compare(one: &Number, other: &Number) -> Option<Ordering> {
    let integer = |number: &Number| {
        let signed = number.as_i64().map(i128::from);
        signed.or_else(|| number.as_u64().map(i128::from))
    };
    if let (Some(one), Some(other)) = (integer(one), integer(other)) {
        return Some(one.cmp(&other));
    }
    let (one, other) = (one.as_f64()?, other.as_f64()?);
    let is_exact = |number: f64| number.abs() <= EXACT_F64;
    (is_exact(one) && is_exact(other)).then(|| one.partial_cmp(&other))?
}
