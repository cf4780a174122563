//! Thinking parameters, which differ by model.

use protocol::JsonObject;
use serde_json::{Value, json};

use super::answer::is_signed;
use crate::list;

/// Minimum number of tokens that thinking leaves for the answer.
const ANSWER_TOKENS: u64 = 1024;
/// Parameters that the API refuses together with thinking, and newer models always.
const SAMPLING: [&str; 3] = ["temperature", "top_p", "top_k"];

/// The thinking mode of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// A token budget.
    Budget,
    /// An effort level. The model refuses sampling parameters.
    Adaptive,
    /// The model does not think.
    None,
}

/// Version of a model. A name without a number counts as the newest.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
struct Version(u32, u32);

impl Thinking {
    /// The mode of the model with this name. Models of other makers take a budget.
    pub fn of_model(upstream: &str) -> Self {
        match version(upstream) {
            None => Self::Budget,
            Some(version) if version < Version(3, 7) => Self::None,
            Some(version) if version < Version(4, 6) => Self::Budget,
            Some(_) => Self::Adaptive,
        }
    }

    /// Sets the thinking parameters of the request, except those in its turns.
    pub(super) fn ask(self, body: &JsonObject, request: &mut JsonObject) {
        let effort = body.get("reasoning_effort").and_then(Value::as_str);
        match self {
            Self::Budget => {
                let budget = effort.and_then(|effort| budget(effort, max_tokens_of(request)));
                if let Some(budget) = budget.filter(|_| may_think(request)) {
                    let thinking = json!({"type": "enabled", "budget_tokens": budget});
                    request.insert("thinking".to_owned(), thinking);
                    remove_sampling(request);
                }
            }
            Self::Adaptive => {
                remove_sampling(request);
                adapt(effort.unwrap_or_default(), request);
            }
            Self::None => {}
        }
    }
}

fn remove_sampling(request: &mut JsonObject) {
    for sampling in SAMPLING {
        request.remove(sampling);
    }
}

fn max_tokens_of(request: &JsonObject) -> u64 {
    let max_tokens = request.get("max_tokens").and_then(Value::as_u64);
    max_tokens.unwrap_or_default()
}

fn budget(effort: &str, max_tokens: u64) -> Option<u64> {
    let budget = match effort {
        "minimal" | "low" => 1024,
        "medium" => 4096,
        "high" => 16_384,
        "xhigh" | "max" => 32_768,
        _ => return None,
    };
    // The API requires a budget of at least 1024 tokens, below `max_tokens`.
    let available = max_tokens
        .checked_sub(ANSWER_TOKENS)
        .filter(|available| *available >= 1024)?;
    Some(budget.min(available))
}

/// The API refuses a budget with a forced tool, and after a turn with tool calls that does not begin with its signed
/// reasoning.
fn may_think(request: &JsonObject) -> bool {
    let choice = request.get("tool_choice").map(|choice| &choice["type"]);
    let is_forced = choice.is_some_and(|kind| kind == "any" || kind == "tool");
    let turns = list(request.get("messages"));
    let last = turns.iter().rfind(|turn| turn["role"] == "assistant");
    let content = last.map_or(&[][..], |turn| list(turn.get("content")));
    let is_thought = content.first().is_some_and(is_signed);
    let has_calls = content.iter().any(|block| block["type"] == "tool_use");
    !is_forced && (is_thought || !has_calls)
}

/// Sets adaptive thinking, which allows forced tools and turns without reasoning.
fn adapt(effort: &str, request: &mut JsonObject) {
    let effort = match effort {
        "minimal" | "low" => "low",
        "medium" => "medium",
        // Not all models support efforts above `high`.
        "high" | "xhigh" | "max" => "high",
        "none" => return do_not_think(request),
        _ => return,
    };
    // Newer models omit their reasoning unless requested.
    let thinking = json!({"type": "adaptive", "display": "summarized"});
    request.insert("thinking".to_owned(), thinking);
    set_effort(effort, request);
}

/// Sets the effort next to the format of the answer.
fn set_effort(effort: &str, request: &mut JsonObject) {
    let config = request.entry("output_config").or_insert_with(|| json!({}));
    config["effort"] = json!(effort);
}

/// Disables thinking. Depending on the model, the parameter is omitted, set to disabled, or replaced by the
/// lowest effort.
fn do_not_think(request: &mut JsonObject) {
    let model = request.get("model").and_then(Value::as_str);
    let model = model.unwrap_or_default();
    let is_always_thinking = model.contains("fable") || model.contains("mythos");
    match version(model) {
        Some(Version(4, _)) if !is_always_thinking => {}
        Some(Version(5, minor))
            if !is_always_thinking && (minor == 0 || model.contains("haiku")) =>
        {
            request.insert("thinking".to_owned(), json!({"type": "disabled"}));
        }
        _ => {
            set_effort("low", request);
        }
    }
}

/// The version of a Claude model: `claude-3-7-sonnet-20250219`, `anthropic.claude-opus-4-1-v1:0`,
/// `anthropic/claude-opus-4.6`. `None`: not a Claude model.
fn version(upstream: &str) -> Option<Version> {
    let (_, rest) = upstream.split_once("claude")?;
    let words: Vec<_> = rest.split(['-', '.', '_', ':', '@', '/']).collect();
    // Longer numbers are dates.
    let number = |word: &&str| word.parse().ok().filter(|_| word.len() <= 2);
    let at = words.iter().position(|word| number(word).is_some());
    let Some(at) = at else {
        return Some(Version(u32::MAX, 0));
    };
    let numbers = words[at..].iter().map_while(number);
    let numbers: Vec<u32> = numbers.take(2).collect();
    Some(Version(numbers[0], numbers.get(1).copied().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinking_mode_follows_model_family() {
        for (name, thinking) in [
            ("claude-2.1", Thinking::None),
            ("claude-instant-1.2", Thinking::None),
            ("claude-3-opus-20240229", Thinking::None),
            ("claude-3-5-haiku-latest", Thinking::None),
            ("claude-3-7-sonnet-20250219", Thinking::Budget),
            ("claude-sonnet-4-20250514", Thinking::Budget),
            ("anthropic.claude-opus-4-1-20250805-v1:0", Thinking::Budget),
            ("claude-haiku-4-5@20251001", Thinking::Budget),
            ("claude-opus-4-6", Thinking::Adaptive),
            ("anthropic/claude-opus-4.7", Thinking::Adaptive),
            ("anthropic.claude-sonnet-5", Thinking::Adaptive),
            ("claude-opus-5-5", Thinking::Adaptive),
            ("claude-mythos-preview", Thinking::Adaptive),
            ("glm-4.6", Thinking::Budget),
        ] {
            assert_eq!(Thinking::of_model(name), thinking, "{name}");
        }
    }

    #[test]
    fn disables_thinking_where_supported() {
        let nothing = json!({"model": 0, "max_tokens": 10});
        let disabled = json!({"model": 0, "max_tokens": 10, "thinking": {"type": "disabled"}});
        let little = json!({"model": 0, "max_tokens": 10, "output_config": {"effort": "low"}});
        for (model, expected) in [
            ("claude-opus-4-6", &nothing),
            ("claude-opus-4-8", &nothing),
            ("claude-sonnet-5", &disabled),
            ("claude-opus-5", &disabled),
            ("claude-haiku-5-5", &disabled),
            ("claude-opus-5-5", &little),
            ("claude-fable-5", &little),
            ("claude-mythos-preview", &little),
        ] {
            let body = json!({"reasoning_effort": "none"});
            let mut request = json!({"model": model, "max_tokens": 10, "temperature": 1});
            let of = request.as_object_mut().unwrap();
            Thinking::Adaptive.ask(body.as_object().unwrap(), of);
            let mut expected = expected.clone();
            expected["model"] = json!(model);
            assert_eq!(request, expected);
        }
    }
}
