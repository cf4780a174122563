//! Token usage, under the names and pointers that platforms use.

use protocol::JsonObject;
use protocol::message::LlmTokenUsage;
use serde_json::Value;

const PROMPT: [&str; 5] = [
    "prompt_tokens",
    "input_tokens",
    "input_count",
    "inputTokenCount",
    "inputTokens",
];
const COMPLETION: [&str; 5] = [
    "completion_tokens",
    "output_tokens",
    "output_count",
    "outputTokenCount",
    "outputTokens",
];
const TOTAL: [&str; 5] = [
    "total_tokens",
    "token_count",
    "total_count",
    "totalTokenCount",
    "totalTokens",
];
/// Maximum further members that are stored.
const MAX_FURTHER: usize = 32;

/// The usage in a payload: `usage`, `metadata.usage`, `data.usage`, `data`, or the payload itself. `None` without
/// counts.
pub fn usage_in(payload: &Value) -> Option<LlmTokenUsage> {
    let data = &payload["data"];
    let stated = [
        &payload["usage"],
        &payload["metadata"]["usage"],
        &data["usage"],
    ];
    let stated = stated.into_iter().find_map(usage_of);
    // The other members of these objects are not usage, so keep the counts only.
    let counts_in = |source| {
        usage_of(source).map(|usage| LlmTokenUsage {
            further: JsonObject::new(),
            ..usage
        })
    };
    stated.or_else(|| [data, payload].into_iter().find_map(counts_in))
}

/// The usage in an object. `None` without counts.
pub fn usage_of(usage: &Value) -> Option<LlmTokenUsage> {
    let members = usage.as_object()?;
    let of = |names: [&str; 5]| names.iter().find_map(|name| count(members.get(*name)?));
    let (prompt_tokens, completion_tokens) = (of(PROMPT), of(COMPLETION));
    let sum = || Some(prompt_tokens?.saturating_add(completion_tokens?));
    let total_tokens = of(TOTAL).or_else(sum);
    // An object without any count is no usage at all.
    prompt_tokens.or(completion_tokens).or(total_tokens)?;
    Some(LlmTokenUsage {
        prompt_tokens,
        completion_tokens,
        total_tokens,
        further: further(members),
    })
}

/// The sum of several usages. Further members remain only if there is one usage.
pub fn sum(usages: impl IntoIterator<Item = LlmTokenUsage>) -> Option<LlmTokenUsage> {
    let add = |a: Option<i64>, b: Option<i64>| match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (a, b) => a.or(b),
    };
    usages.into_iter().reduce(|all, one| LlmTokenUsage {
        prompt_tokens: add(all.prompt_tokens, one.prompt_tokens),
        completion_tokens: add(all.completion_tokens, one.completion_tokens),
        total_tokens: add(all.total_tokens, one.total_tokens),
        // Prices and latencies have no defined sum.
        further: JsonObject::new(),
    })
}

/// Counts and other short facts, without texts of an answer.
fn further(usage: &JsonObject) -> JsonObject {
    let is_named = |name: &str| [PROMPT, COMPLETION, TOTAL].concat().contains(&name);
    let is_short = |value: &Value| match value {
        Value::Number(_) => true,
        Value::String(text) => text.len() <= 64,
        Value::Object(members) => members.len() <= 16 && members.values().all(Value::is_number),
        _ => false,
    };
    let selected = usage
        .iter()
        .filter(|(name, value)| !is_named(name) && is_short(value));
    let selected = selected.map(|(name, value)| (name.clone(), value.clone()));
    selected.take(MAX_FURTHER).collect()
}

/// A count: an integer of at least 0, or a text of one.
#[expect(
    clippy::cast_possible_truncation,
    reason = "checked for a zero fraction and a small size"
)]
fn count(value: &Value) -> Option<i64> {
    let integer =
        // Some platforms send counts as floats such as `12.0`.
        |number: f64| (number.fract() == 0.0 && number.abs() < 1e15).then_some(number as i64);
    let number = value.as_i64().or_else(|| integer(value.as_f64()?));
    let number = number.or_else(|| value.as_str()?.trim().parse().ok());
    number.filter(|number| *number >= 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds_counts_under_any_name() {
        for (payload, expected) in [
            (
                json!({"usage": {"prompt_tokens": 1, "completion_tokens": 2}}),
                Some((1, 2, 3)),
            ),
            (
                json!({"metadata": {"usage": {"input_tokens": "1", "output_tokens": 2.0, "total_tokens": 9}}}),
                Some((1, 2, 9)),
            ),
            (
                json!({"data": {"usage": {"input_count": 1, "output_count": 2, "token_count": 3}}}),
                Some((1, 2, 3)),
            ),
            (
                json!({"data": {"inputTokenCount": 1, "outputTokenCount": 2}}),
                Some((1, 2, 3)),
            ),
            (json!({"usage": null, "text": "a"}), None),
            (json!({"usage": {"prompt_tokens": -1}}), None),
        ] {
            let usage = usage_in(&payload);
            let counts = usage.map(|usage| {
                (
                    usage.prompt_tokens.unwrap(),
                    usage.completion_tokens.unwrap(),
                    usage.total_tokens.unwrap(),
                )
            });
            assert_eq!(counts, expected, "{payload}");
        }
    }

    #[test]
    fn sums_the_usage_of_several_calls() {
        let usages = [
            json!({"inputTokens": 1, "outputTokens": 2}),
            json!({"total_tokens": 4}),
        ];
        let all = sum(usages.iter().filter_map(usage_of)).unwrap();
        assert_eq!(
            (all.prompt_tokens, all.completion_tokens, all.total_tokens),
            (Some(1), Some(2), Some(7))
        );
        assert_eq!(sum([]), None);
    }

    #[test]
    fn keeps_further_facts_without_texts() {
        let payload = json!({"total_tokens": 3, "currency": "USD", "answer": "a".repeat(100), "details": {"cached": 1}});
        let usage = usage_of(&payload).unwrap();
        assert_eq!(
            Value::Object(usage.further),
            json!({"currency": "USD", "details": {"cached": 1}})
        );
    }
}
