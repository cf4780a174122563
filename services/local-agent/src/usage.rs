//! The tokens of a run, summed over its turns.

use std::sync::{Mutex, MutexGuard, PoisonError};

use protocol::JsonObject;
use protocol::message::LlmTokenUsage;
use serde_json::{Value, json};

/// Collects what each turn used. It is read after the run's work was dropped, too.
#[derive(Debug, Default)]
pub(crate) struct UsageLog(Mutex<Vec<Option<LlmTokenUsage>>>);

impl UsageLog {
    /// One call of a model has ended; `None`: the model did not say what it used.
    pub(crate) fn add(&self, usage: Option<LlmTokenUsage>) {
        self.lock().push(usage);
    }

    /// The sum, with `model_calls` and the usage of each turn; `None` before the first call.
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
        total.insert("model_calls".to_owned(), json!(calls.len()));
        total.insert("turns".to_owned(), json!(turns));
        serde_json::from_value(Value::Object(total)).ok()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<LlmTokenUsage>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn as_object(usage: &LlmTokenUsage) -> JsonObject {
    match serde_json::to_value(usage) {
        Ok(Value::Object(usage)) => usage,
        _ => JsonObject::new(),
    }
}

/// Numbers are added; of anything else the first stays.
fn add(total: &mut JsonObject, turn: &JsonObject) {
    for (key, value) in turn {
        let sum = match total.get(key) {
            None => value.clone(),
            Some(before) => match (before.as_i64(), value.as_i64()) {
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
    fn numbers_are_summed_and_each_turn_is_kept() {
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
