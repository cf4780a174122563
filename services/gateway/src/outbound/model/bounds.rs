//! How much a model may say to one request.

use protocol::JsonObject;
use serde_json::json;

/// Both names of the bound of a completion's tokens. Providers read one of them, and not all the same one.
pub const BOUNDS: [&str; 2] = ["max_completion_tokens", "max_tokens"];
/// What a model may answer where neither the request nor the operator says it; a provider that demands a bound is told
/// this one.
pub const UNSAID_TOKENS: u64 = 8192;

/// Says the smallest bound of all by the one name that is `read`, and by no other. Where there is none, none is said.
pub(super) fn bound(body: &mut JsonObject, read: &str, of_model: Option<u64>) {
    let said = BOUNDS.iter().filter_map(|key| body.get(*key)?.as_u64());
    if let Some(smallest) = said.chain(of_model).min() {
        for key in BOUNDS {
            body.remove(key);
        }
        body.insert(read.to_owned(), json!(smallest));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_bound_is_said_by_the_name_that_is_read_and_by_no_other() {
        let [of_openai, of_others] = BOUNDS;
        for (read, other) in [(of_openai, of_others), (of_others, of_openai)] {
            for (said, of_model, expected) in [
                (json!({other: 16}), Some(1000), json!({read: 16})),
                (json!({other: 16}), None, json!({read: 16})),
                (json!({read: 16}), Some(1000), json!({read: 16})),
                (
                    json!({read: 500, other: 16}),
                    Some(1000),
                    json!({read: 16}),
                ),
                (json!({read: 16, other: 500}), None, json!({read: 16})),
                (json!({other: 5000}), Some(1000), json!({read: 1000})),
                (json!({other: null}), Some(1000), json!({read: 1000})),
                (json!({other: null, read: 5}), None, json!({read: 5})),
                (json!({"n": 2}), Some(1000), json!({"n": 2, read: 1000})),
                (json!({"n": 2}), None, json!({"n": 2})),
            ] {
                let mut body = said.as_object().unwrap().clone();
                bound(&mut body, read, of_model);
                assert_eq!(Value::Object(body), expected, "{said} {of_model:?}");
            }
        }
    }
}
