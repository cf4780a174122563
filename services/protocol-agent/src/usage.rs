//! Token usage of a run, summed over its model calls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::JsonObject;
use protocol::message::LlmTokenUsage;
use serde_json::{Value, json};

/// Sums of the usage of all model calls. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenUsageLog(Arc<Mutex<TokenTotals>>);

#[derive(Debug, Default)]
struct TokenTotals {
    calls: u64,
    total: JsonObject,
}

impl TokenUsageLog {
    /// Adds the usage of one model call; `None` if the provider reported none.
    pub(crate) fn add(&self, usage: Option<&LlmTokenUsage>) {
        let mut sums = self.lock();
        sums.calls += 1;
        // Summed as JSON: providers report members that the type does not name.
        let Some(Ok(Value::Object(usage))) = usage.map(serde_json::to_value) else {
            return;
        };
        for (name, value) in usage {
            add(&mut sums.total, &name, &value);
        }
    }

    /// Total usage with `model_calls`; `None` before the first call.
    pub(crate) fn total(&self) -> Option<LlmTokenUsage> {
        let sums = self.lock();
        if sums.calls == 0 {
            return None;
        }
        let mut total = sums.total.clone();
        total.insert("model_calls".to_owned(), json!(sums.calls));
        serde_json::from_value(Value::Object(total)).ok()
    }

    /// Number of model calls.
    pub(crate) fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// Total prompt and completion tokens.
    pub(crate) fn tokens(&self) -> (u64, u64) {
        let sums = self.lock();
        let number = |name: &str| sums.total.get(name).and_then(Value::as_u64).unwrap_or(0);
        (number("prompt_tokens"), number("completion_tokens"))
    }

    fn lock(&self) -> MutexGuard<'_, TokenTotals> {
        // A panic cannot leave the sums inconsistent, so a poisoned lock is usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds numbers, also of nested objects. Other values are replaced.
fn add(total: &mut JsonObject, name: &str, value: &Value) {
    match (total.get_mut(name), value) {
        (Some(Value::Object(existing)), Value::Object(more)) => {
            for (name, value) in more {
                add(existing, name, value);
            }
        }
        (Some(existing), Value::Number(_)) => {
            let sum = existing
                .as_i64()
                .zip(value.as_i64())
                .map(|(a, b)| a.saturating_add(b));
            *existing = sum.map_or_else(|| value.clone(), Value::from);
        }
        _ => {
            total.insert(name.to_owned(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_numbers_and_counts_calls() {
        let log = TokenUsageLog::default();
        assert_eq!(log.total(), None);
        let usage = |value| serde_json::from_value::<LlmTokenUsage>(value).unwrap();
        log.add(Some(&usage(
            json!({"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4, "details": {"cached": 1}}),
        )));
        log.add(None);
        log.add(Some(&usage(
            json!({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "details": {"cached": 2}}),
        )));
        let total = serde_json::to_value(log.total().unwrap()).unwrap();
        assert_eq!(total["prompt_tokens"], 8);
        assert_eq!(total["model_calls"], 3);
        assert_eq!(total["details"]["cached"], 3);
        assert_eq!(log.tokens(), (8, 3));
    }
}
