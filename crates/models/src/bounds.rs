//! Output token limits of requests.

use llm_formats::BOUNDS;
use protocol::JsonObject;
use serde_json::{Value, json};

/// Default context window, as large as that of common models.
pub const UNSAID_WINDOW_TOKENS: u64 = 200_000;
/// JSON pointers to thinking budgets.
pub const THINKING_BUDGETS: [&str; 3] = [
    "/thinking_budget",
    "/reasoning/max_tokens",
    "/thinking/budget_tokens",
];
/// JSON pointer to the minimum answer length; some servers exceed the limit for it.
pub const LEAST: &str = "/min_tokens";

/// Counting of thinking tokens by a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThoughtCount {
    /// In addition to the output limit, possibly. The provider receives [`THOUGHTS`] and [`LEAST`].
    Beside,
    /// Within the output limit. The provider receives neither.
    Within,
}

/// Sets the smallest limit under the name `read` and removes the other name. Without any limit, none is set.
pub(super) fn bound(body: &mut JsonObject, read: &str, of_model: Option<u64>) {
    let declared = BOUNDS.iter().filter_map(|key| body.get(*key)?.as_u64());
    if let Some(smallest) = declared.chain(of_model).min() {
        // A null limit is removed too.
        for key in BOUNDS {
            body.remove(key);
        }
        body.insert(read.to_owned(), json!(smallest));
    }
}

/// Caps thinking budgets and the minimum length at the model's limit.
pub(super) fn cut(body: &mut JsonObject, limit: u64) {
    for pointer in THINKING_BUDGETS.into_iter().chain([LEAST]) {
        let (member, rest) = member_of(pointer);
        let value = body.get_mut(member);
        if let Some(value) = value.and_then(|value| value.pointer_mut(rest))
            && value.as_u64().is_some_and(|number| number > limit)
        {
            *value = json!(limit);
        }
    }
}

/// The value in a body at one of these pointers.
pub fn value_at<'a>(body: &'a JsonObject, pointer: &str) -> Option<&'a Value> {
    let (member, rest) = member_of(pointer);
    body.get(member)?.pointer(rest)
}

/// Splits a pointer into its first member and the rest.
fn member_of(pointer: &str) -> (&str, &str) {
    let path = pointer.trim_start_matches('/');
    path.split_at(path.find('/').unwrap_or(path.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_output_limit_under_one_name() {
        let [of_openai, of_others] = BOUNDS;
        for (read, other) in [(of_openai, of_others), (of_others, of_openai)] {
            for (request, of_model, expected) in [
                (json!({other: 16}), Some(1000), json!({read: 16})),
                (json!({other: 16}), None, json!({read: 16})),
                (json!({read: 16}), Some(1000), json!({read: 16})),
                (json!({read: 500, other: 16}), Some(1000), json!({read: 16})),
                (json!({read: 16, other: 500}), None, json!({read: 16})),
                (json!({other: 5000}), Some(1000), json!({read: 1000})),
                (json!({other: null}), Some(1000), json!({read: 1000})),
                (json!({other: null, read: 5}), None, json!({read: 5})),
                (json!({"n": 2}), Some(1000), json!({"n": 2, read: 1000})),
                (json!({"n": 2}), None, json!({"n": 2})),
            ] {
                let mut body = request.as_object().unwrap().clone();
                bound(&mut body, read, of_model);
                assert_eq!(Value::Object(body), expected, "{request} {of_model:?}");
            }
        }
    }
    #[test]
    fn caps_thinking_budgets_at_model_limit() {
        let mut body = json!({
            "thinking_budget": 38_000, "min_tokens": 51, "top_k": 90, "reasoning": {"max_tokens": 50, "effort": "low"},
            "thinking": {"type": "enabled", "budget_tokens": 38_000},
        });
        cut(body.as_object_mut().unwrap(), 50);
        let expected = json!({
            "thinking_budget": 50, "min_tokens": 50, "top_k": 90, "reasoning": {"max_tokens": 50, "effort": "low"},
            "thinking": {"type": "enabled", "budget_tokens": 50},
        });
        assert_eq!(body, expected);
        let mut other = json!({"thinking": true, "reasoning": "high", "min_tokens": null});
        let same = other.clone();
        cut(other.as_object_mut().unwrap(), 50);
        assert_eq!(other, same);
    }
}
