//! Calls of models and tools.

use std::time::Instant;

use ::metrics::{counter, histogram};

use super::{MODEL_CALLS, MODEL_COST, MODEL_TOKENS, TOOL_CALL_SECONDS, TOOL_CALLS};

/// A model was called. Its id is the operator's own; `tokens`: asked, answered; `cost` in millionths.
pub fn model_called(model: &str, outcome: &'static str, tokens: (u64, u64), cost: u64) {
    let model = model.to_owned();
    counter!(MODEL_CALLS, "model" => model.clone(), "outcome" => outcome).increment(1);
    for (direction, count) in [("prompt", tokens.0), ("completion", tokens.1)] {
        counter!(MODEL_TOKENS, "model" => model.clone(), "direction" => direction).increment(count);
    }
    counter!(MODEL_COST, "model" => model).increment(cost);
}

/// A call of a model that no run pays for, counted when it is dropped: with its outcome, or as `abandoned` where
/// nobody waited for one.
pub struct ModelCall<'a> {
    model: &'a str,
    outcome: &'static str,
    used: (u64, u64),
}

impl<'a> ModelCall<'a> {
    /// `model`: its id in the catalog; `used`: the tokens that it reads and their cost in millionths, unless its end
    /// says otherwise.
    pub fn begin(model: &'a str, used: (u64, u64)) -> Self {
        Self {
            model,
            outcome: "abandoned",
            used,
        }
    }

    /// `outcome`: `ok` or the code of the error.
    pub fn end(mut self, outcome: &'static str, used: Option<(u64, u64)>) {
        self.outcome = outcome;
        self.used = used.unwrap_or(self.used);
    }
}

impl Drop for ModelCall<'_> {
    fn drop(&mut self) {
        let (tokens, cost) = self.used;
        model_called(self.model, self.outcome, (tokens, 0), cost);
    }
}

/// A call of a tool, counted when it is dropped: with its outcome, or as `abandoned` where nobody waited for one.
pub struct ToolCall {
    source: &'static str,
    begun: Instant,
    outcome: &'static str,
}

impl ToolCall {
    /// `source`: `gateway`, `http` or `mcp`.
    pub fn begin(source: &'static str) -> Self {
        Self {
            source,
            begun: Instant::now(),
            outcome: "abandoned",
        }
    }

    /// `outcome`: `ok` or why there was no result.
    pub fn end(mut self, outcome: &'static str) {
        self.outcome = outcome;
    }
}

impl Drop for ToolCall {
    fn drop(&mut self) {
        counter!(TOOL_CALLS, "source" => self.source, "outcome" => self.outcome).increment(1);
        histogram!(TOOL_CALL_SECONDS, "source" => self.source).record(self.begun.elapsed());
    }
}
