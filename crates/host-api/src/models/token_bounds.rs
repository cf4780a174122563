//! Upper bound of a completion's tokens, for the reservation before the provider is called.

use std::ops::RangeInclusive;

use protocol::JsonObject;
use protocol::admin::Fault;
use serde_json::Value;

use super::content_parts::has_document;
use crate::host_call::{CompletionTokens, Spend};
use llm_formats::{BOUNDS, UNSAID_TOKENS};
use models::{LEAST, Model, THINKING_BUDGETS, ThoughtCount, value_at};

const MAX_TOKENS: u64 = i32::MAX as u64;
/// Fields with the number of answers.
const ANSWERS: [&str; 2] = ["n", "best_of"];
const MAX_ANSWERS: u64 = 128;

/// Rejects limits that providers and budgets could read differently: non-integers and values out of range.
/// Pointers are relative to the body.
pub(crate) fn check_token_limits(body: &JsonObject) -> Result<(), Fault> {
    let members = BOUNDS.map(|key| (key, MAX_TOKENS));
    let members = members
        .into_iter()
        .chain(ANSWERS.map(|key| (key, MAX_ANSWERS)));
    for (key, max) in members {
        check_number(body.get(key), &format!("/{key}"), 1..=max)?;
    }
    for pointer in THINKING_BUDGETS.into_iter().chain([LEAST]) {
        check_number(value_at(body, pointer), pointer, 0..=MAX_TOKENS)?;
    }
    Ok(())
}

/// Null counts as absent.
fn check_number(
    value: Option<&Value>,
    pointer: &str,
    range: RangeInclusive<u64>,
) -> Result<(), Fault> {
    let is_within = |value: &Value| value.as_u64().is_some_and(|number| range.contains(&number));
    if value.is_none_or(|value| value.is_null() || is_within(value)) {
        return Ok(());
    }
    let (least, max) = range.into_inner();
    let message = format!("must be an integer from {least} to {max}");
    Err(Fault::new(pointer, message))
}

/// The parts of a body that a provider may read: all except numbers and booleans.
pub(crate) fn prompt_texts(body: &JsonObject) -> Vec<String> {
    let is_text = |value: &Value| value.is_string() || value.is_array() || value.is_object();
    let texts = body.iter().filter(|(_, value)| is_text(value));
    texts.map(|(_, value)| value.to_string()).collect()
}

/// Bytes of generated text in a chunk, or in one `message` of a complete answer. This includes reasoning and tool
/// arguments in any field.
pub(crate) fn generated_bytes(answer: &JsonObject, member: &str) -> usize {
    let choices = answer.get("choices").and_then(Value::as_array);
    choices
        .into_iter()
        .flatten()
        .map(|choice| text_bytes(&choice[member]))
        .sum()
}

fn text_bytes(value: &Value) -> usize {
    // Identifiers are not generated text.
    let names = ["role", "id", "type"];
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(members) => {
            let fields = members
                .iter()
                .filter(|(name, _)| !names.contains(&name.as_str()));
            fields.map(|(_, value)| text_bytes(value)).sum()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// The upper bound of a completion: prompt and answer. The body is checked and in the provider's form.
pub(crate) fn chat_spend(id: &str, model: &Model, prompt_tokens: u64, body: &JsonObject) -> Spend {
    // The token count of a document is unknown, so the complete context window counts.
    let window = if has_document(body) {
        model.window()
    } else {
        0
    };
    let bound = completion_bound(body, model.provider.bound(), model.provider.thought_count());
    let completion = CompletionTokens::of(model.reserved_tokens, answers_of(body), bound);
    let limit = body.get(model.provider.bound()).and_then(Value::as_u64);
    Spend {
        is_limited: limit.is_some(),
        ..Spend::of_model(id, model, prompt_tokens.max(window), completion)
    }
}

/// Number of answers that the request asks for.
fn answers_of(body: &JsonObject) -> u64 {
    let answers = ANSWERS.into_iter();
    let answers = answers.filter_map(|key| body.get(key).and_then(Value::as_u64));
    // `best_of` generates more answers than it returns, so the larger number counts.
    answers.max().unwrap_or(1)
}

/// Maximum completion tokens: the provider's limit field, and additional tokens outside that limit.
fn completion_bound(body: &JsonObject, bound: &str, reasoning_count: ThoughtCount) -> u64 {
    let number = |key: &str| body.get(key).and_then(Value::as_u64);
    let tokens = number(bound).unwrap_or(UNSAID_TOKENS);
    let each = match reasoning_count {
        ThoughtCount::Within => tokens,
        ThoughtCount::Beside => with_reasoning(body, tokens),
    };
    each.saturating_mul(answers_of(body))
}

/// Maximum of one answer if minimum length and reasoning are not within the limit.
fn with_reasoning(body: &JsonObject, bound: u64) -> u64 {
    let number = |pointer: &str| value_at(body, pointer).and_then(Value::as_u64);
    let reasoning_budgets = THINKING_BUDGETS.into_iter().filter_map(number);
    let tokens = bound.max(number(LEAST).unwrap_or_default());
    reasoning_budgets.fold(tokens, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use domain::budget::{Amount, Budget, BudgetReached, BudgetWindow};
    use protocol::budget::BudgetScope;
    use serde_json::json;

    use super::*;

    fn body(value: &Value) -> JsonObject {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn reserves_token_limit_times_number_of_answers() {
        let bound =
            |value: &Value| completion_bound(&body(value), "max_tokens", ThoughtCount::Beside);
        assert_eq!(bound(&json!({})), UNSAID_TOKENS);
        assert_eq!(bound(&json!({"max_tokens": null})), UNSAID_TOKENS);
        assert_eq!(bound(&json!({"max_tokens": 5})), 5);
        assert_eq!(bound(&json!({"max_tokens": 500, "n": 100})), 50_000);
        assert_eq!(bound(&json!({"max_tokens": 7, "n": 2, "best_of": 3})), 21);
        // An unknown limit field bounds nothing.
        let other = json!({"max_completion_tokens": 1});
        assert_eq!(bound(&other), UNSAID_TOKENS);
    }

    /// 64 agents with the prices of Claude Sonnet, which ask for 32,000 tokens, and $10.
    #[test]
    fn parallel_agents_share_a_budget() {
        let budget = Budget {
            name: "b".to_owned(),
            scope: BudgetScope::Workspace,
            only: None,
            window: BudgetWindow::Lifetime,
            calls: None,
            tokens: None,
            cost_micros: Some(10_000_000),
            wall_ms: None,
            reached: BudgetReached::Refuse,
        };
        let request = body(&json!({"max_tokens": 32_000}));
        let bound = completion_bound(&request, "max_tokens", ThoughtCount::Within);
        let fitting = |of_model| {
            let call = Amount {
                calls: 1,
                cost_micros: 10_000 * 3 + CompletionTokens::of(of_model, 1, bound).reserved * 15,
                ..Amount::default()
            };
            let mut used = Amount::default();
            let mut calls = 0;
            while calls < 64 && budget.check(used, call, None).is_ok() {
                used = used.plus(call);
                calls += 1;
            }
            calls
        };
        assert_eq!(fitting(Some(UNSAID_TOKENS)), 64);
        assert_eq!(
            CompletionTokens::of(Some(UNSAID_TOKENS), 3, 3 * bound).reserved,
            3 * UNSAID_TOKENS
        );
        // Upper bounds fill it with nothing spent.
        assert_eq!(fitting(None), 19);
    }

    #[test]
    fn reserves_reasoning_and_minimum_beyond_limit() {
        for (request, expected_beside) in [
            (json!({"max_tokens": 16, "thinking_budget": 38_000}), 38_016),
            (
                json!({"max_tokens": 16, "reasoning": {"max_tokens": 38_000}}),
                38_016,
            ),
            (
                json!({"max_tokens": 16, "thinking": {"type": "enabled", "budget_tokens": 38_000}}),
                38_016,
            ),
            (json!({"max_tokens": 16, "min_tokens": 30_000}), 30_000),
            (
                json!({"max_tokens": 16, "min_tokens": 9, "thinking_budget": 0}),
                16,
            ),
            (
                json!({"max_tokens": 16, "min_tokens": 20, "thinking_budget": 5, "n": 2}),
                50,
            ),
            (
                json!({"max_tokens": 16, "reasoning": {"effort": "high"}, "thinking": null}),
                16,
            ),
        ] {
            let bound =
                |reasoning_count| completion_bound(&body(&request), "max_tokens", reasoning_count);
            assert_eq!(bound(ThoughtCount::Beside), expected_beside, "{request}");
            // Providers that count reasoning within the limit add nothing.
            let answers = request["n"].as_u64().unwrap_or(1);
            assert_eq!(bound(ThoughtCount::Within), 16 * answers, "{request}");
        }
    }

    #[test]
    fn counts_all_prompt_and_generated_text() {
        let request = body(
            &json!({"functions": [{"name": "f"}], "temperature": 1, "user": "u", "stream": true}),
        );
        assert_eq!(prompt_texts(&request), [r#"[{"name":"f"}]"#, r#""u""#]);
        let answer = json!({"choices": [
            {"delta": {"role": "assistant", "content": "12", "reasoning_content": "345"}},
            {"delta": {"function_call": {"name": "6", "arguments": "78"}}},
            {"delta": {"tool_calls": [{"id": "x", "type": "function", "function": {"arguments": "9"}}]}},
        ]});
        assert_eq!(generated_bytes(&body(&answer), "delta"), 9);
        assert_eq!(generated_bytes(&body(&answer), "message"), 0);
    }

    #[test]
    fn rejects_invalid_token_limits() {
        for key in ["max_completion_tokens", "max_tokens", "n", "best_of"] {
            for value in [json!(0), json!(-1), json!(1.5), json!("9"), json!(u64::MAX)] {
                let fault = check_token_limits(&body(&json!({key: value}))).unwrap_err();
                assert_eq!(fault.pointer, format!("/{key}"), "{value}");
            }
            for value in [json!(null), json!(1), json!(128)] {
                assert_eq!(
                    check_token_limits(&body(&json!({key: value}))),
                    Ok(()),
                    "{value}"
                );
            }
        }
        assert!(check_token_limits(&body(&json!({"n": 129}))).is_err());
    }

    #[test]
    fn rejects_invalid_reasoning_budgets() {
        let at = |pointer: &str, value: &Value| match pointer {
            "/reasoning/max_tokens" => json!({"reasoning": {"max_tokens": value}}),
            "/thinking/budget_tokens" => json!({"thinking": {"budget_tokens": value}}),
            member => json!({&member[1..]: value}),
        };
        for pointer in THINKING_BUDGETS.into_iter().chain([LEAST]) {
            for value in [
                json!(-1),
                json!(1.5),
                json!("9"),
                json!([9]),
                json!(u64::MAX),
            ] {
                let fault = check_token_limits(&body(&at(pointer, &value))).unwrap_err();
                assert_eq!(fault.pointer, pointer, "{value}");
            }
            for value in [json!(null), json!(0), json!(38_000)] {
                let checked = check_token_limits(&body(&at(pointer, &value)));
                assert_eq!(checked, Ok(()), "{pointer} {value}");
            }
        }
    }
}
