//! Reads the events of WeKnora's stream, and emits results.

use serde_json::{Value, json};

use crate::mapping::MappingStep;
use crate::run::ConnectorRun;
use crate::upstream::answer::PlatformAnswer;
use crate::upstream::failure::{ConnectorFailure, FailureKind, Mapped, message_of};
use crate::upstream::json::{self, filled};
use crate::upstream::results::{self, cut};
use crate::upstream::usage::{usage_in, usage_of};

/// Maximum references of one answer.
const MAX_REFERENCES: usize = 50;
/// Maximum open tool calls.
const MAX_OPEN: usize = 64;
/// Result type of the answer's references.
const REFERENCES: &str = "x.weknora.references";

/// State of the answer so far.
#[derive(Default)]
pub(super) struct WeKnoraProgress {
    /// Ids of tool calls without a result.
    open: Vec<String>,
    calls: u32,
    references: Vec<Value>,
    /// The text so far preceded a tool call and is not the answer.
    is_superseded: bool,
    /// The end mark of the answer was received; that of the run may follow.
    pub(super) is_done: bool,
}

impl WeKnoraProgress {
    /// Reads one event.
    pub(super) fn event(&mut self, event: &Value, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        let answer = &mut run.answer;
        let content = event["content"].as_str().unwrap_or_default();
        answer.count(usage_of(&event["usage"]));
        match event["response_type"].as_str().unwrap_or_default() {
            "answer" => {
                self.append(content, answer);
                self.is_done |= event["done"] == true;
            }
            "thinking" | "reflection" => answer.think(content),
            "tool_call" => self.call_began(&event["data"], answer),
            "tool_result" => self.call_ended(event, None, answer),
            "references" => self.refer(event),
            "agent_query" => {
                let sources = [event, &event["data"]].into_iter();
                let id = sources
                    .map(|source| &source["assistant_message_id"])
                    .find_map(filled);
                run.task = id.map(str::to_owned).or(run.task.take());
            }
            "tool_approval_required" | "mcp_oauth_required" => {
                let tool = filled(&event["data"]["tool_name"]).or(filled(&event["content"]));
                let tool = tool.unwrap_or("a tool");
                // The run continues as soon as the person agrees on WeKnora, so it only warns.
                let text = format!("the agent waits on WeKnora for a person's consent to {tool}");
                answer.out.log("warning", &text);
            }
            "error" if is_of_tool(event) => {
                let mut sources = [&event["data"]["error"], &event["content"]].into_iter();
                let error = sources.find_map(filled).unwrap_or("the tool failed");
                self.call_ended(event, Some(error), answer);
            }
            "error" => {
                run.task = None;
                let message = filled(&event["content"]).or_else(|| message_of(&event["data"]));
                let message = message.unwrap_or_default();
                return Err(ConnectorFailure::reported(None, None, message));
            }
            "stop" => {
                run.task = None;
                let message = "the answer was stopped on WeKnora";
                return Err(ConnectorFailure::new(FailureKind::ApiError, message));
            }
            "complete" => {
                answer.count(usage_in(event));
                tell_files(&event["data"]["artifacts"], answer);
                return Ok(MappingStep::Complete);
            }
            _ => {}
        }
        Ok(MappingStep::Read)
    }

    /// Emits the references of an answer with text.
    pub(super) fn tell_references(&mut self, answer: &mut PlatformAnswer) {
        let references = std::mem::take(&mut self.references);
        if !references.is_empty() && !answer.is_empty() {
            let data = json::object(json!({"references": references}));
            answer.out.tell(results::custom(REFERENCES, data));
        }
    }

    fn append(&mut self, piece: &str, answer: &mut PlatformAnswer) {
        if piece.is_empty() {
            return;
        }
        if std::mem::take(&mut self.is_superseded) {
            answer.replace("");
        }
        answer.append(piece);
    }

    fn call_began(&mut self, data: &Value, answer: &mut PlatformAnswer) {
        let Some(name) = filled(&data["tool_name"]) else {
            return;
        };
        self.is_superseded = !answer.is_empty();
        self.is_done = false;
        self.calls += 1;
        let fallback_id = format!("call_{}", self.calls);
        let id = filled(&data["tool_call_id"]).unwrap_or(&fallback_id);
        let parameters = json::parsed(&data["arguments"]);
        answer.tool_started(id, name, parameters);
        if self.open.len() < MAX_OPEN && self.open.iter().all(|open| open != id) {
            self.open.push(id.to_owned());
        }
    }

    /// Handles a tool result. Older servers name no call; then it belongs to the last one.
    fn call_ended(&mut self, event: &Value, error: Option<&str>, answer: &mut PlatformAnswer) {
        let data = &event["data"];
        let last = self.open.last().cloned();
        let named = filled(&data["tool_call_id"]).map(str::to_owned);
        let Some(id) = named.or(last) else {
            return;
        };
        self.open.retain(|open| *open != id);
        let output = ["output", "result"].iter().find_map(|name| data.get(*name));
        let result = output.unwrap_or(&event["content"]);
        answer.tool_completed(&id, result.clone(), error);
    }

    /// Stores the references. Each event repeats the earlier ones.
    fn refer(&mut self, event: &Value) {
        let sources = [&event["knowledge_references"], &event["data"]["references"]];
        let Some(list) = sources.into_iter().find_map(Value::as_array) else {
            return;
        };
        self.references = list.iter().take(MAX_REFERENCES).map(reference).collect();
    }
}

/// True for the error of a tool; the agent continues after it.
fn is_of_tool(event: &Value) -> bool {
    let data = &event["data"];
    filled(&data["tool_call_id"]).is_some() || filled(&data["tool_name"]).is_some()
}

/// Logs the names of files. They stay on WeKnora, because their addresses need its credential.
fn tell_files(artifacts: &Value, answer: &mut PlatformAnswer) {
    let files = artifacts.as_array().into_iter().flatten();
    let names = files.filter_map(|file| {
        let names = ["name", "file_name", "filename"];
        names.iter().find_map(|name| filled(&file[*name]))
    });
    let names: Vec<_> = names.collect();
    if !names.is_empty() {
        let text = format!("files of the answer stay on WeKnora: {}", names.join(", "));
        answer.out.log("warning", &text);
    }
}

fn reference(entry: &Value) -> Value {
    let title = filled(&entry["knowledge_title"]).or(filled(&entry["knowledge_filename"]));
    json!({
        "title": cut(title.unwrap_or_default(), 200),
        "knowledge_id": cut(entry["knowledge_id"].as_str().unwrap_or_default(), 100),
        "chunk_index": entry["chunk_index"].as_u64(),
        "score": entry["score"].as_f64(),
    })
}
