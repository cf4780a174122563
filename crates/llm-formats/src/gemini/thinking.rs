//! Thinking: effort levels of chat completions, budgets of Gemini 2.5, levels of Gemini 3.

use protocol::admin::Fault;
use serde_json::{Value, json};

use super::members::{check_members, member, text};

/// Levels of Gemini 3, which are also effort levels.
const LEVELS: [&str; 4] = ["minimal", "low", "medium", "high"];

/// Version of a Gemini model. A name without a number counts as the newest.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) struct GeminiVersion(u32, u32);

impl GeminiVersion {
    /// The version in a model name. `None`: a model of another family.
    pub(super) fn of_model(upstream: &str) -> Option<Self> {
        let name = upstream.rsplit('/').next().unwrap_or(upstream);
        let rest = name.strip_prefix("gemini-")?;
        let number = rest.split('-').find(|part| {
            part.chars()
                .next()
                .is_some_and(|first| first.is_ascii_digit())
        });
        let Some(number) = number else {
            return Some(Self(u32::MAX, 0));
        };
        let (major, minor) = number.split_once('.').unwrap_or((number, "0"));
        Some(Self(major.parse().ok()?, minor.parse().unwrap_or(0)))
    }

    /// Models of these versions demand the signatures of their calls.
    pub(super) fn demands_signatures(self) -> bool {
        self >= Self(3, 0)
    }
}

/// Returns the `thinkingConfig` for an effort level. `None`: the model gets none.
pub(super) fn config_of(effort: &str, upstream: &str) -> Option<Value> {
    let version = GeminiVersion::of_model(upstream)?;
    if version < GeminiVersion(2, 5) {
        return None;
    }
    if version >= GeminiVersion(3, 0) {
        // These models always think; not all of them have the level `minimal`.
        let level = match effort {
            "none" | "minimal" | "low" => "low",
            "medium" => "medium",
            "high" | "xhigh" | "max" => "high",
            _ => return None,
        };
        return Some(json!({"thinkingLevel": level, "includeThoughts": effort != "none"}));
    }
    let budget = match effort {
        // Not all models can stop thinking; 128 is the smallest budget of the others.
        "none" if upstream.contains("flash") => 0,
        "none" => 128,
        "minimal" | "low" => 1024,
        "medium" => 8192,
        "high" | "xhigh" | "max" => 24_576,
        _ => return None,
    };
    Some(json!({"thinkingBudget": budget, "includeThoughts": effort != "none"}))
}

/// Thinking that a request demands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestedThinking {
    /// `None`: the model decides.
    pub(super) effort: Option<&'static str>,
    pub(super) is_shown: bool,
}

impl RequestedThinking {
    /// Reads a `thinkingConfig`; null is absent.
    pub(super) fn read(config: &Value) -> Result<Self, Fault> {
        if config.is_null() {
            return Ok(Self::default());
        }
        check_members(
            config,
            &["includeThoughts", "thinkingBudget", "thinkingLevel"],
        )?;
        let budget = member(config, "thinkingBudget");
        let is_count = budget.is_null() || budget.as_i64().is_some_and(|budget| budget >= -1);
        require(
            is_count,
            "/thinkingBudget",
            "must be an integer, -1 for a dynamic budget",
        )?;
        let level = text(config, "thinkingLevel").to_ascii_lowercase();
        let level = LEVELS.into_iter().find(|listed| *listed == level);
        Ok(Self {
            effort: level.or_else(|| budget.as_i64().and_then(effort_of_budget)),
            is_shown: member(config, "includeThoughts") == true,
        })
    }
}

/// The level nearest to a budget. `None`: the budget is dynamic.
fn effort_of_budget(budget: i64) -> Option<&'static str> {
    match budget {
        0 => Some("none"),
        1..=2048 => Some("low"),
        2049..=12_288 => Some("medium"),
        12_289.. => Some("high"),
        _ => None,
    }
}

fn require(holds: bool, pointer: &str, message: &str) -> Result<(), Fault> {
    if holds {
        return Ok(());
    }
    Err(Fault::new(pointer, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effort_becomes_budget_or_level() {
        for (effort, model, expected) in [
            (
                "low",
                "gemini-2.5-flash",
                Some(json!({"thinkingBudget": 1024, "includeThoughts": true})),
            ),
            (
                "none",
                "gemini-2.5-flash",
                Some(json!({"thinkingBudget": 0, "includeThoughts": false})),
            ),
            (
                "none",
                "models/gemini-2.5-pro",
                Some(json!({"thinkingBudget": 128, "includeThoughts": false})),
            ),
            (
                "max",
                "gemini-3-pro-preview",
                Some(json!({"thinkingLevel": "high", "includeThoughts": true})),
            ),
            (
                "minimal",
                "gemini-flash-latest",
                Some(json!({"thinkingLevel": "low", "includeThoughts": true})),
            ),
            ("high", "gemini-2.0-flash", None),
            ("high", "gemma-3-27b-it", None),
            ("strange", "gemini-2.5-pro", None),
        ] {
            assert_eq!(config_of(effort, model), expected, "{effort} {model}");
        }
    }

    #[test]
    fn config_becomes_effort() {
        for (config, effort, is_shown) in [
            (json!(null), None, false),
            (
                json!({"includeThoughts": true, "thinkingBudget": -1}),
                None,
                true,
            ),
            (json!({"thinking_budget": 0}), Some("none"), false),
            (json!({"thinkingBudget": 512}), Some("low"), false),
            (json!({"thinkingBudget": 8192}), Some("medium"), false),
            (json!({"thinkingBudget": 32_768}), Some("high"), false),
            (json!({"thinkingLevel": "HIGH"}), Some("high"), false),
            (
                json!({"thinkingLevel": "THINKING_LEVEL_UNSPECIFIED"}),
                None,
                false,
            ),
        ] {
            let expected = RequestedThinking { effort, is_shown };
            assert_eq!(RequestedThinking::read(&config), Ok(expected), "{config}");
        }
        let fault = RequestedThinking::read(&json!({"thinkingBudget": "9"})).unwrap_err();
        assert_eq!(fault.pointer, "/thinkingBudget");
    }
}
