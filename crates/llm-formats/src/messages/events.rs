//! Converts chat completions to messages, and their chunks to message events.

use std::collections::VecDeque;

use protocol::JsonObject;
use protocol::message::LlmTokenUsage;
use serde_json::{Value, json};

use super::answer::{AnthropicStopReason, shows_thinking, stop_of, usage_json};
use super::visible_text::VisibleTextFilter;
use super::{list, own_signature, text};
use crate::chat::{
    ObjectScan, arguments_of, call_input, finish_reason, is_id, reasoning, text_or_refusal,
};
use domain::usage::{add_usage, usage_of};

/// Maximum buffered bytes after an open block. Above it, the open block is ended.
const WAITING_BYTES: usize = 8 * 1024 * 1024;

/// Writes one answer, complete or as events: `message_start`, start, deltas and stop of each block, `message_delta` and
/// `message_stop`. Only one block is open at a time. A call that starts while another call is incomplete is
/// buffered.
#[derive(Debug)]
pub struct MessageEventWriter {
    /// Id of the message, until it is written.
    id: Option<String>,
    model: String,
    request: JsonObject,
    shows_thinking: bool,
    /// Pending blocks. The first one may be open.
    blocks: VecDeque<OutputBlock>,
    is_open: bool,
    /// Index of the first block.
    index: usize,
    /// Buffered bytes of blocks after the first.
    waiting: usize,
    visible_text: VisibleTextFilter,
    /// Number of calls so far.
    calls: usize,
    has_refused: bool,
    stop: Option<AnthropicStopReason>,
    usage: Option<LlmTokenUsage>,
}

#[derive(Debug)]
struct OutputBlock {
    kind: BlockKind,
    /// Text that is not written yet.
    pending: String,
}

#[derive(Debug)]
enum BlockKind {
    Text,
    Thinking,
    Call {
        /// Index among the calls of the completion.
        index: u64,
        id: String,
        name: String,
        arguments: ObjectScan,
    },
}

impl MessageEventWriter {
    /// Creates a writer for a message with this id. `request`: the Messages request.
    pub fn new(id: &str, model: &str, request: &JsonObject) -> Self {
        // Only the members that `stop_of` needs: the request may have megabytes.
        let members = ["stop_sequences"].map(|name| (name.to_owned(), request.get(name).cloned()));
        let members = members
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        Self {
            id: Some(id.to_owned()),
            model: model.to_owned(),
            shows_thinking: shows_thinking(request),
            request: members.collect(),
            blocks: VecDeque::new(),
            is_open: false,
            index: 0,
            waiting: 0,
            visible_text: VisibleTextFilter::default(),
            calls: 0,
            has_refused: false,
            stop: None,
            usage: None,
        }
    }

    /// Returns the events of one chunk.
    pub fn read(&mut self, chunk: &JsonObject) -> Vec<Value> {
        let mut events = Vec::new();
        if let Some(usage) = usage_of(chunk) {
            add_usage(&mut self.usage, usage);
        }
        // Before anything else, so that even an empty answer has a `message_start`.
        self.begin(&mut events);
        let choice = chunk.get("choices").and_then(|choices| choices.get(0));
        let Some(choice) = choice else {
            return events;
        };
        let delta = &choice["delta"];
        self.add(delta);
        // Remembered: the last chunk often has only the finish reason.
        self.has_refused |= !text(delta, "refusal").is_empty();
        if finish_reason(choice).is_some() {
            self.stop = Some(stop_of(choice, delta, self.calls > 0, &self.request));
        }
        self.advance(false, &mut events);
        events
    }

    /// Converts a complete completion to a message. `None`: it has no choice with a message.
    pub fn complete(mut self, completion: &JsonObject) -> Option<Value> {
        let choice = completion.get("choices")?.get(0)?;
        let answer = choice.get("message")?;
        self.usage = usage_of(completion);
        self.add(answer);
        let held = self.visible_text.finish();
        self.add_text(&held, BlockKind::Text);
        let stop = stop_of(choice, answer, self.calls > 0, &self.request);
        let blocks = self.blocks.iter();
        let blocks = blocks.map(|block| block.kind.complete(&block.pending, &self.model));
        let content: Vec<_> = blocks.collect();
        let id = self.id.take().unwrap_or_default();
        let mut message = self.message(&id, &content);
        message["stop_reason"] = json!(stop.reason);
        message["stop_sequence"] = json!(stop.sequence);
        Some(message)
    }

    /// Returns true after the provider sent a finish reason.
    pub fn has_finished(&self) -> bool {
        self.stop.is_some()
    }

    /// Returns the last events, and the token usage if known.
    pub fn finish(mut self) -> (Vec<Value>, Option<LlmTokenUsage>) {
        let mut events = Vec::new();
        self.begin(&mut events);
        // The filter may hold back the start of a tag that never came.
        let held = self.visible_text.finish();
        self.add_text(&held, BlockKind::Text);
        self.advance(true, &mut events);
        let mut stop = self.stop.unwrap_or(AnthropicStopReason {
            reason: "end_turn",
            sequence: None,
        });
        // The reason came without the calls or the refusal of earlier chunks.
        if stop.reason == "end_turn" {
            stop.reason = match (self.calls > 0, self.has_refused) {
                (true, _) => "tool_use",
                (false, true) => "refusal",
                (false, false) => "end_turn",
            };
        }
        let delta = json!({"stop_reason": stop.reason, "stop_sequence": stop.sequence});
        let usage = usage_json(self.usage.as_ref());
        events.push(json!({"type": "message_delta", "delta": delta, "usage": usage}));
        events.push(json!({"type": "message_stop"}));
        (events, self.usage)
    }

    fn begin(&mut self, events: &mut Vec<Value>) {
        // `take`: the event is sent once.
        if let Some(id) = self.id.take() {
            let message = self.message(&id, &[]);
            events.push(json!({"type": "message_start", "message": message}));
        }
    }

    fn message(&self, id: &str, content: &[Value]) -> Value {
        json!({"id": id, "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": null, "stop_sequence": null,
            "usage": usage_json(self.usage.as_ref())})
    }

    /// Adds the content of a delta, or of the message of a complete completion.
    fn add(&mut self, delta: &Value) {
        // Clients reject thinking blocks that they did not request.
        if let Some(thought) = reasoning(delta).filter(|_| self.shows_thinking) {
            self.add_text(thought, BlockKind::Thinking);
        }
        let visible = self.visible_text.read(&text_or_refusal(delta));
        self.add_text(&visible, BlockKind::Text);
        // Calls of a complete message have no index.
        for (n, call) in (0..).zip(list(delta.get("tool_calls"))) {
            self.add_call(call["index"].as_u64().unwrap_or(n), call);
        }
    }

    fn add_text(&mut self, text: &str, kind: BlockKind) {
        if text.is_empty() {
            return;
        }
        let continues = self.blocks.back().is_some_and(|last| {
            matches!(
                (&last.kind, &kind),
                (BlockKind::Text, BlockKind::Text) | (BlockKind::Thinking, BlockKind::Thinking)
            )
        });
        if !continues {
            self.blocks.push_back(OutputBlock {
                kind,
                pending: String::new(),
            });
        }
        let last = self.blocks.len() - 1;
        self.add_pending(last, text);
    }

    fn add_call(&mut self, index: u64, call: &Value) {
        // Calls may arrive interleaved, so the index decides, not the order.
        let is_it = |block: &OutputBlock| matches!(&block.kind, BlockKind::Call { index: of, .. } if *of == index);
        let found = self.blocks.iter().position(is_it);
        let at = found.unwrap_or_else(|| {
            self.calls += 1;
            // Clients match results by id, so a placeholder gets an id of its own.
            let id = Some(text(call, "id")).filter(|id| is_id(id));
            self.blocks.push_back(OutputBlock {
                kind: BlockKind::Call {
                    index,
                    id: id.map_or_else(|| format!("call_{index}"), str::to_owned),
                    name: String::new(),
                    arguments: ObjectScan::default(),
                },
                pending: String::new(),
            });
            self.blocks.len() - 1
        });
        let arguments = arguments_of(&call["function"]);
        if let BlockKind::Call {
            name,
            arguments: scan,
            ..
        } = &mut self.blocks[at].kind
        {
            // Some providers repeat the name in each chunk.
            if name.is_empty() {
                text(&call["function"], "name").clone_into(name);
            }
            let _ = scan.feed(&arguments);
        }
        self.add_pending(at, &arguments);
    }

    fn add_pending(&mut self, at: usize, text: &str) {
        self.blocks[at].pending.push_str(text);
        // The first block is written at once and never buffered.
        if at > 0 {
            self.waiting += text.len();
        }
    }

    /// Writes the first block. Ends it when it is complete and another block waits. `all`: ends all blocks.
    fn advance(&mut self, all: bool, events: &mut Vec<Value>) {
        while let Some(first) = self.blocks.front_mut() {
            let has_name = !matches!(&first.kind, BlockKind::Call { name, .. } if name.is_empty());
            let is_full = self.waiting > WAITING_BYTES;
            // Clients need the name in the start event, so the block waits for it.
            if !self.is_open {
                if !has_name && !all && !is_full {
                    return;
                }
                self.is_open = true;
                let block = first.kind.start();
                events.push(
                    json!({"type": "content_block_start", "index": self.index, "content_block": block}),
                );
            }
            let pending = std::mem::take(&mut first.pending);
            if !pending.is_empty() {
                events.push(delta(self.index, &first.kind.delta(&pending)));
            }
            // Calls may interleave: the first must end before the next starts.
            let is_complete = !matches!(&first.kind, BlockKind::Call { arguments, .. } if !arguments.is_complete());
            let has_next = self.blocks.len() > 1;
            // A last block stays open for further deltas.
            if !(all || has_next && (is_complete || is_full)) {
                return;
            }
            self.end_first(events);
        }
    }

    fn end_first(&mut self, events: &mut Vec<Value>) {
        if let Some(ended) = self.blocks.pop_front()
            && let BlockKind::Thinking = ended.kind
        {
            // Clients must return the signature, which names the model of the reasoning.
            let signature = own_signature(&self.model);
            let signed = json!({"type": "signature_delta", "signature": signature});
            events.push(delta(self.index, &signed));
        }
        events.push(json!({"type": "content_block_stop", "index": self.index}));
        self.index += 1;
        self.is_open = false;
        // The next block becomes the first, which is no longer buffered.
        let next = self.blocks.front().map_or(0, |next| next.pending.len());
        self.waiting = self.waiting.saturating_sub(next);
    }
}

impl BlockKind {
    fn start(&self) -> Value {
        match self {
            Self::Text => json!({"type": "text", "text": ""}),
            Self::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
            Self::Call { id, name, .. } => {
                json!({"type": "tool_use", "id": id, "name": name, "input": {}})
            }
        }
    }

    fn complete(&self, content: &str, model: &str) -> Value {
        let mut block = self.start();
        match self {
            Self::Text => block["text"] = json!(content),
            Self::Thinking => {
                block["thinking"] = json!(content);
                block["signature"] = json!(own_signature(model));
            }
            // Clients need an object even if the model wrote invalid JSON.
            Self::Call { .. } => block["input"] = call_input(content),
        }
        block
    }

    fn delta(&self, piece: &str) -> Value {
        match self {
            Self::Text => json!({"type": "text_delta", "text": piece}),
            Self::Thinking => json!({"type": "thinking_delta", "thinking": piece}),
            Self::Call { .. } => json!({"type": "input_json_delta", "partial_json": piece}),
        }
    }
}

fn delta(index: usize, delta: &Value) -> Value {
    json!({"type": "content_block_delta", "index": index, "delta": delta})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the events of these deltas as short texts.
    fn event_lines(request: &Value, deltas: &[Value]) -> Vec<String> {
        let mut writer = MessageEventWriter::new("msg_1", "m", request.as_object().unwrap());
        let mut events = Vec::new();
        for delta in deltas {
            let chunk = json!({"choices": [{"delta": delta, "finish_reason": delta["end"]}], "usage": delta["usage"]});
            events.extend(writer.read(chunk.as_object().unwrap()));
        }
        events.extend(writer.finish().0);
        events.iter().map(in_words).collect()
    }

    fn in_words(event: &Value) -> String {
        let index = &event["index"];
        match event["type"].as_str().unwrap() {
            "message_start" => "start".to_owned(),
            "content_block_start" => {
                let block = &event["content_block"];
                let named = block
                    .get("name")
                    .map(|name| format!(" {} {name}", block["id"]));
                format!(
                    "{index}+{}{}",
                    block["type"].as_str().unwrap(),
                    named.unwrap_or_default()
                )
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                let value = ["text", "thinking", "partial_json", "signature"];
                let value = value.iter().find_map(|name| delta[*name].as_str()).unwrap();
                format!("{index}:{value}")
            }
            "content_block_stop" => format!("{index}-"),
            "message_delta" => format!(
                "{} {}",
                event["delta"]["stop_reason"], event["usage"]["output_tokens"]
            ),
            "message_stop" => "stop".to_owned(),
            other => panic!("{other}"),
        }
    }

    fn call(index: u64, id: &str, name: &str, arguments: &str) -> Value {
        json!({"index": index, "id": id, "function": {"name": name, "arguments": arguments}})
    }

    fn calls(calls: &[Value]) -> Value {
        json!({"tool_calls": calls})
    }

    #[test]
    fn text_is_one_block_between_start_and_stop() {
        let deltas = [
            json!({"role": "assistant", "content": ""}),
            json!({"content": "he"}),
            json!({"content": "llo"}),
            json!({"end": "stop"}),
            json!({"usage": {"prompt_tokens": 3, "completion_tokens": 2}}),
        ];
        let expected = [
            "start",
            "0+text",
            "0:he",
            "0:llo",
            "0-",
            "\"end_turn\" 2",
            "stop",
        ];
        assert_eq!(event_lines(&json!({}), &deltas), expected);
    }

    #[test]
    fn an_empty_answer_has_no_block() {
        assert_eq!(
            event_lines(&json!({}), &[]),
            ["start", "\"end_turn\" 0", "stop"]
        );
    }

    #[test]
    fn reasoning_is_signed_block_on_request() {
        let deltas = [
            json!({"reasoning_content": "hm"}),
            json!({"content": "<think>x</think>"}),
            json!({"content": "ok", "end": "length"}),
        ];
        let asks = json!({"thinking": {"type": "enabled"}});
        assert_eq!(
            event_lines(&asks, &deltas),
            [
                "start",
                "0+thinking",
                "0:hm",
                "0:runnel:m",
                "0-",
                "1+text",
                "1:ok",
                "1-",
                "\"max_tokens\" 0",
                "stop"
            ]
        );
        assert_eq!(
            event_lines(&json!({}), &deltas),
            ["start", "0+text", "0:ok", "0-", "\"max_tokens\" 0", "stop"]
        );
    }

    #[test]
    fn calls_in_sequence_stream_one_after_the_other() {
        let deltas = [
            json!({"content": "look"}),
            calls(&[call(0, "a", "f", "")]),
            calls(&[call(0, "", "", "{\"x\":")]),
            calls(&[call(0, "", "", "1}")]),
            calls(&[call(1, "b", "g", "{}")]),
            json!({"end": "tool_calls"}),
        ];
        assert_eq!(
            event_lines(&json!({}), &deltas),
            [
                "start",
                "0+text",
                "0:look",
                "0-",
                "1+tool_use \"a\" \"f\"",
                "1:{\"x\":",
                "1:1}",
                "1-",
                "2+tool_use \"b\" \"g\"",
                "2:{}",
                "2-",
                "\"tool_use\" 0",
                "stop"
            ]
        );
    }

    #[test]
    fn interleaved_calls_keep_their_arguments() {
        let deltas = [
            calls(&[call(0, "a", "f", "{\"x\":"), call(1, "b", "g", "{\"y\"")]),
            calls(&[call(1, "", "", ":2}"), call(0, "", "", "1}")]),
            json!({"content": "after", "end": "stop"}),
        ];
        assert_eq!(
            event_lines(&json!({}), &deltas),
            [
                "start",
                "0+tool_use \"a\" \"f\"",
                "0:{\"x\":",
                "0:1}",
                "0-",
                "1+tool_use \"b\" \"g\"",
                "1:{\"y\":2}",
                "1-",
                "2+text",
                "2:after",
                "\"tool_use\" 0",
                "stop"
            ]
            .into_iter()
            .flat_map(|line| if line == "\"tool_use\" 0" {
                vec!["2-", line]
            } else {
                vec![line]
            })
            .collect::<Vec<_>>()
        );
    }

    #[test]
    fn truncated_call_ends_with_answer() {
        let deltas = [
            calls(&[call(0, "a", "f", "{\"x\":")]),
            calls(&[call(1, "b", "g", "{")]),
            json!({"end": "length"}),
        ];
        assert_eq!(
            event_lines(&json!({}), &deltas),
            [
                "start",
                "0+tool_use \"a\" \"f\"",
                "0:{\"x\":",
                "0-",
                "1+tool_use \"b\" \"g\"",
                "1:{",
                "1-",
                "\"max_tokens\" 0",
                "stop"
            ]
        );
    }

    #[test]
    fn a_refusal_is_a_stop_reason() {
        let deltas = [json!({"refusal": "I will not"}), json!({"end": "stop"})];
        assert_eq!(
            event_lines(&json!({}), &deltas),
            [
                "start",
                "0+text",
                "0:I will not",
                "0-",
                "\"refusal\" 0",
                "stop"
            ]
        );
    }
}
