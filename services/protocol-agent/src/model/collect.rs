//! Assembly of one model output from its chunks.

use action_graph::output::{Finish, ModelOutput, NativeCall as Call};
use protocol::JsonObject;
use protocol::message::{LlmTokenUsage, Message, MessageChunk, MessageContent, ToolCall};
use protocol::model::LlmStreamEvent;

/// Maximum bytes of text and arguments of one output. A longer output is truncated.
const MAX_BYTES: usize = 1 << 20;

/// Output assembled so far.
#[derive(Debug, Default)]
pub(super) struct CollectedOutput {
    text: String,
    calls: Vec<ToolCall>,
    /// Index into `calls` for each position in a chunk's list of calls.
    call_indices: Vec<usize>,
    usage: Option<LlmTokenUsage>,
    is_cut: bool,
}

/// New content of one chunk.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// Text to append, or the complete text after a replacement.
    pub(super) text: String,
    /// The chunk replaced the previous text.
    pub(super) replaced: bool,
    /// New arguments of the first call.
    pub(super) arguments: String,
}

impl CollectedOutput {
    pub(super) fn add(&mut self, event: LlmStreamEvent) -> News {
        if event.usage.is_some() {
            self.usage = event.usage;
        }
        let Some(chunk) = event.chunk else {
            return News::default();
        };
        self.is_cut |= is_cut(chunk.provider_specific_fields.as_ref());
        let (text, replaced) = self.new_text(&chunk);
        if replaced {
            self.text.clear();
        }
        self.text.push_str(&text);
        let mut arguments = String::new();
        let calls = chunk.tool_calls.unwrap_or_default();
        for (position, call) in calls.into_iter().enumerate() {
            let new = call.function.arguments.clone();
            if self.add_call(position, call) == 0 {
                arguments.push_str(&new);
            }
        }
        self.is_cut |= self.bytes() > MAX_BYTES;
        News {
            text,
            replaced,
            arguments,
        }
    }

    /// True if the limit is reached, and reading can stop.
    pub(super) fn is_full(&self) -> bool {
        self.bytes() > MAX_BYTES
    }

    fn bytes(&self) -> usize {
        let calls = self.calls.iter().map(|call| call.function.arguments.len());
        self.text.len() + calls.sum::<usize>()
    }

    pub(super) fn has_begun(&self) -> bool {
        !self.calls.is_empty() || !self.text.trim().is_empty()
    }

    /// Name of the first call.
    pub(super) fn first_name(&self) -> Option<&str> {
        self.calls.first().map(|call| call.function.name.as_str())
    }

    /// Marks the output as truncated.
    pub(super) fn mark_truncated(&mut self) {
        self.is_cut = true;
    }

    pub(super) fn finish(self) -> (ModelOutput, Option<LlmTokenUsage>) {
        (output(self.text, self.calls, self.is_cut), self.usage)
    }

    fn new_text(&self, chunk: &MessageChunk) -> (String, bool) {
        // `all_content` repeats the text so far, so only its new part counts as news.
        if let Some(full) = &chunk.all_content {
            match full.strip_prefix(self.text.as_str()) {
                Some(rest) => (rest.to_owned(), false),
                None => (full.clone(), true),
            }
        } else {
            let content = chunk.content.as_ref();
            (
                content.map(MessageContent::plain_text).unwrap_or_default(),
                false,
            )
        }
    }

    /// Adds a delta to its call and returns the index of the call.
    fn add_call(&mut self, position: usize, call: ToolCall) -> usize {
        // Providers send the id in the first delta only, and placeholders in later ones.
        let has_id = !matches!(call.id.trim(), "" | "none" | "None" | "null");
        let existing = if has_id {
            self.calls
                .iter()
                .position(|existing| existing.id == call.id)
        } else {
            self.call_indices.get(position).copied()
        };
        let index = existing.unwrap_or(self.calls.len());
        while self.call_indices.len() <= position {
            self.call_indices.push(index);
        }
        self.call_indices[position] = index;
        match self.calls.get_mut(index) {
            None => self.calls.push(call),
            Some(existing) => {
                if existing.function.name.is_empty() {
                    existing.function.name = call.function.name;
                }
                existing
                    .function
                    .arguments
                    .push_str(&call.function.arguments);
            }
        }
        index
    }
}

/// Output of a complete message.
pub(super) fn of_message(message: Message) -> ModelOutput {
    let is_cut = is_cut(message.provider_specific_fields.as_ref());
    let text = message.plain_text();
    output(text, message.tool_calls.unwrap_or_default(), is_cut)
}

fn output(text: String, calls: Vec<ToolCall>, is_cut: bool) -> ModelOutput {
    let finish = match (is_cut, calls.is_empty()) {
        (true, _) => Finish::Cut,
        (false, true) => Finish::Stop,
        (false, false) => Finish::ToolCalls,
    };
    let calls = calls.into_iter().map(|call| Call {
        name: call.function.name,
        arguments: call.function.arguments,
    });
    ModelOutput {
        text,
        calls: calls.collect(),
        finish,
    }
}

/// True if the provider truncated the output, by finish reasons of chat completions or of single providers.
fn is_cut(fields: Option<&JsonObject>) -> bool {
    let reason = fields.and_then(|fields| fields.get("finish_reason")?.as_str());
    let Some(reason) = reason else { return false };
    let reason = reason.to_ascii_lowercase();
    // A filtered or failed output is incomplete, too.
    let cut = [
        "length",
        "max_tokens",
        "model_length",
        "content_filter",
        "safety",
        "sensitive",
        "error",
        "network_error",
        "insufficient_system_resource",
    ];
    cut.contains(&reason.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn collect(chunks: &[Value]) -> (Vec<News>, ModelOutput) {
        let mut collected = CollectedOutput::default();
        let news = chunks
            .iter()
            .map(|chunk| collected.add(serde_json::from_value(json!({"chunk": chunk})).unwrap()));
        let news = news.collect();
        (news, collected.finish().0)
    }

    fn call(id: &str, name: &str, arguments: &str) -> Value {
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    }

    #[test]
    fn joins_text_and_call_deltas() {
        let (news, output) = collect(&[
            json!({"role": "assistant", "content": "a"}),
            json!({"role": "assistant", "all_content": "ab"}),
            json!({"role": "assistant", "tool_calls": [call("c", "look", "{\"x\"")]}),
            json!({"role": "assistant", "tool_calls": [call("", "", ":1}")]}),
        ]);
        assert_eq!(output.text, "ab");
        assert_eq!(output.calls[0].arguments, "{\"x\":1}");
        assert_eq!(output.finish, Finish::ToolCalls);
        assert_eq!(news[3].arguments, ":1}");
        let (news, output) = collect(&[
            json!({"role": "assistant", "content": "thought"}),
            json!({"role": "assistant", "all_content": "It"}),
        ]);
        assert!(news[1].replaced);
        assert_eq!(output.text, "It");
    }

    #[test]
    fn cut_outputs_say_so() {
        for (reason, finish) in [
            ("length", Finish::Cut),
            ("SAFETY", Finish::Cut),
            ("stop", Finish::Stop),
        ] {
            let (_, output) = collect(&[json!({
                "role": "assistant", "content": "x", "provider_specific_fields": {"finish_reason": reason},
            })]);
            assert_eq!(output.finish, finish, "{reason}");
        }
    }
}
