//! Metrics of model and tool calls.

use std::time::Instant;

use ::metrics::{counter, histogram};

use domain::usage::TokenParts;

use super::{
    MODEL_CALLS, MODEL_COST, MODEL_TOKEN_PARTS, MODEL_TOKENS, TOOL_CALL_SECONDS, TOOL_CALLS,
};

/// A model call. The id is configured; `cost` in millionths.
pub fn model_called(model: &str, outcome: &'static str, tokens: TokenParts, cost: u64) {
    let model = model.to_owned();
    counter!(MODEL_CALLS, "model" => model.clone(), "outcome" => outcome).increment(1);
    for (direction, count) in [
        ("prompt", tokens.prompt()),
        ("completion", tokens.completion()),
    ] {
        counter!(MODEL_TOKENS, "model" => model.clone(), "direction" => direction).increment(count);
    }
    for (part, count) in [
        ("input", tokens.input),
        ("cache_read", tokens.cache_read),
        ("cache_write_5m", tokens.cache_write_5m),
        ("cache_write_1h", tokens.cache_write_1h),
        ("output", tokens.output),
        ("reasoning", tokens.reasoning),
    ] {
        counter!(MODEL_TOKEN_PARTS, "model" => model.clone(), "part" => part).increment(count);
    }
    counter!(MODEL_COST, "model" => model).increment(cost);
}

/// A model call outside runs. Counted on drop, as `abandoned` unless [`Self::end`] sets the outcome.
pub struct ModelCallCounter<'a> {
    model: &'a str,
    outcome: &'static str,
    used: (TokenParts, u64),
}

impl<'a> ModelCallCounter<'a> {
    /// `model`: its id in the catalog; `tokens` and their cost in millionths, unless `end` replaces them.
    pub fn begin(model: &'a str, tokens: TokenParts, cost: u64) -> Self {
        Self {
            model,
            outcome: "abandoned",
            used: (tokens, cost),
        }
    }

    /// `outcome`: `ok` or the error code.
    pub fn end(mut self, outcome: &'static str, used: Option<(TokenParts, u64)>) {
        self.outcome = outcome;
        self.used = used.unwrap_or(self.used);
    }
}

impl Drop for ModelCallCounter<'_> {
    fn drop(&mut self) {
        let (tokens, cost) = self.used;
        model_called(self.model, self.outcome, tokens, cost);
    }
}

/// A tool call. Counted on drop, as `abandoned` unless [`Self::end`] sets the outcome.
pub struct ToolCallTimer {
    source: &'static str,
    begun: Instant,
    outcome: &'static str,
}

impl ToolCallTimer {
    /// `source`: `gateway`, `http` or `mcp`.
    pub fn begin(source: &'static str) -> Self {
        Self {
            source,
            begun: Instant::now(),
            outcome: "abandoned",
        }
    }

    /// `outcome`: `ok` or the reason of the failure.
    pub fn end(mut self, outcome: &'static str) {
        self.outcome = outcome;
    }
}

impl Drop for ToolCallTimer {
    fn drop(&mut self) {
        counter!(TOOL_CALLS, "source" => self.source, "outcome" => self.outcome).increment(1);
        histogram!(TOOL_CALL_SECONDS, "source" => self.source).record(self.begun.elapsed());
    }
}
