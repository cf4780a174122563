//! Messages of Claude Code as results.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::permission::{ActionKind, Permission};
use crate::speaker::{bounded, cut};
use crate::turn::{TurnPrompt, TurnStage};

/// Tool calls of one turn that are kept.
const MOST_CALLS: usize = 1_000;

/// The tool calls of a turn.
#[derive(Debug, Default)]
pub(super) struct TurnEvents {
    /// Names by id.
    calls: HashMap<String, String>,
    ended: HashSet<String>,
}

impl TurnEvents {
    /// Shows one message. Those of subagents are left out.
    pub(super) async fn show(&mut self, message: &Value, stage: &mut TurnStage) {
        if !message["parent_tool_use_id"].is_null() {
            return;
        }
        match message["type"].as_str().unwrap_or_default() {
            "stream_event" => show_delta(&message["event"], stage).await,
            "assistant" => {
                for block in blocks(message) {
                    if block["type"] == "tool_use" {
                        self.start(block, stage).await;
                    }
                }
            }
            "user" => {
                for block in blocks(message) {
                    if block["type"] == "tool_result" {
                        self.end(block, stage).await;
                    }
                }
            }
            _ => {}
        }
    }

    async fn start(&mut self, block: &Value, stage: &mut TurnStage) {
        let (Some(id), Some(name)) = (block["id"].as_str(), block["name"].as_str()) else {
            return;
        };
        if self.calls.len() >= MOST_CALLS
            || self.calls.insert(id.to_owned(), name.to_owned()).is_some()
        {
            return;
        }
        stage.speaker.new_paragraph();
        let input = bounded(&block["input"], stage.speaker.part_bytes());
        stage
            .speaker
            .tool_started(id, name, json!({"input": input}))
            .await;
    }

    async fn end(&mut self, block: &Value, stage: &mut TurnStage) {
        let Some(id) = block["tool_use_id"].as_str() else {
            return;
        };
        let Some(name) = self.calls.get(id) else {
            return;
        };
        if !self.ended.insert(id.to_owned()) {
            return;
        }
        let output = bounded(&block["content"], stage.speaker.part_bytes());
        let error = (block["is_error"] == true).then(|| shown_text(&block["content"]));
        stage
            .speaker
            .tool_completed((id, name), json!({"output": output}), error)
            .await;
    }
}

async fn show_delta(event: &Value, stage: &mut TurnStage) {
    let delta = &event["delta"];
    match delta["type"].as_str().unwrap_or_default() {
        "text_delta" => {
            let text = delta["text"].as_str().unwrap_or_default();
            stage.speaker.append(text).await;
        }
        "thinking_delta" if stage.shows_thoughts => {
            let text = cut(
                delta["thinking"].as_str().unwrap_or_default(),
                stage.speaker.part_bytes(),
            );
            stage.speaker.tell("thought", json!({"text": text})).await;
        }
        _ => {}
    }
}

fn blocks(message: &Value) -> impl Iterator<Item = &Value> {
    message["message"]["content"]
        .as_array()
        .into_iter()
        .flatten()
}

fn shown_text(content: &Value) -> String {
    if let Some(text) = content.as_str() {
        return text.to_owned();
    }
    let parts = content.as_array().into_iter().flatten();
    let texts: Vec<_> = parts.filter_map(|part| part["text"].as_str()).collect();
    texts.join("\n")
}

/// The permission that `can_use_tool` asks for.
pub(super) fn permission(request: &Value) -> Permission {
    let tool = request["tool_name"].as_str().unwrap_or("tool");
    let input = &request["input"];
    let text = |name: &str| input[name].as_str().unwrap_or_default();
    let paths = ["file_path", "path", "notebook_path"].map(text);
    let (kind, detail) = match tool {
        "Read" | "Grep" | "Glob" | "LS" => (ActionKind::Read, None),
        "Write" => (
            ActionKind::Edit,
            Some(crate::diff::unified(text("file_path"), "", text("content"))),
        ),
        "Edit" => (
            ActionKind::Edit,
            Some(crate::diff::unified(
                text("file_path"),
                text("old_string"),
                text("new_string"),
            )),
        ),
        "MultiEdit" | "NotebookEdit" => (ActionKind::Edit, None),
        "Bash" => (ActionKind::Execute, Some(text("command").to_owned())),
        "WebFetch" | "WebSearch" => (ActionKind::Fetch, None),
        _ => (ActionKind::Other, None),
    };
    let title = match kind {
        ActionKind::Edit | ActionKind::Read => format!(
            "{tool} {}",
            paths.iter().find(|path| !path.is_empty()).unwrap_or(&"")
        ),
        _ => tool.to_owned(),
    };
    Permission {
        kind,
        title: title.trim().to_owned(),
        detail: detail.unwrap_or_else(|| serde_json::to_string_pretty(input).unwrap_or_default()),
        paths: paths
            .into_iter()
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
            .collect(),
    }
}

/// The content of a user message: the text, images as blocks, and the paths of all files.
pub(super) fn content(prompt: &TurnPrompt) -> Value {
    let mut text = prompt.text.clone();
    let mut blocks = Vec::new();
    for file in &prompt.files {
        if matches!(
            file.mime_type.as_str(),
            "image/png" | "image/jpeg" | "image/gif" | "image/webp"
        ) {
            let source = json!({"type": "base64", "media_type": file.mime_type, "data": STANDARD.encode(&file.bytes)});
            blocks.push(json!({"type": "image", "source": source}));
        }
        text.push_str(&file.line());
    }
    blocks.insert(0, json!({"type": "text", "text": text.trim()}));
    Value::Array(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_shows_exact_action() {
        let bash = permission(&json!({"tool_name": "Bash", "input": {"command": "rm -r x"}}));
        assert_eq!(
            (bash.kind, bash.detail.as_str()),
            (ActionKind::Execute, "rm -r x")
        );
        let edit = permission(
            &json!({"tool_name": "Edit", "input": {"file_path": "/w/a", "old_string": "x\n", "new_string": "y\n"}}),
        );
        assert_eq!(
            (edit.kind, edit.title.as_str()),
            (ActionKind::Edit, "Edit /w/a")
        );
        assert!(edit.detail.contains("+y"));
        assert_eq!(edit.paths, [PathBuf::from("/w/a")]);
    }
}
