//! Chunks and documents of Chat Completions.

use serde_json::Value;

use crate::openai_agent::reply::OpenAiReply;
use crate::upstream::answer::PlatformAnswer;
use crate::upstream::failure::{ConnectorFailure, Mapped};
use crate::upstream::json;
use crate::upstream::reader::UpstreamEvent;
use crate::upstream::usage::usage_of;

/// Maximum calls of one answer; further ones are ignored.
const MAX_CALLS: usize = 128;
/// Maximum bytes of the arguments of one call.
const MAX_ARGUMENTS: usize = 64 * 1024;

/// Reads one chunk, or the document of a server that does not stream.
pub(super) fn event(
    reply: &mut OpenAiReply,
    event: &UpstreamEvent,
    payload: &Value,
    answer: &mut PlatformAnswer,
) -> Mapped {
    let choices = payload["choices"].as_array().map_or(&[][..], Vec::as_slice);
    let choice = choices
        .iter()
        .find(|choice| choice["index"].as_u64().unwrap_or(0) == 0);
    let nowhere = Value::Null;
    let choice = choice.unwrap_or(&nowhere);
    // Servers send usage on the chunk, on the choice, or under an extension of their own.
    for usage in [
        &payload["usage"],
        &choice["usage"],
        &payload["x_groq"]["usage"],
    ] {
        answer.count(usage_of(usage));
    }
    if event.is_document {
        if !choice.is_object() {
            return Err(ConnectorFailure::unreadable(&event.text));
        }
        reply.is_done = true;
    }
    let (delta, message) = (&choice["delta"], &choice["message"]);
    if delta.is_object() {
        read(reply, delta, answer);
        answer.append(&text_in(&delta["content"]));
    } else if message.is_object() {
        read(reply, message, answer);
        answer.snapshot(&text_in(&message["content"]));
    }
    let reason = choice["finish_reason"]
        .as_str()
        .filter(|reason| !matches!(*reason, "" | "null"));
    if let Some(reason) = reason {
        answer.finish_reason = Some(reason.to_owned());
        reply.has_finish_reason = true;
    }
    Ok(())
}

/// Reads reasoning and tool calls.
fn read(reply: &mut OpenAiReply, message: &Value, answer: &mut PlatformAnswer) {
    let thought = ["reasoning_content", "reasoning"]
        .iter()
        .find_map(|key| message[*key].as_str());
    answer.think(thought.unwrap_or_default());
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        reply.calls.push(call);
    }
}

/// The text of a content: a text, or the text parts of a list.
fn text_in(content: &Value) -> String {
    let part = |part: &Value| {
        part["text"]
            .as_str()
            .or_else(|| part["text"]["value"].as_str())
            .map(str::to_owned)
    };
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(part).collect(),
        _ => String::new(),
    }
}

/// Tool calls in pieces. Servers send an index, an id, both, or neither.
#[derive(Debug, Default)]
pub(super) struct CallDeltas(Vec<PartialCall>);

#[derive(Debug, Default)]
struct PartialCall {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
}

impl CallDeltas {
    /// The name of the first call.
    pub(super) fn first_name(&self) -> Option<&str> {
        self.0.first().map(|call| call.name.as_str())
    }

    /// Stores a call of a function of the client, as the Responses API reports it.
    pub(super) fn want(&mut self, item: &Value) {
        if self.0.is_empty() {
            let name = item["name"].as_str().unwrap_or_default().to_owned();
            self.0.push(PartialCall {
                name,
                ..PartialCall::default()
            });
        }
    }

    fn push(&mut self, delta: &Value) {
        let index = delta["index"].as_u64();
        let id = delta["id"].as_str().unwrap_or_default();
        let function = &delta["function"];
        let name = function["name"].as_str().unwrap_or_default();
        let is_same = |call: &PartialCall| {
            // Some servers give several calls one index, so a new name starts a new call.
            let is_named = name.is_empty() || call.name.is_empty() || call.name == name;
            let by_id = !id.is_empty() && !call.id.is_empty();
            is_named
                && if by_id {
                    call.id == id
                } else {
                    index.is_none() || index == call.index
                }
        };
        let at = self.0.iter().rposition(is_same);
        if at.is_none() && self.0.len() >= MAX_CALLS {
            return;
        }
        let at = at.unwrap_or_else(|| {
            self.0.push(PartialCall {
                index,
                ..PartialCall::default()
            });
            self.0.len() - 1
        });
        let call = &mut self.0[at];
        if call.id.is_empty() {
            id.clone_into(&mut call.id);
        }
        if call.name.is_empty() {
            name.clone_into(&mut call.name);
        }
        let arguments = json::text_of(&function["arguments"]).unwrap_or_default();
        // Oversized arguments stay cut and fail to parse, so the call has no parameters.
        if call.arguments.len() + arguments.len() <= MAX_ARGUMENTS {
            call.arguments.push_str(&arguments);
        }
    }

    /// Emits the calls that the server ran itself.
    pub(super) fn tell(&mut self, answer: &mut PlatformAnswer) {
        for (number, call) in std::mem::take(&mut self.0).into_iter().enumerate() {
            let id = if call.id.is_empty() {
                format!("call_{number}")
            } else {
                call.id
            };
            let parameters = json::parse(&call.arguments).unwrap_or_default();
            answer.tool_started(&id, &call.name, parameters);
            answer.tool_completed(&id, Value::Null, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn separates_calls_without_index() {
        let mut calls = CallDeltas::default();
        for delta in [
            json!({"id": "a", "function": {"name": "one", "arguments": "{\"x\""}}),
            json!({"function": {"arguments": ":1}"}}),
            json!({"id": "b", "function": {"name": "two", "arguments": {}}}),
            json!(7),
        ] {
            calls.push(&delta);
        }
        let joined: Vec<_> = calls
            .0
            .iter()
            .map(|call| {
                (
                    call.id.as_str(),
                    call.name.as_str(),
                    call.arguments.as_str(),
                )
            })
            .collect();
        assert_eq!(joined, [("a", "one", "{\"x\":1}"), ("b", "two", "{}")]);
    }
}
