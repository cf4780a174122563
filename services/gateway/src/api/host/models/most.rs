//! What a completion will use at most, as its request says it: budgets are asked for that before anybody is.

use protocol::JsonObject;
use protocol::admin::Fault;
use serde_json::Value;

use crate::api::host_call::Spend;
use crate::outbound::model::{BOUNDS, Model, UNSAID_TOKENS};

const MOST_TOKENS: u64 = i32::MAX as u64;
/// How many answers are made for one request.
const ANSWERS: [&str; 2] = ["n", "best_of"];
const MOST_ANSWERS: u64 = 128;

/// Refuses numbers that could mean something else to a provider than to a budget: what is no whole number, and
/// what is none at all. A fault's pointer begins at the body.
pub(in crate::api::host) fn check_most(body: &JsonObject) -> Result<(), Fault> {
    let bounds = BOUNDS.map(|key| (key, MOST_TOKENS));
    let answers = ANSWERS.map(|key| (key, MOST_ANSWERS));
    for (key, most) in bounds.into_iter().chain(answers) {
        let is_bounded = |value: &Value| value.as_u64().is_some_and(|n| (1..=most).contains(&n));
        if body
            .get(key)
            .is_some_and(|value| !value.is_null() && !is_bounded(value))
        {
            let message = format!("must be a whole number from 1 to {most}");
            return Err(Fault::new(format!("/{key}"), message));
        }
    }
    Ok(())
}

/// What a provider may read of a body: all but its settings that are numbers and switches.
pub(in crate::api::host) fn asked_texts(body: &JsonObject) -> Vec<String> {
    let is_text = |value: &Value| value.is_string() || value.is_array() || value.is_object();
    let texts = body.iter().filter(|(_, value)| is_text(value));
    texts.map(|(_, value)| value.to_string()).collect()
}

/// The bytes of all that a model says in one chunk, or in one `message` of a whole answer: its texts, its thoughts and
/// the arguments of its calls among them, under whatever name they stand.
pub(in crate::api::host) fn said_bytes(answer: &JsonObject, said: &str) -> usize {
    let choices = answer.get("choices").and_then(Value::as_array);
    choices
        .into_iter()
        .flatten()
        .map(|choice| text_bytes(&choice[said]))
        .sum()
}

fn text_bytes(value: &Value) -> usize {
    // What names things is not said by the model.
    let names = ["role", "id", "type"];
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(members) => {
            let said = members
                .iter()
                .filter(|(name, _)| !names.contains(&name.as_str()));
            said.map(|(_, value)| text_bytes(value)).sum()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// What a completion will use at most: what is asked, and what may be answered. The body was checked, and is as the
/// model is asked.
pub(in crate::api::host) fn chat_spend(
    id: &str,
    model: &Model,
    prompt_tokens: u64,
    body: &JsonObject,
) -> Spend {
    Spend {
        kind: "model",
        resource: id.to_owned(),
        prompt_tokens,
        most_completion_tokens: most_completion(body, model.provider.bound()),
        price: model.price,
    }
}

/// By the bound that its provider reads.
fn most_completion(body: &JsonObject, bound: &str) -> u64 {
    let number = |key: &str| body.get(key).and_then(Value::as_u64);
    let answers = ANSWERS.into_iter().filter_map(number).max();
    let each = number(bound).unwrap_or(UNSAID_TOKENS);
    each.saturating_mul(answers.unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn body(value: &Value) -> JsonObject {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn a_budget_is_asked_for_the_most_that_any_provider_would_give() {
        let most = |value: &Value| most_completion(&body(value), "max_tokens");
        assert_eq!(most(&json!({})), UNSAID_TOKENS);
        assert_eq!(most(&json!({"max_tokens": null})), UNSAID_TOKENS);
        assert_eq!(most(&json!({"max_tokens": 5})), 5);
        assert_eq!(most(&json!({"max_tokens": 500, "n": 100})), 50_000);
        assert_eq!(most(&json!({"max_tokens": 7, "n": 2, "best_of": 3})), 21);
        // By a name that is not read, nothing is bounded.
        let other = json!({"max_completion_tokens": 1});
        assert_eq!(most(&other), UNSAID_TOKENS);
    }

    #[test]
    fn all_that_a_provider_may_read_counts_and_all_that_a_model_says() {
        let asked = body(
            &json!({"functions": [{"name": "f"}], "temperature": 1, "user": "u", "stream": true}),
        );
        assert_eq!(asked_texts(&asked), [r#"[{"name":"f"}]"#, r#""u""#]);
        let said = json!({"choices": [
            {"delta": {"role": "assistant", "content": "12", "reasoning_content": "345"}},
            {"delta": {"function_call": {"name": "6", "arguments": "78"}}},
            {"delta": {"tool_calls": [{"id": "x", "type": "function", "function": {"arguments": "9"}}]}},
        ]});
        assert_eq!(said_bytes(&body(&said), "delta"), 9);
        assert_eq!(said_bytes(&body(&said), "message"), 0);
    }

    #[test]
    fn what_is_no_bound_is_refused_where_it_stands() {
        for key in ["max_completion_tokens", "max_tokens", "n", "best_of"] {
            for value in [json!(0), json!(-1), json!(1.5), json!("9"), json!(u64::MAX)] {
                let fault = check_most(&body(&json!({key: value}))).unwrap_err();
                assert_eq!(fault.pointer, format!("/{key}"), "{value}");
            }
            for value in [json!(null), json!(1), json!(128)] {
                assert_eq!(check_most(&body(&json!({key: value}))), Ok(()), "{value}");
            }
        }
        assert!(check_most(&body(&json!({"n": 129}))).is_err());
    }
}
