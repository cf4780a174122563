//! Messages of Claude Code as results of a run.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::permission::{ActionKind, Permission, with_members};
use crate::shorten::{bounded, cut};
use crate::streamed_text::StreamedText;
use crate::turn::{TurnPrompt, TurnStage};

/// Maximum tool calls stored for one turn. Further calls are not shown.
const MAX_CALLS: usize = 1_000;

/// Tool calls and text of one turn.
#[derive(Debug, Default)]
pub(super) struct TurnEvents {
    /// Tool names by call id.
    calls: HashMap<String, String>,
    ended: HashSet<String>,
    text: StreamedText,
    /// Id of the current model message.
    message: Option<String>,
    /// True if the reasoning of the current message came in deltas; the complete message repeats it.
    has_streamed_reasoning: bool,
}

/// Model name of messages that Claude Code writes itself, such as request errors. The result repeats them.
const SYNTHETIC: &str = "<synthetic>";

impl TurnEvents {
    /// Converts one message to results.
    pub(super) async fn show(&mut self, message: &Value, stage: &mut TurnStage) {
        // Messages of subagents: their summary arrives as the result of the parent's tool call.
        if !message["parent_tool_use_id"].is_null() {
            return;
        }
        match message["type"].as_str().unwrap_or_default() {
            "stream_event" => self.show_event(&message["event"], stage).await,
            "assistant" if message["message"]["model"] != SYNTHETIC => {
                self.show_message(&message["message"], stage).await;
            }
            "user" => {
                // Tool results start the next step; the model continues from the text so far.
                self.text.keep();
                for block in blocks(&message["message"]) {
                    if block["type"] == "tool_result" {
                        self.end(block, stage).await;
                    }
                }
            }
            _ => {}
        }
    }

    /// Shows the answer of the final result unless the messages of the turn already had it.
    pub(super) async fn finish(&mut self, result: &Map<String, Value>, stage: &mut TurnStage) {
        let answer = result.get("result").and_then(Value::as_str);
        let answer = answer.unwrap_or_default();
        self.text.finish(answer, &mut stage.writer).await;
    }

    async fn show_event(&mut self, event: &Value, stage: &mut TurnStage) {
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => {
                self.text.begin(&mut stage.writer);
                self.message = event["message"]["id"].as_str().map(str::to_owned);
                self.has_streamed_reasoning = false;
            }
            "message_stop" => self.text.end(),
            _ => self.show_delta(&event["delta"], stage).await,
        }
    }

    async fn show_delta(&mut self, delta: &Value, stage: &mut TurnStage) {
        match delta["type"].as_str().unwrap_or_default() {
            "text_delta" => {
                let text = delta["text"].as_str().unwrap_or_default();
                self.text.add_delta(text, &mut stage.writer).await;
            }
            "thinking_delta" if stage.shows_reasoning => {
                self.has_streamed_reasoning = true;
                send_reasoning(&delta["thinking"], stage).await;
            }
            _ => {}
        }
    }

    /// Shows a complete message. Deltas may have sent a part of it before.
    async fn show_message(&mut self, message: &Value, stage: &mut TurnStage) {
        let id = message["id"].as_str();
        // A new id: after a broken stream, Claude Code repeats the request without streaming.
        if id.is_some() && self.message.is_some() && id != self.message.as_deref() {
            self.text.begin(&mut stage.writer);
            self.text.end();
            self.has_streamed_reasoning = false;
        }
        self.message = id.map(str::to_owned).or(self.message.take());
        if let Some(text) = message["content"].as_str() {
            self.text.add_complete(text, &mut stage.writer).await;
        }
        for block in blocks(message) {
            match block["type"].as_str().unwrap_or_default() {
                "text" => {
                    let text = block["text"].as_str().unwrap_or_default();
                    self.text.add_complete(text, &mut stage.writer).await;
                }
                "thinking" if stage.shows_reasoning && !self.has_streamed_reasoning => {
                    send_reasoning(&block["thinking"], stage).await;
                }
                "tool_use" => self.start(block, stage).await,
                _ => {}
            }
        }
    }

    async fn start(&mut self, block: &Value, stage: &mut TurnStage) {
        let (Some(id), Some(name)) = (block["id"].as_str(), block["name"].as_str()) else {
            return;
        };
        // A repeated message must not start its calls twice.
        if self.calls.len() >= MAX_CALLS
            || self.calls.insert(id.to_owned(), name.to_owned()).is_some()
        {
            return;
        }
        stage.writer.new_paragraph();
        let input = bounded(&block["input"], stage.writer.part_bytes());
        stage
            .writer
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
        let output = bounded(&block["content"], stage.writer.part_bytes());
        let error = (block["is_error"] == true).then(|| shown_text(&block["content"]));
        stage
            .writer
            .tool_completed(id, name, json!({"output": output}), error)
            .await;
    }
}

async fn send_reasoning(text: &Value, stage: &mut TurnStage) {
    let text = cut(text.as_str().unwrap_or_default(), stage.writer.part_bytes());
    stage
        .writer
        .send_custom("thought", json!({"text": text}))
        .await;
}

fn blocks(message: &Value) -> impl Iterator<Item = &Value> {
    message["content"].as_array().into_iter().flatten()
}

fn shown_text(content: &Value) -> String {
    if let Some(text) = content.as_str() {
        return text.to_owned();
    }
    let parts = content.as_array().into_iter().flatten();
    let texts: Vec<_> = parts.filter_map(|part| part["text"].as_str()).collect();
    texts.join("\n")
}

/// Log text for the retry of a model request; `None` for other system messages.
pub(super) fn retry(message: &Value) -> Option<String> {
    if message["subtype"] != "api_retry" {
        return None;
    }
    let status = message["error_status"].as_u64();
    let error = message["error"].as_str().unwrap_or("no answer");
    let reason = status.map_or_else(|| error.to_owned(), |status| status.to_string());
    let seconds = message["retry_delay_ms"].as_f64().unwrap_or_default() / 1_000.0;
    let (attempt, max_attempts) = (&message["attempt"], &message["max_retries"]);
    Some(format!(
        "the provider answers {}, next try in {seconds:.0} s (attempt {attempt} of {max_attempts})",
        cut(&reason, 200)
    ))
}

/// Permission that a `can_use_tool` request asks for.
pub(super) fn permission(request: &Value) -> Permission {
    let tool = request["tool_name"].as_str().unwrap_or("tool");
    let input = &request["input"];
    let text = |name: &str| input[name].as_str().unwrap_or_default();
    let paths = ["file_path", "path", "notebook_path"].map(text);
    let (kind, detail) = match tool {
        "Read" | "Grep" | "Glob" | "LS" => (ActionKind::Read, None),
        "Write" => (
            ActionKind::Edit,
            Some(with_members(
                crate::diff::unified(text("file_path"), "", text("content")),
                input,
                &["file_path", "content"],
            )),
        ),
        "Edit" => (
            ActionKind::Edit,
            Some(with_members(
                crate::diff::unified(text("file_path"), text("old_string"), text("new_string")),
                input,
                &["file_path", "old_string", "new_string"],
            )),
        ),
        "MultiEdit" | "NotebookEdit" => (ActionKind::Edit, None),
        "Bash" => (ActionKind::Execute, Some(command_of(input))),
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

/// The command, and a line for each other argument.
fn command_of(input: &Value) -> String {
    let command = input["command"].as_str().unwrap_or_default().to_owned();
    // `description` has no effect, and its varying text would defeat "allow for this conversation".
    with_members(command, input, &["command", "description"])
}

/// Content of a user message: text with the paths of all files, and images as blocks.
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
    // The text block needs the paths of all files and still precedes the images.
    blocks.insert(0, json!({"type": "text", "text": text.trim()}));
    Value::Array(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PermissionMode;
    use crate::turn::testing::{completed, results_of, stage};

    #[test]
    fn permission_shows_exact_action() {
        let bash = permission(&json!({"tool_name": "Bash", "input": {"command": "rm -r x"}}));
        assert_eq!(
            (bash.kind, bash.detail.as_str()),
            (ActionKind::Execute, "rm -r x")
        );
        let input = json!({"command": "make", "run_in_background": true, "dangerouslyDisableSandbox": true});
        let bash = permission(&json!({"tool_name": "Bash", "input": input}));
        for member in [
            "make",
            "run_in_background: true",
            "dangerouslyDisableSandbox: true",
        ] {
            assert!(bash.detail.contains(member), "{}", bash.detail);
        }
        let edit = permission(
            &json!({"tool_name": "Edit", "input": {"file_path": "/w/a", "old_string": "x\n", "new_string": "y\n",
                "replace_all": true}}),
        );
        assert!(edit.detail.contains("replace_all: true"), "{}", edit.detail);
        assert_eq!(
            (edit.kind, edit.title.as_str()),
            (ActionKind::Edit, "Edit /w/a")
        );
        assert!(edit.detail.contains("+y"));
        assert_eq!(edit.paths, [PathBuf::from("/w/a")]);
    }

    fn assistant_message(text: &str) -> Value {
        json!({"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}, "parent_tool_use_id": null})
    }

    fn message(id: &str, text: &str) -> Value {
        let mut message = assistant_message(text);
        message["message"]["id"] = id.into();
        message
    }

    fn begin(id: &str) -> Value {
        let event = json!({"type": "message_start", "message": {"id": id}});
        json!({"type": "stream_event", "event": event, "parent_tool_use_id": null})
    }

    fn delta(text: &str) -> Value {
        let event =
            json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}});
        json!({"type": "stream_event", "event": event, "parent_tool_use_id": null})
    }

    /// The completed text of a turn.
    async fn text_of(messages: Vec<Value>, answer: &'static str) -> String {
        let results = results_of(move |out| async move {
            let mut stage = stage(&out, PermissionMode::Ask);
            let mut events = TurnEvents::default();
            for message in &messages {
                events.show(message, &mut stage).await;
            }
            let result = json!({"result": answer});
            events.finish(result.as_object().unwrap(), &mut stage).await;
            stage.writer.complete(Vec::new()).await;
        });
        completed(&results.await)
    }

    const FULL_TEXT: &str = "The full answer.";

    fn stop() -> Value {
        json!({"type": "stream_event", "event": {"type": "message_stop"}, "parent_tool_use_id": null})
    }

    #[tokio::test]
    async fn keeps_text_that_was_not_streamed() {
        let mut subagent = assistant_message("Not shown.");
        subagent["parent_tool_use_id"] = "t".into();
        let mut synthetic = assistant_message("API Error: 500");
        synthetic["message"]["model"] = SYNTHETIC.into();
        let streamed = [begin("a"), delta("The full "), delta("answer.")];
        let complete = [message("a", FULL_TEXT), stop()];
        for (name, messages) in [
            ("a message", vec![assistant_message(FULL_TEXT)]),
            ("only the result", vec![subagent]),
            ("an error, then the result", vec![synthetic]),
            ("deltas and message", [&streamed[..], &complete].concat()),
            ("only deltas", [&streamed[..], &[stop()]].concat()),
        ] {
            assert_eq!(text_of(messages, FULL_TEXT).await, FULL_TEXT, "{name}");
        }
    }

    #[tokio::test]
    async fn replaces_text_of_broken_streams() {
        for (name, messages) in [
            (
                "a beginning",
                vec![begin("a"), delta("The fu"), message("b", FULL_TEXT)],
            ),
            ("then the result", vec![begin("a"), delta("The fu")]),
            (
                "another text",
                vec![begin("a"), delta("Let me"), message("b", FULL_TEXT)],
            ),
            (
                "no ids",
                vec![delta("Let me"), assistant_message(FULL_TEXT)],
            ),
            (
                "streamed again",
                vec![begin("a"), delta("The fu"), begin("b"), delta(FULL_TEXT)],
            ),
        ] {
            assert_eq!(text_of(messages, FULL_TEXT).await, FULL_TEXT, "{name}");
        }
        let first = [begin("a"), delta("One."), message("a", "One.")];
        let again = [delta("Tw"), message("b", "One."), message("b", "Two.")];
        let blocks = [&first[..], &again].concat();
        assert_eq!(text_of(blocks, "Two.").await, "One.\n\nTwo.");
        let done = json!({"type": "user", "message": {"content": []}, "parent_tool_use_id": null});
        let next = [done, begin("b"), delta("Tw"), message("c", "Two.")];
        let steps = [&first[..], &next].concat();
        assert_eq!(text_of(steps, "Two.").await, "One.\n\nTwo.");
    }

    #[test]
    fn names_status_and_delay_of_retries() {
        let retry = |message: Value| super::retry(&message);
        let limited = json!({"subtype": "api_retry", "attempt": 2, "max_retries": 10, "retry_delay_ms": 38_600.5, "error_status": 429, "error": "rate_limit"});
        let cut = json!({"subtype": "api_retry", "attempt": 1, "max_retries": 10, "retry_delay_ms": 500, "error_status": null, "error": "unknown"});
        for (message, text) in [
            (
                limited,
                "the provider answers 429, next try in 39 s (attempt 2 of 10)",
            ),
            (
                cut,
                "the provider answers unknown, next try in 0 s (attempt 1 of 10)",
            ),
        ] {
            assert_eq!(retry(message).as_deref(), Some(text));
        }
        assert_eq!(retry(json!({"subtype": "init"})), None);
    }
}
