//! Token budget of a request, and its division in a compaction.

use protocol::JsonObject;
use serde_json::Value;

/// Settings of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetSettings {
    /// Window when the host reports none, and upper bound otherwise; 0: no budget.
    pub window: u64,
    /// Tokens reserved for the answer.
    pub reserve: u64,
    /// Upper bound of history that a compaction keeps verbatim.
    pub keep_recent: u64,
    /// Upper bound of a summary.
    pub summary: u64,
}

impl Default for BudgetSettings {
    fn default() -> Self {
        Self {
            window: 200_000,
            reserve: 16_384,
            keep_recent: 20_000,
            summary: 8_000,
        }
    }
}

/// Token limits of a request and its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestBudget {
    /// Window of the model; 0: no budget.
    pub window: u64,
    /// Tokens reserved for the answer: at most a quarter of the window.
    pub reserve: u64,
    /// Tokens left for the request; never 0 while a budget applies.
    pub input: u64,
    /// Upper bound of history that a compaction keeps verbatim.
    pub keep_recent: u64,
    /// Upper bound of a summary.
    pub summary: u64,
}

/// Metadata keys under which hosts report the window.
const WINDOW: [&str; 5] = [
    "model_context_window_tokens",
    "context_window_tokens",
    "model_context_tokens",
    "contextWindowTokens",
    "context_window",
];
const WINDOW_OF_MODEL: [&str; 3] = [
    "context_window_tokens",
    "contextWindowTokens",
    "context_window",
];
/// Metadata keys under which hosts report the output limit.
const OUTPUT: [&str; 4] = [
    "model_max_output_tokens",
    "max_output_tokens",
    "model_output_tokens",
    "maxOutputTokens",
];
const OUTPUT_OF_MODEL: [&str; 3] = ["max_output_tokens", "maxOutputTokens", "output_tokens"];

impl RequestBudget {
    /// Budget of a run, from its configuration and `ctx.runtime.metadata`.
    pub fn new(configured: &BudgetSettings, metadata: &JsonObject) -> Self {
        if configured.window == 0 {
            return Self {
                keep_recent: configured.keep_recent,
                summary: configured.summary,
                ..Self::off()
            };
        }
        let host = tokens(metadata, &WINDOW, &WINDOW_OF_MODEL);
        // The operator's window is an upper bound, even if the model accepts more.
        let window = host.map_or(configured.window, |host| host.min(configured.window));
        // A small window must not be all reserve.
        let reserve = configured.reserve.min((window / 4).max(1));
        let output = tokens(metadata, &OUTPUT, &OUTPUT_OF_MODEL);
        // The summary is an answer, too: it must fit the output limit with a margin for estimates.
        let longest = output.map_or(u64::MAX, |output| output.min(reserve * 4 / 5));
        Self {
            window,
            reserve,
            input: window.saturating_sub(reserve).max(1),
            keep_recent: configured.keep_recent,
            summary: configured.summary.min(longest),
        }
    }

    /// No budget: requests are sent unchanged.
    pub fn off() -> Self {
        let BudgetSettings {
            keep_recent,
            summary,
            ..
        } = BudgetSettings::default();
        Self {
            window: 0,
            reserve: 0,
            input: 0,
            keep_recent,
            summary,
        }
    }

    /// True when no budget applies.
    pub fn is_off(&self) -> bool {
        self.window == 0
    }

    /// Smaller budget after a request within this one overflowed the model's window.
    #[must_use]
    pub fn for_retry(&self) -> Self {
        if self.is_off() {
            return *self;
        }
        self.with_window(three_quarters(self.input))
    }

    /// Smaller budget for a request of `sent` tokens that overflowed. The window may be far smaller than
    /// assumed; without a budget, `sent` is the only known bound.
    #[must_use]
    pub fn for_retry_below(&self, sent: u64) -> Self {
        let input = if self.is_off() {
            sent
        } else {
            self.input.min(sent)
        };
        self.with_window(three_quarters(input))
    }

    /// This budget with at most `input` tokens for a request; also where no budget applies.
    #[must_use]
    pub fn limited_to(&self, input: u64) -> Self {
        if !self.is_off() && self.input <= input {
            return *self;
        }
        self.with_window(input)
    }

    /// Same budget for another window, parts in proportion.
    fn with_window(&self, window: u64) -> Self {
        let window = window.max(1);
        Self {
            window,
            reserve: 0,
            input: window,
            keep_recent: self.keep_recent.min(window / 2),
            summary: self.summary.min(window / 4),
        }
    }
}

fn three_quarters(tokens: u64) -> u64 {
    tokens - tokens.div_ceil(4)
}

/// First count above 0 under one of these names, at the top level or under `model`.
fn tokens(metadata: &JsonObject, names: &[&str], names_of_model: &[&str]) -> Option<u64> {
    let count = |object: &JsonObject, name: &str| {
        let count = object.get(name).and_then(Value::as_u64);
        count.filter(|count| *count > 0)
    };
    let model = metadata.get("model").and_then(Value::as_object);
    let direct = names.iter().find_map(|name| count(metadata, name));
    let nested = || {
        let model = model?;
        names_of_model.iter().find_map(|name| count(model, name))
    };
    direct.or_else(nested)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn budget(configured: &BudgetSettings, metadata: Value) -> RequestBudget {
        let Value::Object(metadata) = metadata else {
            panic!("an object")
        };
        RequestBudget::new(configured, &metadata)
    }

    #[test]
    fn caps_host_window_by_configuration() {
        let configured = BudgetSettings::default();
        for (metadata, window) in [
            (json!({}), 200_000),
            (json!({"model_context_window_tokens": 32_000}), 32_000),
            (json!({"context_window_tokens": 32_000}), 32_000),
            (json!({"model_context_tokens": 32_000}), 32_000),
            (json!({"contextWindowTokens": 32_000}), 32_000),
            (json!({"context_window": 32_000}), 32_000),
            (json!({"model": {"context_window_tokens": 32_000}}), 32_000),
            (json!({"model": {"contextWindowTokens": 32_000}}), 32_000),
            (json!({"model": {"context_window": 32_000}}), 32_000),
            (json!({"context_window": 1_000_000}), 200_000),
            (
                json!({"context_window": 0, "contextWindowTokens": "9"}),
                200_000,
            ),
            (json!({"context_window": true, "model": "large"}), 200_000),
            (
                json!({"context_window_chars": 9, "model": {"window": 9}}),
                200_000,
            ),
            (
                json!({"context_window": -5, "model": {"context_window": 8_000}}),
                8_000,
            ),
        ] {
            let budget = budget(&configured, metadata.clone());
            assert_eq!(budget.window, window, "{metadata}");
            assert_eq!(budget.input, window - budget.reserve, "{metadata}");
        }
    }

    #[test]
    fn caps_reserve_at_quarter_of_window() {
        for (window, reserve) in [(200_000, 16_384), (8_192, 2_048), (3, 1), (1, 1)] {
            let configured = BudgetSettings {
                window,
                ..BudgetSettings::default()
            };
            let budget = budget(&configured, json!({}));
            assert_eq!(budget.reserve, reserve, "{window}");
            assert_eq!(budget.input, (window - reserve).max(1), "{window}");
        }
    }

    #[test]
    fn caps_summary_by_output_limit() {
        let configured = BudgetSettings::default();
        for (metadata, summary) in [
            (json!({}), 8_000),
            (json!({"model_max_output_tokens": 4_096}), 4_096),
            (json!({"max_output_tokens": 4_096}), 4_096),
            (json!({"model_output_tokens": 4_096}), 4_096),
            (json!({"maxOutputTokens": 4_096}), 4_096),
            (json!({"model": {"max_output_tokens": 4_096}}), 4_096),
            (json!({"model": {"maxOutputTokens": 4_096}}), 4_096),
            (json!({"model": {"output_tokens": 4_096}}), 4_096),
            (
                json!({"max_output_tokens": 100_000, "context_window": 8_192}),
                1_638,
            ),
            (json!({"context_window": 8_192}), 8_000),
        ] {
            let budget = budget(&configured, metadata.clone());
            assert_eq!(budget.summary, summary, "{metadata}");
        }
    }

    #[test]
    fn zero_window_disables_budget() {
        let configured = BudgetSettings {
            window: 0,
            ..BudgetSettings::default()
        };
        let off = budget(&configured, json!({"context_window": 32_000}));
        assert!(off.is_off() && off == RequestBudget::off());
        assert!(off.for_retry().is_off());
        assert!(!RequestBudget::new(&BudgetSettings::default(), &JsonObject::new()).is_off());
    }

    #[test]
    fn retry_scales_budget_to_three_quarters() {
        let configured = BudgetSettings {
            window: 16_000,
            ..BudgetSettings::default()
        };
        let retry = budget(&configured, json!({})).for_retry();
        assert_eq!(
            (retry.window, retry.reserve, retry.input),
            (9_000, 0, 9_000)
        );
        assert_eq!((retry.keep_recent, retry.summary), (4_500, 2_250));
        let bounded = budget(&configured, json!({})).for_retry_below(6_000);
        assert_eq!((bounded.input, bounded.keep_recent), (4_500, 2_250));
        assert_eq!(RequestBudget::off().for_retry_below(40_000).input, 30_000);
        assert_eq!(RequestBudget::off().for_retry_below(0).input, 1);
        let limited = budget(&configured, json!({})).limited_to(4_000);
        assert_eq!((limited.input, limited.keep_recent), (4_000, 2_000));
        assert_eq!(limited.limited_to(5_000), limited);
        assert_eq!(RequestBudget::off().limited_to(4_000).input, 4_000);
    }
}
