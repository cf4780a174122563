//! Token usage of a run, summed over its model calls.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::JsonObject;
use protocol::message::LlmTokenUsage;
use serde_json::{Value, json};

/// Values of single turns in one usage. With the sums they stay below the gateway's limit of 64.
const TURN_VALUES: usize = 40;

/// Usage of all model calls of a run. Clones share it, and it is readable after the run's task was dropped.
#[derive(Clone, Debug, Default)]
pub struct UsageLog(Arc<Mutex<UsageTotals>>);

#[derive(Debug, Default)]
struct UsageTotals {
    calls: u64,
    total: JsonObject,
    /// Usage of the newest calls, with at most [`TURN_VALUES`] values.
    turns: VecDeque<JsonObject>,
}

impl UsageLog {
    /// Adds the usage of one model call; `None`: the provider reported none.
    pub fn add(&self, usage: Option<&LlmTokenUsage>) {
        let mut log = self.lock();
        // Calls without reported usage count, too: the sums are lower bounds then.
        log.calls += 1;
        // Summed as JSON: providers report members that the type does not name.
        let Some(Ok(Value::Object(usage))) = usage.map(serde_json::to_value) else {
            return;
        };
        for (name, value) in &usage {
            add(&mut log.total, name, value);
        }
        log.turns.push_back(usage);
        while log.turns.iter().map(values_of_turn).sum::<usize>() > TURN_VALUES {
            log.turns.pop_front();
        }
    }

    /// Sums with `model_calls`; `None` before the first call.
    pub fn total(&self) -> Option<LlmTokenUsage> {
        let log = self.lock();
        log.sums()
    }

    /// Sums with `model_calls` and the usage of the newest calls as `turns`; `None` before the first call.
    pub fn total_with_turns(&self) -> Option<LlmTokenUsage> {
        let log = self.lock();
        let mut total = log.sums()?;
        total.further.insert("turns".to_owned(), json!(log.turns));
        Some(total)
    }

    /// Number of model calls.
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// Sums of prompt and completion tokens.
    pub fn tokens(&self) -> (u64, u64) {
        let log = self.lock();
        let number = |name: &str| log.total.get(name).and_then(Value::as_u64).unwrap_or(0);
        (number("prompt_tokens"), number("completion_tokens"))
    }

    fn lock(&self) -> MutexGuard<'_, UsageTotals> {
        // A panic cannot leave the sums inconsistent, so a poisoned lock is usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UsageTotals {
    fn sums(&self) -> Option<LlmTokenUsage> {
        if self.calls == 0 {
            return None;
        }
        let mut total = self.total.clone();
        total.insert("model_calls".to_owned(), json!(self.calls));
        // Without a valid sum the run reports no usage rather than failing.
        serde_json::from_value(Value::Object(total)).ok()
    }
}

fn values_of_turn(turn: &JsonObject) -> usize {
    turn.values().map(values_in).sum::<usize>() + 1
}

fn values_in(value: &Value) -> usize {
    let nested = match value {
        Value::Array(items) => items.iter().map(values_in).sum(),
        Value::Object(members) => members.values().map(values_in).sum(),
        _ => 0,
    };
    nested + 1
}

/// Adds numbers, also of nested objects; keeps the first value of any other type.
fn add(total: &mut JsonObject, name: &str, value: &Value) {
    let Some(existing) = total.get_mut(name) else {
        total.insert(name.to_owned(), value.clone());
        return;
    };
    if let (Value::Object(existing), Value::Object(more)) = (&mut *existing, value) {
        for (name, value) in more {
            add(existing, name, value);
        }
        return;
    }
    let sum = match (existing.as_i64(), value.as_i64()) {
        // Integers stay integers: a float would round counts above 2^53.
        (Some(before), Some(more)) => Some(json!(before.saturating_add(more))),
        _ => existing
            .as_f64()
            .zip(value.as_f64())
            .map(|(before, more)| json!(before + more)),
    };
    if let Some(sum) = sum {
        *existing = sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_of(usages: impl IntoIterator<Item = Value>) -> UsageLog {
        let log = UsageLog::default();
        for usage in usages {
            let usage: Option<LlmTokenUsage> = serde_json::from_value(usage).unwrap();
            log.add(usage.as_ref());
        }
        log
    }

    #[test]
    fn leaves_out_turns_past_the_bound() {
        let usage = json!({"total_tokens": 1, "more": {"a": [1, 2]}});
        let log = log_of(std::iter::repeat_n(usage, 100));
        let total = serde_json::to_value(log.total_with_turns()).unwrap();
        assert_eq!(total["total_tokens"], 100);
        assert_eq!(total["turns"].as_array().unwrap().len(), 6);
        assert!(values_in(&total) <= 65);
    }

    #[test]
    fn sums_usage_and_keeps_each_turn() {
        assert_eq!(UsageLog::default().total(), None);
        let turn = |prompt: i64, cost: f64| {
            json!({"prompt_tokens": prompt, "total_tokens": prompt + 1, "cost": cost, "tier": "a",
                "details": {"cached": 1}})
        };
        let log = log_of([turn(10, 0.5), Value::Null, turn(20, 0.25)]);
        let total = serde_json::to_value(log.total_with_turns()).unwrap();
        assert_eq!(total["prompt_tokens"], 30);
        assert_eq!(total["total_tokens"], 32);
        assert_eq!(total["cost"], 0.75);
        assert_eq!(total["tier"], "a");
        assert_eq!(total["details"]["cached"], 2);
        assert_eq!(total["model_calls"], 3);
        assert_eq!(total["turns"].as_array().unwrap().len(), 2);
        assert_eq!(total.get("completion_tokens"), None, "unknown is not 0");
        assert_eq!(log.tokens(), (30, 0));
        assert_eq!(log.calls(), 3);
    }
}
