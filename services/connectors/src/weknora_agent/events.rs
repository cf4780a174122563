//! Reads the events of WeKnora's stream, and emits results.

use protocol::message::LlmTokenUsage;
use serde_json::{Value, json};

use crate::machine::OutputQueue;
use crate::turn::ConnectorTurn;
use crate::upstream::answer::AnswerText;
use crate::upstream::failure::{ConnectorFailure, FailureKind, message_of};
use crate::upstream::json::{self, filled};
use crate::upstream::results::{self, cut};
use crate::upstream::tools::ToolEvents;
use crate::upstream::usage::{usage_in, usage_of};

/// Maximum references of one answer.
const MAX_REFERENCES: usize = 50;
/// Maximum open tool calls.
const MAX_OPEN: usize = 64;
/// Result type of the answer's references.
const REFERENCES: &str = "x.weknora.references";

/// State of the answer so far.
pub(super) struct WeKnoraProgress {
    answer: AnswerText,
    tools: ToolEvents,
    usage: Option<LlmTokenUsage>,
    /// Ids of tool calls without a result.
    open: Vec<String>,
    calls: u32,
    references: Vec<Value>,
    /// The text so far preceded a tool call and is not the answer.
    is_superseded: bool,
    /// The end mark of the answer was received; that of the run may follow.
    pub(super) is_done: bool,
    /// The message id for a stop call.
    pub(super) message_id: Option<String>,
}

impl WeKnoraProgress {
    pub(super) fn new(turn: &ConnectorTurn) -> Self {
        Self {
            answer: AnswerText::new(turn),
            tools: ToolEvents::default(),
            usage: None,
            open: Vec::new(),
            calls: 0,
            references: Vec::new(),
            is_superseded: false,
            is_done: false,
            message_id: None,
        }
    }

    /// True once results of the run exist.
    pub(super) fn has_begun(&self) -> bool {
        self.answer.has_begun() || self.tools.has_reported()
    }

    /// Reads one event. True at the end mark of the run.
    pub(super) fn event(
        &mut self,
        event: &Value,
        out: &mut OutputQueue,
    ) -> Result<bool, ConnectorFailure> {
        let content = event["content"].as_str().unwrap_or_default();
        self.usage = usage_of(&event["usage"]).or(self.usage.take());
        match event["response_type"].as_str().unwrap_or_default() {
            "answer" => {
                self.append(content, out);
                self.is_done |= event["done"] == true;
            }
            "thinking" | "reflection" => self.answer.think(content, out),
            "tool_call" => self.call_began(&event["data"], out),
            "tool_result" => self.call_ended(event, None, out),
            "references" => self.refer(event),
            "agent_query" => {
                let ids = [
                    &event["assistant_message_id"],
                    &event["data"]["assistant_message_id"],
                ];
                let id = ids.into_iter().find_map(filled);
                self.message_id = id.map(str::to_owned).or(self.message_id.take());
            }
            "tool_approval_required" | "mcp_oauth_required" => {
                let tool = filled(&event["data"]["tool_name"]).or(filled(&event["content"]));
                let tool = tool.unwrap_or("a tool");
                // The run continues as soon as the person agrees on WeKnora, so it only warns.
                let text = format!("the agent waits on WeKnora for a person's consent to {tool}");
                out.log("warning", &text);
            }
            "error" if is_of_tool(event) => {
                let sources = [&event["data"]["error"], &event["content"]];
                let error = sources
                    .into_iter()
                    .find_map(filled)
                    .unwrap_or("the tool failed");
                self.call_ended(event, Some(error), out);
            }
            "error" => return Err(self.failed(event)),
            "stop" => {
                self.message_id = None;
                let message = "the answer was stopped on WeKnora";
                return Err(ConnectorFailure::new(FailureKind::ApiError, message));
            }
            "complete" => {
                self.usage = usage_in(event).or(self.usage.take());
                tell_files(&event["data"]["artifacts"], out);
                return Ok(true);
            }
            _ => {}
        }
        Ok(false)
    }

    /// Completes the message and the run.
    pub(super) fn complete(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        self.message_id = None;
        let references = std::mem::take(&mut self.references);
        if !references.is_empty() && !self.answer.is_empty() {
            let data = json::object(json!({"references": references}));
            out.tell(results::custom(REFERENCES, data));
        }
        if !self.answer.complete(out) {
            return Err(ConnectorFailure::empty());
        }
        out.finish("stop", self.usage.take());
        Ok(())
    }

    fn append(&mut self, piece: &str, out: &mut OutputQueue) {
        if piece.is_empty() {
            return;
        }
        if std::mem::take(&mut self.is_superseded) {
            self.answer.replace("", out);
        }
        self.answer.append(piece, out);
    }

    fn call_began(&mut self, data: &Value, out: &mut OutputQueue) {
        let Some(name) = filled(&data["tool_name"]) else {
            return;
        };
        self.is_superseded = !self.answer.is_empty();
        self.is_done = false;
        self.calls += 1;
        let fallback_id = format!("call_{}", self.calls);
        let id = filled(&data["tool_call_id"]).unwrap_or(&fallback_id);
        let arguments = &data["arguments"];
        let parameters = arguments.as_str().and_then(json::parse);
        let parameters = parameters.unwrap_or_else(|| arguments.clone());
        self.tools.start(id, name, parameters, out);
        if self.open.len() < MAX_OPEN && self.open.iter().all(|open| open != id) {
            self.open.push(id.to_owned());
        }
    }

    /// Handles a tool result. Older servers name no call; then it belongs to the last one.
    fn call_ended(&mut self, event: &Value, error: Option<&str>, out: &mut OutputQueue) {
        let data = &event["data"];
        let last = self.open.last().cloned();
        let named = filled(&data["tool_call_id"]).map(str::to_owned);
        let Some(id) = named.or(last) else {
            return;
        };
        self.open.retain(|open| *open != id);
        let output = ["output", "result"].iter().find_map(|name| data.get(*name));
        let result = output.unwrap_or(&event["content"]);
        self.tools.complete(&id, result.clone(), error, out);
    }

    /// Stores the references. Each event repeats the earlier ones.
    fn refer(&mut self, event: &Value) {
        let sources = [&event["knowledge_references"], &event["data"]["references"]];
        let Some(list) = sources.into_iter().find_map(Value::as_array) else {
            return;
        };
        self.references = list.iter().take(MAX_REFERENCES).map(reference).collect();
    }

    fn failed(&mut self, event: &Value) -> ConnectorFailure {
        self.message_id = None;
        let message = filled(&event["content"]).or_else(|| message_of(&event["data"]));
        ConnectorFailure::reported(None, None, message.unwrap_or_default())
    }
}

/// True for the error of a tool; the agent continues after it.
fn is_of_tool(event: &Value) -> bool {
    let data = &event["data"];
    filled(&data["tool_call_id"]).is_some() || filled(&data["tool_name"]).is_some()
}

/// Logs the names of files. They stay on WeKnora, because their addresses need its credential.
fn tell_files(artifacts: &Value, out: &mut OutputQueue) {
    let files = artifacts.as_array().into_iter().flatten();
    let names = files.filter_map(|file| {
        let names = ["name", "file_name", "filename"];
        names.iter().find_map(|name| filled(&file[*name]))
    });
    let names: Vec<_> = names.collect();
    if !names.is_empty() {
        let text = format!("files of the answer stay on WeKnora: {}", names.join(", "));
        out.log("warning", &text);
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
