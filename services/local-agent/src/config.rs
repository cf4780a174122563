//! Configuration of an agent for one run. Invalid values count as absent.

use std::time::Duration;

use protocol::JsonObject;
use protocol::message::Message;
use protocol::resources::{AgentResources, KnowledgeOperation, ModelOperation};
use serde_json::Value;

use crate::context::budget::BudgetSettings;

/// Value of form selectors for "none".
const NONE: &str = "__none__";

/// Configuration of one run, restricted to granted resources.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Models in fallback order. Empty: the run fails with `runner.no_model`.
    pub models: Vec<ModelChoice>,
    /// `None`: only the gateway's deadline applies.
    pub timeout: Option<Duration>,
    /// Used when the entry brings no prompt.
    pub prompt: Vec<Message>,
    pub remove_think: bool,
    /// Adds the text so far to deltas.
    pub all_content: bool,
    /// Adds the current date to the prompt.
    pub date_grounding: bool,
    pub knowledge_bases: Vec<String>,
    /// Passages requested from each knowledge base.
    pub retrieval_top_k: u64,
    pub rerank: Option<RerankChoice>,
    /// Limit of tool call batches per run.
    pub max_tool_iterations: u64,
    pub tool_execution: ToolExecution,
    /// Limit of characters of a tool result in a model request.
    pub max_tool_result_chars: usize,
    /// Items per history page.
    pub history_fetch_limit: u32,
    /// Pictures of earlier messages that the model sees again.
    pub pictures: PictureLimits,
    pub context: BudgetSettings,
}

/// Limits of pictures from the history, newest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PictureLimits {
    pub count: usize,
    /// Size of all of them, before base64.
    pub bytes: u64,
}

impl PictureLimits {
    /// Takes a picture out of the limits; false if it exceeds them. Then older pictures are not shown either, so
    /// that the shown ones are the newest.
    pub fn take(&mut self, bytes: u64) -> bool {
        // A picture that does not fit leaves zeros, so that no older one is shown.
        let rest = self.count.checked_sub(1).zip(self.bytes.checked_sub(bytes));
        let is_within = rest.is_some();
        (self.count, self.bytes) = rest.unwrap_or_default();
        is_within
    }
}

/// Model with its call settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelChoice {
    pub id: String,
    pub streams: bool,
    pub invokes: bool,
}

/// Model that reranks retrieved passages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RerankChoice {
    pub model: String,
    pub top_k: usize,
}

/// Execution order of several tool calls in one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolExecution {
    Parallel,
    Serial,
}

impl Config {
    /// Reads an agent's configuration and drops references to resources that were not granted.
    pub fn read(config: &JsonObject, resources: &AgentResources) -> Self {
        Self {
            models: models(config.get("model"), resources),
            timeout: timeout(config.get("timeout")),
            prompt: prompt(config.get("prompt")),
            remove_think: config.get("remove-think") == Some(&Value::Bool(true)),
            all_content: config.get("all-content") == Some(&Value::Bool(true)),
            date_grounding: config.get("date-grounding") == Some(&Value::Bool(true)),
            knowledge_bases: knowledge_bases(config.get("knowledge-bases"), resources),
            retrieval_top_k: integer(config, "retrieval-top-k", 1, 5),
            rerank: rerank(config, resources),
            max_tool_iterations: integer(config, "max-tool-iterations", 1, 100),
            tool_execution: match config.get("tool-execution-mode").and_then(Value::as_str) {
                Some("serial") => ToolExecution::Serial,
                _ => ToolExecution::Parallel,
            },
            max_tool_result_chars: size(integer(config, "max-tool-result-chars", 1, 20_000)),
            history_fetch_limit: u32::try_from(integer(
                config,
                "context-history-fetch-limit",
                1,
                50,
            ))
            .unwrap_or(u32::MAX),
            pictures: PictureLimits {
                count: size(integer(config, "context-history-pictures", 0, 4)),
                // Before base64, which adds a third on the wire.
                bytes: integer(config, "context-history-picture-bytes", 0, 8 * 1024 * 1024),
            },
            context: BudgetSettings {
                window: integer(config, "context-window-tokens", 0, 200_000),
                reserve: integer(config, "context-reserve-tokens", 0, 16_384),
                keep_recent: integer(config, "context-keep-recent-tokens", 0, 20_000),
                summary: integer(config, "context-summary-tokens", 0, 8_000),
            },
        }
    }
}

/// Integer under `key`; the default when it is absent or below `least`.
fn integer(config: &JsonObject, key: &str, least: u64, default: u64) -> u64 {
    // `as_u64` rejects strings, fractions and negative numbers, which then count as absent.
    let value = config.get(key).and_then(Value::as_u64);
    value.filter(|value| *value >= least).unwrap_or(default)
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Primary model and fallbacks, without models that the run may not call.
fn models(selected: Option<&Value>, resources: &AgentResources) -> Vec<ModelChoice> {
    let ids: Vec<&str> = match selected {
        Some(Value::String(id)) => vec![id],
        Some(Value::Object(selected)) => {
            let fallbacks = selected.get("fallbacks").and_then(Value::as_array);
            let fallbacks = fallbacks.into_iter().flatten();
            let all = selected.get("primary").into_iter().chain(fallbacks);
            all.filter_map(Value::as_str).collect()
        }
        _ => Vec::new(),
    };
    let mut models: Vec<ModelChoice> = Vec::new();
    for id in ids.into_iter().map(str::trim) {
        let granted = resources.models.iter().find(|model| model.model_id == id);
        let Some(granted) = granted.filter(|_| id != NONE) else {
            continue;
        };
        let model = ModelChoice {
            id: id.to_owned(),
            streams: granted.operations.contains(&ModelOperation::Stream),
            invokes: granted.operations.contains(&ModelOperation::Invoke),
        };
        // A model may grant counting or reranking only; a duplicate would be called twice after a failure.
        if (model.streams || model.invokes) && !models.contains(&model) {
            models.push(model);
        }
    }
    models
}

fn timeout(value: Option<&Value>) -> Option<Duration> {
    let default = Some(Duration::from_mins(5));
    match value {
        None => default,
        // Explicit null and 0 disable the agent's timeout; only an absent or malformed value means the default.
        Some(Value::Null) => None,
        Some(value) => match value.as_u64() {
            Some(0) => None,
            Some(seconds) => Some(Duration::from_secs(seconds)),
            None => default,
        },
    }
}

/// Prompt messages with a text.
fn prompt(value: Option<&Value>) -> Vec<Message> {
    let messages = value.and_then(Value::as_array).into_iter().flatten();
    let messages = messages.filter_map(|message| {
        let role = message.get("role").and_then(Value::as_str)?;
        let text = message.get("content").and_then(Value::as_str)?;
        Some(Message::text(role, text))
    });
    messages.collect()
}

fn knowledge_bases(value: Option<&Value>, resources: &AgentResources) -> Vec<String> {
    let ids = value.and_then(Value::as_array).into_iter().flatten();
    let mut bases: Vec<String> = Vec::new();
    for id in ids.filter_map(Value::as_str).map(str::trim) {
        let mut granted = resources.knowledge_bases.iter();
        let granted = granted.any(|base| {
            base.kb_id == id && base.operations.contains(&KnowledgeOperation::Retrieve)
        });
        if granted && id != NONE && !bases.iter().any(|base| base == id) {
            bases.push(id.to_owned());
        }
    }
    bases
}

fn rerank(config: &JsonObject, resources: &AgentResources) -> Option<RerankChoice> {
    let id = config.get("rerank-model").and_then(Value::as_str)?.trim();
    let mut granted = resources.models.iter();
    let granted = granted
        .any(|model| model.model_id == id && model.operations.contains(&ModelOperation::Rerank));
    (granted && id != NONE).then(|| RerankChoice {
        model: id.to_owned(),
        top_k: size(integer(config, "rerank-top-k", 1, 5)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn resources() -> AgentResources {
        let operations = ["invoke", "stream", "count_tokens"];
        serde_json::from_value(json!({
            "models": [
                {"model_id": "a", "operations": operations}, {"model_id": "b", "operations": ["invoke"]},
                {"model_id": "counts-only", "operations": ["count_tokens"]},
                {"model_id": "ranker", "operations": ["rerank"]},
            ],
            "knowledge_bases": [
                {"kb_id": "docs", "operations": ["list", "retrieve"]},
                {"kb_id": "faq", "operations": ["retrieve"]},
                {"kb_id": "listed", "operations": ["list"]},
            ],
        }))
        .unwrap()
    }

    #[expect(clippy::needless_pass_by_value, reason = "for json! in place")]
    fn read(config: Value) -> Config {
        Config::read(config.as_object().unwrap(), &resources())
    }

    #[test]
    fn skips_ungranted_fallback_models() {
        for (selected, expected) in [
            (json!({"primary": "a", "fallbacks": []}), vec!["a"]),
            (
                json!({"primary": " a ", "fallbacks": ["b"]}),
                vec!["a", "b"],
            ),
            (
                json!({"primary": "a", "fallbacks": ["x", "b"]}),
                vec!["a", "b"],
            ),
            (json!({"primary": "x", "fallbacks": ["b"]}), vec!["b"]),
            (
                json!({"primary": "a", "fallbacks": ["a", "b", "b"]}),
                vec!["a", "b"],
            ),
            (json!({"primary": "__none__", "fallbacks": ["", 7]}), vec![]),
            (json!({"primary": "counts-only"}), vec![]),
            (json!("a"), vec!["a"]),
            (json!(null), vec![]),
            (json!(["a"]), vec![]),
        ] {
            let models = read(json!({"model": selected})).models;
            let ids: Vec<_> = models.iter().map(|model| model.id.as_str()).collect();
            assert_eq!(ids, expected, "{selected}");
        }
        assert_eq!(read(json!({})).models, []);
        assert!(!read(json!({"model": "b"})).models[0].streams);
    }

    #[test]
    fn reads_timeout_in_seconds() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(read(json!({})).timeout, seconds(300));
        for (value, expected) in [
            (json!(12), seconds(12)),
            (json!(0), None),
            (json!(null), None),
            (json!(-1), seconds(300)),
            (json!(true), seconds(300)),
            (json!(1.5), seconds(300)),
        ] {
            assert_eq!(read(json!({"timeout": value})).timeout, expected, "{value}");
        }
    }

    #[test]
    fn keeps_only_granted_knowledge_bases() {
        for (value, expected) in [
            (json!([]), vec![]),
            (json!(["docs"]), vec!["docs"]),
            (json!(["docs", "faq", "docs"]), vec!["docs", "faq"]),
            (json!(["other", "listed", "__none__", "faq"]), vec!["faq"]),
            (json!("docs"), vec![]),
        ] {
            let read = read(json!({"knowledge-bases": value})).knowledge_bases;
            assert_eq!(read, expected, "{value}");
        }
        let singular = read(json!({"knowledge-base": "docs"}));
        assert_eq!(singular.knowledge_bases, Vec::<String>::new());
    }

    #[test]
    fn disables_reranking_without_granted_model() {
        let rerank = |value| read(value).rerank;
        let ranker = |top_k| {
            Some(RerankChoice {
                model: "ranker".to_owned(),
                top_k,
            })
        };
        assert_eq!(rerank(json!({})), None);
        assert_eq!(rerank(json!({"rerank-model": ""})), None);
        assert_eq!(rerank(json!({"rerank-model": "__none__"})), None);
        assert_eq!(rerank(json!({"rerank-model": "a"})), None);
        assert_eq!(rerank(json!({"rerank-model": "ranker"})), ranker(5));
        let with = |top_k: Value| json!({"rerank-model": "ranker", "rerank-top-k": top_k});
        assert_eq!(rerank(with(json!(3))), ranker(3));
        assert_eq!(rerank(with(json!(0))), ranker(5));
    }

    #[test]
    fn invalid_numbers_take_defaults() {
        let defaults = read(json!({}));
        let wrong = read(json!({
            "retrieval-top-k": 0, "max-tool-iterations": 0, "max-tool-result-chars": "20",
            "context-history-fetch-limit": 0, "context-window-tokens": -1,
            "context-reserve-tokens": 1.5, "context-keep-recent-tokens": true,
            "context-summary-tokens": null, "tool-execution-mode": true, "remove-think": "true",
            "all-content": 1,
            "context-window-chars": 9, "context-reserve-chars": 9, "context-summary-chars": 9,
        }));
        assert_eq!(wrong, defaults);
        assert_eq!(defaults.retrieval_top_k, 5);
        assert_eq!(defaults.max_tool_iterations, 100);
        assert_eq!(defaults.max_tool_result_chars, 20_000);
        assert_eq!(defaults.history_fetch_limit, 50);
        assert_eq!(defaults.tool_execution, ToolExecution::Parallel);
        assert_eq!(read(json!({"context-window-tokens": 0})).context.window, 0);
        let serial = read(json!({"tool-execution-mode": "serial", "remove-think": true}));
        assert_eq!(serial.tool_execution, ToolExecution::Serial);
        assert!(serial.remove_think);
        let unknown = read(json!({"tool-execution-mode": "at-once"}));
        assert_eq!(unknown.tool_execution, ToolExecution::Parallel);
    }

    #[test]
    fn reads_text_messages_of_prompt() {
        let prompt = json!([
            {"role": "system", "content": "Be brief."}, {"role": "system", "content": ["no"]},
            {"content": "no role"}, "no object",
        ]);
        let prompt = read(json!({"prompt": prompt})).prompt;
        assert_eq!(prompt, [Message::text("system", "Be brief.")]);
    }
}
