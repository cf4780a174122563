//! Token usage in the formats of different providers.

mod parts;

use protocol::JsonObject;
use protocol::message::LlmTokenUsage;
use serde_json::Value;

use parts::{add_chat_details, cached_separately, reasoning};

pub use parts::TokenParts;

/// Reads a count. Some providers send `1200.0`, or a text.
#[expect(
    clippy::cast_possible_truncation,
    reason = "it has no fraction and is within what a double counts exactly"
)]
pub fn count(value: &Value) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let integer = value.as_i64().or_else(|| {
        let number = value
            .as_f64()
            .filter(|number| number.fract() == 0.0 && number.abs() < EXACT);
        number.map(|number| number as i64)
    });
    // Some gateways send counts as text.
    let integer = integer.or_else(|| value.as_str()?.trim().parse().ok());
    // A negative count would reduce what budgets have used.
    integer.filter(|count| *count >= 0)
}

/// Reads token usage. `None`: absent or invalid.
pub fn usage(usage: &Value) -> Option<LlmTokenUsage> {
    let provider_usage = usage.as_object()?;
    let of = |names: [&str; 2]| {
        // Both names of a count occur, sometimes with 0 in one.
        names
            .iter()
            .filter_map(|name| count(provider_usage.get(*name)?))
            .max()
    };
    let mut further = provider_usage.clone();
    // These have fields of their own; the others are details.
    for name in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        further.remove(name);
    }
    let total_tokens = of(["total_tokens", "total_tokens"]);
    let prompt_tokens = total_prompt(provider_usage, of(["prompt_tokens", "input_tokens"]));
    let completion_tokens = of(["completion_tokens", "output_tokens"]);
    let mut read = LlmTokenUsage {
        prompt_tokens,
        completion_tokens: total_completion(
            provider_usage,
            prompt_tokens,
            completion_tokens,
            total_tokens,
        ),
        total_tokens,
        further,
    };
    add_chat_details(&mut read);
    let counts = [
        read.prompt_tokens,
        read.completion_tokens,
        read.total_tokens,
    ];
    counts.iter().any(Option::is_some).then_some(read)
}

/// All prompt tokens. Anthropic counts cached tokens separately from `input_tokens`, and so do some servers under
/// OpenAI's names.
fn total_prompt(provider_usage: &JsonObject, prompt: Option<i64>) -> Option<i64> {
    let cached = cached_separately(provider_usage);
    // OpenAI's count includes cached tokens, so a smaller count cannot.
    let is_separate = !provider_usage.contains_key("prompt_tokens") || cached > prompt;
    match (prompt, cached) {
        (Some(prompt), Some(cached)) if is_separate => Some(prompt.saturating_add(cached)),
        (prompt, cached) => prompt.or(cached),
    }
}

/// All completion tokens. Some providers count reasoning separately from the completion, which only the total shows.
fn total_completion(
    provider_usage: &JsonObject,
    prompt: Option<i64>,
    completion: Option<i64>,
    total: Option<i64>,
) -> Option<i64> {
    // Without a total, the count of the provider is the best information.
    let completion = completion?;
    let with_reasoning = completion.saturating_add(reasoning(provider_usage));
    // An unknown prompt leaves no rest.
    let rest = total
        .unwrap_or(0)
        .saturating_sub(prompt.unwrap_or(i64::MAX));
    // Never more than the reasoning explains: a total may include other tokens.
    Some(completion.max(rest.min(with_reasoning)))
}

/// Reads the token usage of a completion or chunk from all its known positions.
pub fn usage_of(answer: &JsonObject) -> Option<LlmTokenUsage> {
    let in_choice =
        |answer: &JsonObject| answer.get("choices")?.get(0)?.get("usage").and_then(usage);
    // Groq sends usage in a member of its own.
    let of_groq = |answer: &JsonObject| answer.get("x_groq")?.get("usage").and_then(usage);
    // Several positions may be present; the largest counts win.
    let mut merged = answer.get("usage").and_then(usage);
    for provider_usage in [in_choice(answer), of_groq(answer)].into_iter().flatten() {
        add_usage(&mut merged, provider_usage);
    }
    merged
}

/// Merges later usage. Smaller numbers are ignored.
pub fn add_usage(merged: &mut Option<LlmTokenUsage>, provider_usage: LlmTokenUsage) {
    let Some(merged) = merged else {
        *merged = Some(provider_usage);
        return;
        // Providers report running totals; a late chunk may have older counts.
    };
    merged.prompt_tokens = merged.prompt_tokens.max(provider_usage.prompt_tokens);
    merged.completion_tokens = merged
        .completion_tokens
        .max(provider_usage.completion_tokens);
    // A total below the sum would hide tokens from the budgets.
    let sum = merged
        .prompt_tokens
        .unwrap_or(0)
        .saturating_add(merged.completion_tokens.unwrap_or(0));
    let total = merged.total_tokens.max(provider_usage.total_tokens);
    merged.total_tokens = total.map(|total| total.max(sum));
    for (name, value) in provider_usage.further {
        merge_details(&mut merged.further, name, value);
    }
}

/// Merges a provider's later usage of the same answer. Smaller numbers are ignored.
pub fn merge_usage(merged: &mut JsonObject, provider_usage: &Value) {
    for (name, value) in provider_usage.as_object().into_iter().flatten() {
        merge_details(merged, name.clone(), value.clone());
    }
}

/// Details are counts or objects of counts.
fn merge_details(merged: &mut JsonObject, name: String, update: Value) {
    match (merged.get_mut(&name), update) {
        (Some(Value::Object(merged)), Value::Object(update)) => {
            for (name, value) in update {
                merge_details(merged, name, value);
            }
        }
        (Some(merged), update) if update.is_null() || count(merged) > count(&update) => {}
        (_, update) => {
            merged.insert(name, update);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn counts(usage: Option<LlmTokenUsage>) -> Option<[Option<i64>; 3]> {
        usage.map(|usage| {
            [
                usage.prompt_tokens,
                usage.completion_tokens,
                usage.total_tokens,
            ]
        })
    }

    #[test]
    fn reads_token_counts_in_all_formats() {
        for (provider_usage, expected) in [
            (
                json!({"prompt_tokens": 3, "completion_tokens": 4}),
                Some([Some(3), Some(4), None]),
            ),
            (
                json!({"input_tokens": 1200.0, "output_tokens": "7"}),
                Some([Some(1200), Some(7), None]),
            ),
            (
                json!({"prompt_tokens": 0, "input_tokens": 9}),
                Some([Some(9), None, None]),
            ),
            (
                json!({"total_tokens": 5, "prompt_tokens": -1}),
                Some([None, None, Some(5)]),
            ),
            (json!({"prompt_tokens": 1.5}), None),
            (json!({"prompt_tokens": 1e300}), None),
            (json!({"x": 1}), None),
            (json!([1]), None),
        ] {
            assert_eq!(counts(usage(&provider_usage)), expected, "{provider_usage}");
        }
        let usage = json!({"prompt_tokens": 2, "completion_tokens": 1});
        for answer in [
            json!({"usage": usage}),
            json!({"usage": null, "choices": [{"usage": usage}]}),
            json!({"choices": [], "x_groq": {"usage": usage}}),
        ] {
            let provider_usage = usage_of(answer.as_object().unwrap());
            assert_eq!(
                counts(provider_usage),
                Some([Some(2), Some(1), None]),
                "{answer}"
            );
        }
    }

    #[test]
    fn ignores_smaller_later_counts() {
        let mut merged = None;
        for provider_usage in [
            json!({"prompt_tokens": 1200, "completion_tokens": 1, "total_tokens": 1201, "d": {"cached": 4}}),
            json!({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "d": {"cached": 0, "a": 1}}),
            json!({"completion_tokens": 9}),
        ] {
            add_usage(&mut merged, usage(&provider_usage).unwrap());
        }
        assert_eq!(
            counts(merged.clone()),
            Some([Some(1200), Some(9), Some(1209)])
        );
        assert_eq!(merged.unwrap().further["d"], json!({"cached": 4, "a": 1}));
    }
}
