//! Parts of a request that a provider refused. The request goes out once more without them, which costs nothing:
//! a refused request has no effect.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use llm_formats::messages::{disable_budget, remove_thinking_blocks};
use protocol::JsonObject;
use serde_json::{Value, json};

use egress::upstream::UpstreamError;

/// Effort levels, each with the next one to send after a refusal. `None`: send no level.
const NEXT_LEVELS: [(&str, Option<&str>); 8] = [
    ("ultra", Some("max")),
    ("max", Some("xhigh")),
    ("xhigh", Some("high")),
    ("high", None),
    ("medium", None),
    ("none", Some("minimal")),
    ("minimal", Some("low")),
    ("low", None),
];
/// Members with an effort level, by wire format.
const EFFORTS: [(Option<&str>, &str); 3] = [
    (None, "reasoning_effort"),
    (Some("reasoning"), "effort"),
    (Some("output_config"), "effort"),
];
/// Maximum number of remembered refusals: a few levels of each model of a provider.
const REFUSALS: usize = 256;

/// Refused effort levels of one provider, by model and level. Full: further ones are refused again each time.
#[derive(Default)]
pub(super) struct RefusedParts(Mutex<BTreeMap<(String, &'static str), Option<&'static str>>>);

impl RefusedParts {
    /// The request without parts that the provider has refused before. `None`: it has none.
    pub(super) fn without_remembered(&self, body: &JsonObject) -> Option<JsonObject> {
        let (holder, name, level) = effort_of(body)?;
        let level = listed_level(level)?;
        let mut next = Some(level);
        // Follow the chain: a lower level may have been refused as well.
        let refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(level) = next {
            match refused.get(&(model_of(body), level)) {
                Some(lower) => next = *lower,
                None => break,
            }
        }
        // Release the lock before the body is cloned.
        drop(refused);
        (next != Some(level)).then(|| with_effort(body, holder, name, next))
    }

    /// The request without the part to which this refusal refers. `None`: it refers to no such part.
    pub(super) fn without_refused(
        &self,
        body: &JsonObject,
        refusal: &UpstreamError,
    ) -> Option<JsonObject> {
        let UpstreamError::Refused {
            status: 400 | 422,
            message,
        } = refusal
        else {
            return None;
        };
        let message = message.to_lowercase();
        without_thinking(body, &message).or_else(|| self.without_effort(body, &message))
    }

    fn without_effort(&self, body: &JsonObject, message: &str) -> Option<JsonObject> {
        let (holder, name, level) = effort_of(body)?;
        // Providers quote the refused value in several ways.
        let quotes_level = ["'", "\"", "`"]
            .iter()
            .any(|quote| message.contains(&format!("{quote}{level}{quote}")));
        if !quotes_level && !message.contains("effort") {
            return None;
        }
        let next = match listed_level(level) {
            Some(level) => {
                let next = next_of(level);
                self.remember(model_of(body), level, next);
                next
            }
            // The caller invented it.
            None => Some("high"),
        };
        Some(with_effort(body, holder, name, next))
    }

    fn remember(&self, model: String, level: &'static str, next: Option<&'static str>) {
        tracing::warn!(
            model.name = model,
            "model {model} of the provider refuses the effort level {level}, sending {} in its place from now on",
            next.unwrap_or("none")
        );
        let mut refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() < REFUSALS {
            refused.insert((model, level), next);
        }
    }
}

/// Signatures of another account or model look like valid ones, so the provider finds them first.
fn without_thinking(body: &JsonObject, message: &str) -> Option<JsonObject> {
    let is_about = ["signature", "redacted_thinking", "block", "expected"]
        .iter()
        .any(|word| message.contains(word));
    if !is_about || !message.contains("thinking") {
        return None;
    }
    let mut body = body.clone();
    let has_changed = remove_thinking_blocks(&mut body, |_| true);
    (has_changed || disable_budget(&mut body)).then_some(body)
}

fn effort_of(body: &JsonObject) -> Option<(Option<&'static str>, &'static str, &str)> {
    EFFORTS.iter().find_map(|(holder, name)| {
        let members = match holder {
            Some(holder) => body.get(*holder)?.as_object()?,
            None => body,
        };
        Some((*holder, *name, members.get(*name)?.as_str()?))
    })
}

fn with_effort(
    body: &JsonObject,
    holder: Option<&str>,
    name: &str,
    level: Option<&str>,
) -> JsonObject {
    let mut body = body.clone();
    let members = match holder {
        Some(holder) => body.get_mut(holder).and_then(Value::as_object_mut),
        None => Some(&mut body),
    };
    if let Some(members) = members {
        match level {
            Some(level) => members.insert(name.to_owned(), json!(level)),
            None => members.remove(name),
        };
    }
    body
}

fn listed_level(level: &str) -> Option<&'static str> {
    NEXT_LEVELS
        .iter()
        .find_map(|(candidate, _)| (*candidate == level).then_some(*candidate))
}

fn next_of(level: &str) -> Option<&'static str> {
    let found = NEXT_LEVELS
        .iter()
        .find(|(candidate, _)| *candidate == level);
    found.and_then(|(_, next)| *next)
}

fn model_of(body: &JsonObject) -> String {
    let model = body.get("model").and_then(Value::as_str);
    model.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> JsonObject {
        serde_json::from_value(value).unwrap()
    }

    fn refusal(status: u16, message: &str) -> UpstreamError {
        UpstreamError::Refused {
            status,
            message: message.to_owned(),
        }
    }

    #[test]
    fn lowers_refused_effort_levels_for_later_requests() {
        let refused = RefusedParts::default();
        let xhigh = object(json!({"model": "m", "reasoning_effort": "xhigh"}));
        let unsupported = refusal(400, "Unsupported value: 'xhigh' is not supported");
        assert_eq!(refused.without_remembered(&xhigh), None);
        let high = object(json!({"model": "m", "reasoning_effort": "high"}));
        assert_eq!(
            refused.without_refused(&xhigh, &unsupported),
            Some(high.clone())
        );
        assert_eq!(refused.without_remembered(&xhigh), Some(high.clone()));
        let other = object(json!({"model": "n", "reasoning_effort": "xhigh"}));
        assert_eq!(refused.without_remembered(&other), None);
        let unknown = refusal(400, "Unrecognized request argument: reasoning_effort");
        let without = object(json!({"model": "m"}));
        assert_eq!(
            refused.without_refused(&high, &unknown),
            Some(without.clone())
        );
        assert_eq!(refused.without_remembered(&xhigh), Some(without));
    }

    #[test]
    fn finds_effort_levels_of_every_wire_format() {
        for (body, lower) in [
            (
                json!({"reasoning": {"effort": "none", "summary": "auto"}}),
                json!({"reasoning": {"effort": "minimal", "summary": "auto"}}),
            ),
            (
                json!({"output_config": {"effort": "max"}}),
                json!({"output_config": {"effort": "xhigh"}}),
            ),
            (
                json!({"reasoning_effort": "turbo"}),
                json!({"reasoning_effort": "high"}),
            ),
        ] {
            let refusal = refusal(422, "bad reasoning effort");
            let lowered = RefusedParts::default().without_refused(&object(body), &refusal);
            assert_eq!(lowered, Some(object(lower)));
        }
        let high = object(json!({"reasoning_effort": "high"}));
        for other in [
            refusal(404, "bad effort"),
            refusal(400, "bad role"),
            UpstreamError::Timeout,
        ] {
            let refused = RefusedParts::default();
            assert_eq!(refused.without_refused(&high, &other), None, "{other}");
        }
    }

    #[test]
    fn removes_reasoning_with_refused_signatures() {
        let thinks =
            json!({"type": "thinking", "thinking": "a", "signature": "of another account"});
        let call = json!({"type": "tool_use", "id": "t", "name": "f", "input": {}});
        let body = object(
            json!({"thinking": {"type": "enabled", "budget_tokens": 2000},
            "messages": [{"role": "assistant", "content": [thinks, call]}]}),
        );
        let invalid = refusal(
            400,
            "messages.0.content.0: Invalid `signature` in `thinking` block",
        );
        let without = json!({"messages": [{"role": "assistant", "content": [call]}]});
        let refused = RefusedParts::default();
        assert_eq!(
            refused.without_refused(&body, &invalid),
            Some(object(without.clone()))
        );
        assert_eq!(refused.without_refused(&object(without), &invalid), None);
    }
}
