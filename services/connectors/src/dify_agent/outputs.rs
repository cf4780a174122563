//! The outputs of a workflow and of its answer nodes: the text that no event streamed.

use serde_json::Value;

use crate::dify_agent::config::DifyAppType;
use crate::machine::OutputQueue;
use crate::upstream::answer::AnswerText;
use crate::upstream::json::{self, filled};

/// Outputs of a workflow that are its answer, the first that is there.
const OUTPUTS: [&str; 5] = ["summary", "answer", "text", "result", "output"];

#[derive(Debug, Default)]
pub(super) struct DifyOutputs {
    /// Texts of the answer nodes by their ids.
    nodes: Vec<(String, String)>,
    /// The answer as the end of a chatflow states it.
    stated: Option<String>,
    /// The answer where no text was streamed, and no answer node ended.
    outputs: Option<String>,
    /// Moderation put another text in the place of the answer.
    pub(super) is_replaced: bool,
}

impl DifyOutputs {
    /// An answer node ended. Streams that are opened again repeat their nodes.
    pub(super) fn node_finished(&mut self, data: &Value) {
        let id = data["id"].as_str().unwrap_or_default();
        self.nodes.retain(|(known, _)| id.is_empty() || known != id);
        let text = output_text(&data["outputs"]["answer"]);
        self.nodes.extend(text.map(|text| (id.to_owned(), text)));
    }

    /// The workflow ended.
    pub(super) fn finished(&mut self, app: DifyAppType, outputs: &Value) {
        if app != DifyAppType::Workflow {
            self.stated = output_text(&outputs["answer"]);
        }
        self.outputs = output_in(outputs);
    }

    /// Adds the text that no event streamed.
    pub(super) fn add_missing(&mut self, answer: &mut AnswerText, out: &mut OutputQueue) {
        if self.is_replaced {
            return;
        }
        let nodes: Vec<_> = std::mem::take(&mut self.nodes);
        let nodes: Vec<_> = nodes.iter().map(|(_, text)| text.as_str()).collect();
        answer.add_missing(&nodes.join("\n"), out);
        answer.add_missing(self.stated.as_deref().unwrap_or_default(), out);
        if answer.is_empty() {
            answer.append(self.outputs.as_deref().unwrap_or_default(), out);
        }
    }
}

/// The answer among the outputs of a workflow: the one of a usual name, the only one, or all as JSON.
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

/// A text; of an object, or the JSON of one, its `content`.
fn output_text(value: &Value) -> Option<String> {
    let content = |value: &Value| filled(&value["content"]).map(str::to_owned);
    let told = match value {
        Value::String(text) => json::parse(text)
            .as_ref()
            .and_then(content)
            .or_else(|| Some(text.clone())),
        value => content(value).or_else(|| json::text_of(value)),
    };
    told.filter(|text| !text.trim().is_empty())
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
