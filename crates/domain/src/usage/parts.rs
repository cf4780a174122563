//! Tokens of a call by price: providers bill cached and reasoning tokens at prices of their own.

use protocol::JsonObject;
use protocol::message::LlmTokenUsage;
use serde_json::{Value, json};

use super::count;

/// Disjoint token counts of one call. Their sum is the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenParts {
    /// Prompt tokens that the cache neither served nor stored.
    pub input: u64,
    pub cache_read: u64,
    /// Prompt tokens stored for five minutes, or for an unknown time.
    pub cache_write_5m: u64,
    /// Prompt tokens stored for an hour.
    pub cache_write_1h: u64,
    /// Completion tokens without reasoning.
    pub output: u64,
    pub reasoning: u64,
}

/// JSON pointers to cached prompt tokens: of OpenAI, Anthropic, `DeepSeek` and Moonshot.
const READ: [&str; 5] = [
    "/prompt_tokens_details/cached_tokens",
    "/input_tokens_details/cached_tokens",
    "/cache_read_input_tokens",
    "/prompt_cache_hit_tokens",
    "/cached_tokens",
];
/// JSON pointers to stored prompt tokens: of Anthropic, `OpenRouter` and `LiteLLM`.
const WRITTEN: [&str; 5] = [
    "/cache_creation_input_tokens",
    "/prompt_tokens_details/cache_write_tokens",
    "/input_tokens_details/cache_write_tokens",
    "/prompt_tokens_details/cache_creation_tokens",
    "/input_tokens_details/cache_creation_tokens",
];
/// JSON pointers to the counts of stored prompt tokens by lifetime.
const BY_LIFETIME: [&str; 2] = [
    "/cache_creation",
    "/prompt_tokens_details/cache_creation_token_details",
];
const REASONING: [&str; 4] = [
    "/completion_tokens_details/reasoning_tokens",
    "/output_tokens_details/reasoning_tokens",
    "/output_tokens_details/thinking_tokens",
    "/reasoning_tokens",
];

impl TokenParts {
    /// Splits these totals by the details of a usage. Details never exceed their total.
    pub fn split(prompt: u64, completion: u64, usage: Option<&LlmTokenUsage>) -> Self {
        let none = JsonObject::new();
        let details = usage.map_or(&none, |usage| &usage.further);
        // Bounded by the total: a wrong detail must not make the rest negative.
        let cache_read = largest(details, &READ).min(prompt);
        let (short, long) = written(details);
        let cache_write_1h = long.min(prompt - cache_read);
        let cache_write_5m = short.min(prompt - cache_read - cache_write_1h);
        let reasoning = largest(details, &REASONING).min(completion);
        Self {
            input: prompt - cache_read - cache_write_1h - cache_write_5m,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            output: completion - reasoning,
            reasoning,
        }
    }

    /// The parts of a provider's usage. Unknown totals are 0.
    pub fn of(usage: Option<&LlmTokenUsage>) -> Self {
        let of = |count: Option<i64>| count.map_or(0, |count| u64::try_from(count).unwrap_or(0));
        let prompt = of(usage.and_then(|usage| usage.prompt_tokens));
        let completion = of(usage.and_then(|usage| usage.completion_tokens));
        Self::split(prompt, completion, usage)
    }

    /// All prompt tokens.
    pub fn prompt(self) -> u64 {
        let written = self.cache_write_5m.saturating_add(self.cache_write_1h);
        let cached = self.cache_read.saturating_add(written);
        self.input.saturating_add(cached)
    }

    /// All completion tokens.
    pub fn completion(self) -> u64 {
        self.output.saturating_add(self.reasoning)
    }

    /// Stored prompt tokens.
    pub fn cache_write(self) -> u64 {
        self.cache_write_5m.saturating_add(self.cache_write_1h)
    }

    /// Returns the sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            cache_write_5m: self.cache_write_5m.saturating_add(other.cache_write_5m),
            cache_write_1h: self.cache_write_1h.saturating_add(other.cache_write_1h),
            output: self.output.saturating_add(other.output),
            reasoning: self.reasoning.saturating_add(other.reasoning),
        }
    }
}

/// Prompt tokens that Anthropic reports separately from `input_tokens`.
pub(super) fn cached_separately(provider_usage: &JsonObject) -> Option<i64> {
    let names = ["cache_read_input_tokens", "cache_creation_input_tokens"];
    let counts = names
        .iter()
        .filter_map(|name| count(provider_usage.get(*name)?));
    counts.reduce(i64::saturating_add)
}

/// Reasoning tokens of a usage in any spelling.
pub(super) fn reasoning(provider_usage: &JsonObject) -> i64 {
    i64::try_from(largest(provider_usage, &REASONING)).unwrap_or(i64::MAX)
}

/// Adds the details in the spelling of OpenAI's chat completions, which clients of that API read.
pub(super) fn add_chat_details(usage: &mut LlmTokenUsage) {
    let parts = TokenParts::of(Some(usage));
    for (group, name, count) in [
        ("prompt_tokens_details", "cached_tokens", parts.cache_read),
        (
            "prompt_tokens_details",
            "cache_write_tokens",
            parts.cache_write(),
        ),
        (
            "completion_tokens_details",
            "reasoning_tokens",
            parts.reasoning,
        ),
    ] {
        // Absent details mean an unknown count; a 0 would be a statement.
        if count > 0 {
            let details = usage.further.entry(group).or_insert(Value::Null);
            // Some providers send null or a list here; indexing would panic.
            if !details.is_object() {
                *details = json!({});
            }
            details[name] = json!(count);
        }
    }
}

/// Stored tokens for five minutes, and for an hour. A count without lifetime is one for five minutes.
fn written(details: &JsonObject) -> (u64, u64) {
    let of = |name: &str| {
        let pointers = BY_LIFETIME.map(|group| format!("{group}/{name}"));
        largest(details, &pointers.each_ref().map(String::as_str))
    };
    let long = of("ephemeral_1h_input_tokens");
    let short = of("ephemeral_5m_input_tokens");
    // The unspecific count includes tokens of both lifetimes.
    let rest = largest(details, &WRITTEN).saturating_sub(long);
    (short.max(rest), long)
}

fn largest(details: &JsonObject, pointers: &[&str]) -> u64 {
    let counts = pointers.iter().filter_map(|pointer| {
        // The first member by name: `JsonObject` has no pointers.
        let path = pointer.trim_start_matches('/');
        let (member, rest) = path.split_at(path.find('/').unwrap_or(path.len()));
        count(details.get(member)?.pointer(rest)?)
    });
    // The largest: some providers fill several spellings, some of them with 0.
    counts
        .max()
        .map_or(0, |count| u64::try_from(count).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::usage;

    #[test]
    fn splits_tokens_of_every_spelling() {
        for (provider_usage, expected) in [
            // Anthropic, without and with lifetimes.
            (
                json!({"input_tokens": 200, "cache_read_input_tokens": 40_000, "cache_creation_input_tokens": 1000,
                    "output_tokens": 9}),
                [200, 40_000, 1000, 0, 9, 0],
            ),
            (
                json!({"input_tokens": 200, "cache_read_input_tokens": 40_000, "cache_creation_input_tokens": 1000,
                    "cache_creation": {"ephemeral_5m_input_tokens": 300, "ephemeral_1h_input_tokens": 700},
                    "output_tokens": 9, "output_tokens_details": {"thinking_tokens": 4}}),
                [200, 40_000, 300, 700, 5, 4],
            ),
            // A proxy that adds Anthropic's counts to OpenAI's names.
            (
                json!({"prompt_tokens": 200, "cache_read_input_tokens": 40_000, "completion_tokens": 9}),
                [200, 40_000, 0, 0, 9, 0],
            ),
            // OpenAI, both APIs.
            (
                json!({"prompt_tokens": 1000, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 900},
                    "completion_tokens_details": {"reasoning_tokens": 30}}),
                [100, 900, 0, 0, 20, 30],
            ),
            (
                json!({"input_tokens": 1000, "output_tokens": 50, "input_tokens_details": {"cached_tokens": 900},
                    "output_tokens_details": {"reasoning_tokens": 30}}),
                [100, 900, 0, 0, 20, 30],
            ),
            // DeepSeek, Moonshot, OpenRouter.
            (
                json!({"prompt_tokens": 1000, "completion_tokens": 5, "prompt_cache_hit_tokens": 900,
                    "prompt_cache_miss_tokens": 100}),
                [100, 900, 0, 0, 5, 0],
            ),
            (
                json!({"prompt_tokens": 1000, "completion_tokens": 5, "cached_tokens": "900"}),
                [100, 900, 0, 0, 5, 0],
            ),
            (
                json!({"prompt_tokens": 1000, "completion_tokens": 5,
                    "prompt_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 300}}),
                [100, 600, 300, 0, 5, 0],
            ),
            // xAI counts reasoning separately from the completion.
            (
                json!({"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 135,
                    "completion_tokens_details": {"reasoning_tokens": 30}}),
                [100, 0, 0, 0, 5, 30],
            ),
            // Details never exceed their total.
            (
                json!({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 99},
                    "completion_tokens_details": {"reasoning_tokens": 3}}),
                [0, 9, 0, 0, 0, 2],
            ),
            (
                json!({"prompt_tokens": 9, "prompt_tokens_details": null}),
                [9, 0, 0, 0, 0, 0],
            ),
        ] {
            let read = usage(&provider_usage);
            let parts = TokenParts::of(read.as_ref());
            let found = [
                parts.input,
                parts.cache_read,
                parts.cache_write_5m,
                parts.cache_write_1h,
                parts.output,
                parts.reasoning,
            ];
            assert_eq!(found, expected, "{provider_usage}");
            // Reading the result again changes nothing.
            let again = usage(&json!(read));
            assert_eq!(TokenParts::of(again.as_ref()), parts, "{provider_usage}");
        }
    }

    #[test]
    fn usage_names_details_as_chat_completions() {
        let provider_usage = json!({"input_tokens": 1, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 2,
            "output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 1}});
        let usage = json!(usage(&provider_usage));
        assert_eq!(usage["prompt_tokens"], 10);
        assert_eq!(
            usage["prompt_tokens_details"],
            json!({"cached_tokens": 7, "cache_write_tokens": 2})
        );
        assert_eq!(
            usage["completion_tokens_details"],
            json!({"reasoning_tokens": 1})
        );
    }
}
