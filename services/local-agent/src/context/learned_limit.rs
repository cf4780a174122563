//! Request size that a model accepts, learned from a refusal and stored in the conversation's state.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// State key.
pub const KEY: &str = "runner.context_limit";
/// Seconds of validity: a provider may enlarge the window of a model.
const VALIDITY: i64 = 7 * 24 * 3_600;

/// Limit of requests to one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedLimit {
    pub model_id: String,
    /// Tokens of the largest request to send.
    pub tokens: u64,
    /// Epoch seconds.
    pub created_at: i64,
}

impl LearnedLimit {
    /// Tokens of a valid entry for this model. `None` for anything else: other programs may write the key.
    pub fn tokens_of(entry: Value, model_id: &str, now: i64) -> Option<u64> {
        let limit: Self = serde_json::from_value(entry).ok()?;
        let is_valid = limit.model_id == model_id
            && limit.tokens > 0
            && (0..VALIDITY).contains(&now.saturating_sub(limit.created_at));
        is_valid.then_some(limit.tokens)
    }

    /// Value for the state.
    pub fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ignores_foreign_and_expired_limits() {
        let entry = LearnedLimit {
            model_id: "m".to_owned(),
            tokens: 6_000,
            created_at: 1_000,
        }
        .to_value();
        for (entry, model, now, tokens) in [
            (entry.clone(), "m", 1_000, Some(6_000)),
            (entry.clone(), "m", 999 + VALIDITY, Some(6_000)),
            (entry.clone(), "m", 1_000 + VALIDITY, None),
            (entry.clone(), "m", 999, None),
            (entry, "n", 1_000, None),
            (
                json!({"model_id": "m", "tokens": 0, "created_at": 1_000}),
                "m",
                1_000,
                None,
            ),
            (
                json!({"model_id": "m", "tokens": -1, "created_at": 1_000}),
                "m",
                1_000,
                None,
            ),
            (json!("6000"), "m", 1_000, None),
            (Value::Null, "m", 1_000, None),
        ] {
            assert_eq!(
                LearnedLimit::tokens_of(entry.clone(), model, now),
                tokens,
                "{entry} {model} {now}"
            );
        }
    }
}
