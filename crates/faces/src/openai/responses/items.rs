//! Items of a response: messages with files, tool calls and questions.

use protocol::JsonObject;
use serde_json::{Value, json};

use crate::questions::{ASK_USER, OpenQuestion};

/// Events of a response: type, and members without type and number.
type ItemEvents = Vec<(&'static str, Value)>;

/// Name of the server in tool calls: the agent's tools are behind the gateway.
const SERVER: &str = "runnel";

/// The message that is being written.
pub(super) struct MessageItem {
    pub(super) index: usize,
    id: String,
    text: String,
    annotations: Vec<Value>,
}

impl MessageItem {
    pub(super) fn new(key: &str, index: usize) -> Self {
        Self {
            index,
            id: format!("msg_{key}_{index}"),
            text: String::new(),
            annotations: Vec::new(),
        }
    }

    pub(super) fn value(&self, status: &str) -> Value {
        json!({"id": self.id, "type": "message", "status": status, "role": "assistant",
            "content": [self.part()]})
    }

    fn part(&self) -> Value {
        json!({"type": "output_text", "text": self.text, "annotations": self.annotations, "logprobs": []})
    }

    fn event(&self, more: Value) -> Value {
        let mut event = more;
        event["item_id"] = json!(self.id);
        event["output_index"] = json!(self.index);
        event["content_index"] = json!(0);
        event
    }

    pub(super) fn begin(&self) -> ItemEvents {
        let item = json!({"id": self.id, "type": "message", "status": "in_progress", "role": "assistant",
            "content": []});
        vec![
            (
                "response.output_item.added",
                json!({"output_index": self.index, "item": item}),
            ),
            (
                "response.content_part.added",
                self.event(json!({"part": self.part()})),
            ),
        ]
    }

    /// Appends text and returns its event.
    pub(super) fn append(&mut self, text: &str) -> Value {
        self.text.push_str(text);
        self.event(json!({"delta": text, "logprobs": []}))
    }

    /// Adds a file and returns its event.
    pub(super) fn annotate(&mut self, artifact: &str) -> Value {
        let index = self.text.chars().count();
        let annotation = json!({"type": "file_path", "file_id": artifact, "index": index});
        let event = json!({"annotation": annotation, "annotation_index": self.annotations.len()});
        // After its index is taken.
        self.annotations.push(annotation);
        self.event(event)
    }

    pub(super) fn end(&self, status: &str) -> ItemEvents {
        let done = json!({"text": self.text, "logprobs": []});
        let item = json!({"output_index": self.index, "item": self.value(status)});
        vec![
            ("response.output_text.done", self.event(done)),
            (
                "response.content_part.done",
                self.event(json!({"part": self.part()})),
            ),
            ("response.output_item.done", item),
        ]
    }
}

/// A call of one of the agent's tools. The client does not execute it.
pub(super) struct ToolItem {
    pub(super) index: usize,
    id: String,
    name: String,
    arguments: String,
    output: Option<String>,
    error: Option<String>,
}

impl ToolItem {
    /// The call of a `tool.call.started`, with its id at the runner. `None`: the telemetry lacks id or name.
    pub(super) fn begin(key: &str, index: usize, data: &JsonObject) -> Option<(String, Self)> {
        let text = |name: &str| data.get(name).and_then(Value::as_str);
        let item = Self {
            index,
            id: format!("mcp_{key}_{index}"),
            name: text("tool_name")?.to_owned(),
            arguments: data
                .get("parameters")
                .map_or("{}".to_owned(), Value::to_string),
            output: None,
            error: None,
        };
        Some((text("tool_call_id")?.to_owned(), item))
    }

    /// Adds the result of a `tool.call.completed`.
    pub(super) fn complete(&mut self, data: &JsonObject) {
        let error = data.get("error").and_then(Value::as_str);
        self.error = error.map(str::to_owned);
        // A failed call may have null.
        let result = data.get("result").filter(|result| !result.is_null());
        self.output = result.map(Value::to_string);
    }

    pub(super) fn bytes(&self) -> usize {
        let result = [&self.output, &self.error].into_iter().flatten();
        self.name.len() + self.arguments.len() + result.map(String::len).sum::<usize>()
    }

    pub(super) fn end_status(&self) -> &'static str {
        if self.error.is_some() {
            "failed"
        } else {
            "completed"
        }
    }

    pub(super) fn value(&self, status: &str) -> Value {
        json!({"id": self.id, "type": "mcp_call", "server_label": SERVER, "name": self.name,
            "arguments": self.arguments, "output": self.output, "error": self.error, "status": status,
            "approval_request_id": null})
    }

    fn event(&self) -> Value {
        json!({"item_id": self.id, "output_index": self.index})
    }

    pub(super) fn begin_events(&self) -> ItemEvents {
        let item = json!({"output_index": self.index, "item": self.value("in_progress")});
        let mut arguments = self.event();
        arguments["arguments"] = json!(self.arguments);
        vec![
            ("response.output_item.added", item),
            ("response.mcp_call.in_progress", self.event()),
            ("response.mcp_call_arguments.done", arguments),
        ]
    }

    pub(super) fn end_events(&self, status: &str) -> ItemEvents {
        let kind = match status {
            "completed" => "response.mcp_call.completed",
            _ => "response.mcp_call.failed",
        };
        let item = json!({"output_index": self.index, "item": self.value(status)});
        vec![(kind, self.event()), ("response.output_item.done", item)]
    }
}

/// The call of `ask_user` for a question, and its events.
pub(super) fn question_item(
    key: &str,
    index: usize,
    question: &OpenQuestion,
) -> (Value, ItemEvents) {
    let id = format!("fc_{key}_{index}");
    let item = |status: &str, arguments: &str| {
        json!({"id": id, "type": "function_call", "call_id": question.id, "name": ASK_USER,
            "arguments": arguments, "status": status})
    };
    let arguments = question.arguments.as_str();
    let of_item = |name: &str| json!({"item_id": id, "output_index": index, name: arguments});
    let mut done = of_item("arguments");
    done["name"] = json!(ASK_USER);
    let completed = item("completed", arguments);
    let events = vec![
        (
            "response.output_item.added",
            json!({"output_index": index, "item": item("in_progress", "")}),
        ),
        ("response.function_call_arguments.delta", of_item("delta")),
        ("response.function_call_arguments.done", done),
        (
            "response.output_item.done",
            json!({"output_index": index, "item": completed}),
        ),
    ];
    (completed, events)
}
