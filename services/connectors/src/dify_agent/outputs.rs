//! The outputs of a workflow and of its answer nodes: text that was not streamed.

use serde_json::Value;

use crate::dify_agent::config::DifyAppType;
use crate::upstream::answer::PlatformAnswer;
use crate::upstream::json::{self, filled};

/// Outputs of a workflow that may be its answer, in order of priority.
const OUTPUTS: [&str; 5] = ["summary", "answer", "text", "result", "output"];

#[derive(Debug, Default)]
pub(super) struct DifyOutputs {
    /// Texts of the answer nodes, with their ids.
    nodes: Vec<(String, String)>,
    /// The answer at the end of a chatflow.
    stated: Option<String>,
    /// The answer if no text was streamed and no answer node ended.
    outputs: Option<String>,
    /// Moderation replaced the answer.
    pub(super) is_replaced: bool,
}

impl DifyOutputs {
    /// Stores the text of an answer node. Reopened streams repeat their nodes.
    pub(super) fn node_finished(&mut self, data: &Value) {
        let id = data["id"].as_str().unwrap_or_default();
        self.nodes.retain(|(other, _)| id.is_empty() || other != id);
        let text = output_text(&data["outputs"]["answer"]);
        self.nodes.extend(text.map(|text| (id.to_owned(), text)));
    }

    /// Stores the outputs of the workflow.
    pub(super) fn finished(&mut self, app: DifyAppType, outputs: &Value) {
        if app != DifyAppType::Workflow {
            self.stated = output_text(&outputs["answer"]);
        }
        self.outputs = output_in(outputs);
    }

    /// Adds the text that was not streamed.
    pub(super) fn add_missing(&mut self, answer: &mut PlatformAnswer) {
        // The outputs still hold the text that moderation removed.
        if self.is_replaced {
            return;
        }
        let nodes: Vec<_> = std::mem::take(&mut self.nodes);
        let nodes: Vec<_> = nodes.iter().map(|(_, text)| text.as_str()).collect();
        answer.add_missing(&nodes.join("\n"));
        answer.add_missing(self.stated.as_deref().unwrap_or_default());
        if answer.is_empty() {
            answer.append(self.outputs.as_deref().unwrap_or_default());
        }
    }
}

/// The answer among the outputs of a workflow: a usual name, the only output, or all as JSON.
fn output_in(outputs: &Value) -> Option<String> {
    let members = outputs.as_object().filter(|members| !members.is_empty())?;
    let usual = OUTPUTS
        .iter()
        .find_map(|name| members.get(*name).filter(|value| !value.is_null()));
    let only = (members.len() == 1)
        .then(|| members.values().next())
        .flatten();
    output_text(usual.or(only).unwrap_or(outputs))
}

/// A text; or `content` of an object, which may be JSON in a text.
fn output_text(value: &Value) -> Option<String> {
    let content = |value: &Value| filled(&value["content"]).map(str::to_owned);
    let output = match value {
        Value::String(text) => json::parse(text)
            .as_ref()
            .and_then(content)
            .or_else(|| Some(text.clone())),
        value => content(value).or_else(|| json::text_of(value)),
    };
    output.filter(|text| !text.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn outputs_hold_the_answer() {
        for (outputs, answer) in [
            (json!({"summary": "a", "b": 1}), Some("a")),
            (json!({"anything": "{\"content\": \"b\"}"}), Some("b")),
            (json!({"a": 1, "b": 2}), Some("{\"a\":1,\"b\":2}")),
            (json!({"a": " "}), None),
            (json!({}), None),
            (Value::Null, None),
        ] {
            assert_eq!(output_in(&outputs).as_deref(), answer, "{outputs}");
        }
    }
}
