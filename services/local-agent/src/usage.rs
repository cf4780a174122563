//! Token usage of a run, summed over its turns.

use std::sync::{Mutex, MutexGuard, PoisonError};

use protocol::JsonObject;
use protocol::message::LlmTokenUsage;
use serde_json::{Value, json};

/// Values of single turns in one usage. With the sums they stay below the gateway's limit of 64.
const TURN_VALUES: usize = 40;

/// Collects the usage of each turn. Readable after the run's task was dropped.
#[derive(Debug, Default)]
pub(crate) struct UsageLog(Mutex<Vec<Option<LlmTokenUsage>>>);

impl UsageLog {
    /// Adds the usage of one model call; `None`: the model reported none.
    pub(crate) fn add(&self, usage: Option<LlmTokenUsage>) {
        self.lock().push(usage);
    }

    /// Sum with `model_calls` and the usage of the last turns; `None` before the first call. The gateway keeps
    /// 64 values, so older turns are left out.
    pub(crate) fn total(&self) -> Option<LlmTokenUsage> {
        let calls = self.lock();
        if calls.is_empty() {
            return None;
        }
        let turns: Vec<_> = calls.iter().flatten().map(as_object).collect();
        let mut total = JsonObject::new();
        for turn in &turns {
            add(&mut total, turn);
        }
        // Calls without reported usage count, too: the sums are lower bounds then.
        total.insert("model_calls".to_owned(), json!(calls.len()));
        total.insert("turns".to_owned(), json!(newest(&turns)));
        // Without a valid sum the run reports no usage rather than failing.
        serde_json::from_value(Value::Object(total)).ok()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<LlmTokenUsage>>> {
        // A poisoned lock still guards a valid list: `push` is the only write.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Newest turns with at most [`TURN_VALUES`] values together.
fn newest(turns: &[JsonObject]) -> &[JsonObject] {
    let mut left = TURN_VALUES;
    let fits = |turn: &&JsonObject| {
        let values = turn.values().map(values_in).sum::<usize>() + 1;
        let rest = left.checked_sub(values);
        left = rest.unwrap_or(0);
        rest.is_some()
    };
    // From the newest: old turns are the ones to leave out.
    let fitting = turns.iter().rev().take_while(fits).count();
    &turns[turns.len() - fitting..]
}

fn values_in(value: &Value) -> usize {
    let nested = match value {
        Value::Array(items) => items.iter().map(values_in).sum(),
        Value::Object(members) => members.values().map(values_in).sum(),
        _ => 0,
    };
    nested + 1
}

fn as_object(usage: &LlmTokenUsage) -> JsonObject {
    match serde_json::to_value(usage) {
        Ok(Value::Object(usage)) => usage,
        _ => JsonObject::new(),
    }
}

/// Adds numbers; keeps the first value of any other type.
fn add(total: &mut JsonObject, turn: &JsonObject) {
    for (key, value) in turn {
        let sum = match total.get(key) {
            None => value.clone(),
            Some(before) => match (before.as_i64(), value.as_i64()) {
                // Integers stay integers: a float would round counts above 2^53.
                (Some(before), Some(value)) => json!(before.saturating_add(value)),
                _ => match (before.as_f64(), value.as_f64()) {
                    (Some(before), Some(value)) => json!(before + value),
                    _ => continue,
                },
            },
        };
        total.insert(key.clone(), sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_out_turns_past_the_bound() {
        let log = UsageLog::default();
        for _ in 0..100 {
            log.add(serde_json::from_value(json!({"total_tokens": 1, "more": {"a": [1, 2]}})).ok());
        }
        let total = serde_json::to_value(log.total()).unwrap();
        assert_eq!(total["total_tokens"], 100);
        assert_eq!(total["turns"].as_array().unwrap().len(), 6);
        assert!(values_in(&total) <= 65);
    }

    #[test]
    fn sums_usage_and_keeps_each_turn() {
        let log = UsageLog::default();
        assert_eq!(log.total(), None);
        let turn = |prompt, cost| {
            let usage = json!({"prompt_tokens": prompt, "total_tokens": prompt + 1, "cost": cost, "tier": "a"});
            serde_json::from_value(usage).ok()
        };
        log.add(turn(10, 0.5));
        log.add(None);
        log.add(turn(20, 0.25));
        let total = serde_json::to_value(log.total()).unwrap();
        assert_eq!(total["prompt_tokens"], 30);
        assert_eq!(total["total_tokens"], 32);
        assert_eq!(total["cost"], 0.75);
        assert_eq!(total["tier"], "a");
        assert_eq!(total["model_calls"], 3);
        assert_eq!(total["turns"].as_array().unwrap().len(), 2);
        assert_eq!(total.get("completion_tokens"), None, "unknown is not 0");
    }
}
