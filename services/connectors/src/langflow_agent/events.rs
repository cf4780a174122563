//! Reads the events of Langflow's stream, and emits results. Both APIs have the same events.

use std::collections::BTreeMap;

use protocol::message::LlmTokenUsage;
use serde_json::Value;

use crate::upstream::answer::PlatformAnswer;
use crate::upstream::failure::{ConnectorFailure, FailureKind, Mapped, message_of};
use crate::upstream::json::{self, filled};
use crate::upstream::usage::{self, usage_of};

/// Maximum messages of one run.
const MAX_MESSAGES: usize = 100;
/// Maximum depth of nested blocks.
const MAX_LEVELS: u32 = 8;

/// State of the answer so far: the messages of the flow's outputs.
#[derive(Default)]
pub(super) struct LangflowProgress {
    usage: BTreeMap<String, LlmTokenUsage>,
    /// Ids and texts of messages.
    messages: Vec<(String, String)>,
    /// The answer at the flow's end.
    outputs: Vec<String>,
    /// The session in which the flow ran.
    pub(super) session: Option<String>,
}

impl LangflowProgress {
    /// Reads one event, or the document of a server that does not stream. True at the end mark.
    pub(super) fn event(&mut self, event: &Value, answer: &mut PlatformAnswer) -> Mapped<bool> {
        let data = &event["data"];
        match event["event"].as_str().unwrap_or_default() {
            "token" => {
                let piece = data["chunk"].as_str().unwrap_or_default();
                self.append(id_of(data), piece, answer);
            }
            "add_message" => self.message(data, answer)?,
            "remove_message" => {
                self.messages.retain(|(id, _)| id != id_of(data));
                // The rest of the text moves up, so send it again.
                self.say(answer);
            }
            "output" => self.output(data)?,
            "error" => return Err(error(data)),
            "cancelled" => {
                let message = "the flow was stopped on Langflow";
                return Err(ConnectorFailure::new(FailureKind::ApiError, message));
            }
            "human_input_required" => return Err(decision(data)),
            "end" => {
                self.result(&data["result"]);
                return Ok(true);
            }
            // Servers without streaming answer with one document.
            "" if event["outputs"].is_array() || event["output"].is_object() => {
                self.document(event)?;
                return Ok(true);
            }
            "" if event["detail"].is_null() => {}
            "" => return Err(error(event)),
            _ => {}
        }
        Ok(false)
    }

    /// Adds the outputs that were not streamed, and the usage of all messages.
    pub(super) fn finish(&mut self, answer: &mut PlatformAnswer) {
        let outputs = std::mem::take(&mut self.outputs);
        answer.add_missing(&outputs.join("\n\n"));
        answer.usage = usage::sum(std::mem::take(&mut self.usage).into_values());
    }

    fn append(&mut self, id: &str, piece: &str, answer: &mut PlatformAnswer) {
        // A piece of the last message extends the text and needs no comparison of the complete text.
        if let Some((last, text)) = self.messages.last_mut()
            && last == id
            && !text.is_empty()
        {
            text.push_str(piece);
            answer.extend_snapshot(piece);
            return;
        }
        if let Some(text) = self.text_of(id) {
            text.push_str(piece);
            self.say(answer);
        }
    }

    /// A complete message, or its text so far.
    fn message(&mut self, data: &Value, answer: &mut PlatformAnswer) -> Mapped {
        if data["sender"] == "User" {
            return Ok(());
        }
        if data["category"] == "error" || data["error"] == true {
            return Err(error(data));
        }
        let id = id_of(data);
        blocks(id, &data["content_blocks"], MAX_LEVELS, &mut 0, answer);
        if let Some(usage) = usage_of(&data["properties"]["usage"]) {
            self.usage.insert(id.to_owned(), usage);
        }
        let content = data["text"].as_str().unwrap_or_default();
        // Messages without text are announced before their tokens.
        if !content.is_empty()
            && let Some(text) = self.text_of(id)
        {
            content.clone_into(text);
            self.say(answer);
        }
        Ok(())
    }

    fn text_of(&mut self, id: &str) -> Option<&mut String> {
        let existing = self.messages.iter().position(|(other, _)| other == id);
        let at = existing.unwrap_or(self.messages.len());
        if existing.is_none() && at < MAX_MESSAGES {
            self.messages.push((id.to_owned(), String::new()));
        }
        self.messages.get_mut(at).map(|(_, text)| text)
    }

    /// Emits the new part of the text of all messages.
    fn say(&self, answer: &mut PlatformAnswer) {
        let texts = self.messages.iter().map(|(_, text)| text.as_str());
        let texts: Vec<_> = texts.filter(|text| !text.is_empty()).collect();
        answer.snapshot(&texts.join("\n\n"));
    }

    /// The output of a component at the end of the flow.
    fn output(&mut self, data: &Value) -> Mapped {
        if data["status"] == "failed" {
            let name = filled(&data["display_name"]).unwrap_or("a component");
            let message = format!("{name} of the flow failed: see its log on Langflow");
            return Err(ConnectorFailure::new(FailureKind::ApiError, message));
        }
        self.outputs.extend(text_in(&data["content"]));
        Ok(())
    }

    /// Reads the result of the old API.
    fn result(&mut self, result: &Value) {
        if let Some(id) = filled(&result["session_id"]) {
            self.session = Some(id.to_owned());
        }
        let runs = result["outputs"].as_array().into_iter().flatten();
        let outputs = runs.flat_map(|run| run["outputs"].as_array().into_iter().flatten());
        for output in outputs {
            let sources = [
                &output["results"],
                &output["outputs"],
                &output["artifacts"],
                &output["messages"][0],
            ];
            self.outputs.extend(sources.into_iter().find_map(text_in));
        }
        // Flows without an output component have their answer in the messages.
        if self.outputs.is_empty() {
            self.outputs.extend(text_in(&result["messages"][0]));
        }
    }

    fn document(&mut self, document: &Value) -> Mapped {
        if let Some(fault) = document["errors"].get(0) {
            return Err(error(fault));
        }
        match filled(&document["output"]["text"]) {
            Some(text) => self.outputs.push(text.to_owned()),
            None => self.result(document),
        }
        Ok(())
    }
}

/// Emits the tool calls of an agent, including those in nested blocks.
fn blocks(message: &str, list: &Value, levels: u32, number: &mut u32, answer: &mut PlatformAnswer) {
    let Some(levels) = levels.checked_sub(1) else {
        return;
    };
    for block in list.as_array().into_iter().flatten() {
        if block["type"] == "tool_use" {
            *number += 1;
            let fallback_id = format!("{message}_{number}");
            let id = filled(&block["id"]).unwrap_or(&fallback_id);
            let input = ["tool_input", "input"]
                .iter()
                .find_map(|name| block.get(*name));
            let name = filled(&block["name"]).unwrap_or("tool");
            answer.tool_started(id, name, input.cloned().unwrap_or_default());
            let error = json::text_of(&block["error"]);
            if error.is_some() || !block["output"].is_null() {
                answer.tool_completed(id, block["output"].clone(), error.as_deref());
            }
        }
        blocks(message, &block["contents"], levels, number, answer);
    }
}

fn id_of(data: &Value) -> &str {
    data["id"].as_str().unwrap_or_default()
}

/// A text, or the text in a message.
fn text_in(value: &Value) -> Option<String> {
    let message = &value["message"];
    let sources = [value, message, &message["message"], &message["text"]];
    let text = sources.into_iter().chain([&value["text"]]).find_map(filled);
    let data = &message["data"]["text"];
    text.or_else(|| filled(data)).map(str::to_owned)
}

fn error(data: &Value) -> ConnectorFailure {
    let sources = [&data["error"], &data["text"]];
    let message = sources.into_iter().find_map(filled);
    let message = message
        .or_else(|| message_of(data))
        .or_else(|| data.as_str());
    let code = filled(&data["code"]).or_else(|| filled(&data["detail"]["code"]));
    ConnectorFailure::reported(None, code, message.unwrap_or_default())
}

fn decision(data: &Value) -> ConnectorFailure {
    let prompt = filled(&data["prompt"]).or_else(|| message_of(data));
    let message = format!(
        "the flow waits for a person's decision, which streamed runs of Langflow do not take: {}",
        prompt.unwrap_or("no question is stated")
    );
    ConnectorFailure::new(FailureKind::ApiError, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_text_from_all_output_fields() {
        for (value, text) in [
            (json!("a"), Some("a")),
            (json!({"message": "b"}), Some("b")),
            (json!({"message": {"message": "c"}}), Some("c")),
            (json!({"message": {"text": "d", "data": {}}}), Some("d")),
            (json!({"message": {"data": {"text": "e"}}}), Some("e")),
            (json!({"text": "f"}), Some("f")),
            (json!({"message": " "}), None),
            (json!(null), None),
        ] {
            assert_eq!(text_in(&value).as_deref(), text, "{value}");
        }
    }
}
