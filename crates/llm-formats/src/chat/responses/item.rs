//! Items of an answer: messages, reasoning and tool calls.

use serde_json::{Value, json};

use super::tools::{RequestTool, custom_input};

/// One item of `output`.
#[derive(Debug)]
pub(super) struct OutputItem {
    pub(super) id: String,
    pub(super) body: ItemBody,
    /// Set when the item is finished.
    pub(super) status: Option<&'static str>,
}

/// Content of an item.
#[derive(Debug)]
pub(super) enum ItemBody {
    Message(Vec<ItemText>),
    /// Reasoning text.
    Reasoning(ItemText),
    /// Members that must return to the model.
    Carried(String),
    Call {
        call_id: String,
        tool: RequestTool,
        arguments: String,
    },
}

/// A text of an item.
#[derive(Debug)]
pub(super) struct ItemText {
    pub(super) kind: TextKind,
    pub(super) text: String,
}

/// Kind of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextKind {
    Answer,
    Refusal,
    Reasoning,
}

impl TextKind {
    /// Returns the event name of the text, without `.delta` and `.done`.
    pub(super) fn event(self) -> &'static str {
        match self {
            Self::Answer => "response.output_text",
            Self::Refusal => "response.refusal",
            Self::Reasoning => "response.reasoning_text",
        }
    }

    /// Returns the member that holds the text.
    pub(super) fn member(self) -> &'static str {
        match self {
            Self::Refusal => "refusal",
            Self::Answer | Self::Reasoning => "text",
        }
    }
}

impl ItemText {
    pub(super) fn part(&self) -> Value {
        match self.kind {
            TextKind::Answer => {
                json!({"type": "output_text", "text": self.text, "annotations": [], "logprobs": []})
            }
            TextKind::Refusal => json!({"type": "refusal", "refusal": self.text}),
            TextKind::Reasoning => json!({"type": "reasoning_text", "text": self.text}),
        }
    }
}

impl OutputItem {
    /// Returns the id prefix of an item's kind.
    pub(super) fn prefix(body: &ItemBody) -> &'static str {
        match body {
            ItemBody::Message(_) => "msg",
            ItemBody::Reasoning(_) | ItemBody::Carried(_) => "rs",
            ItemBody::Call { tool, .. } if tool.is_custom => "ctc",
            ItemBody::Call { .. } => "fc",
        }
    }

    /// Returns the item in its current state.
    pub(super) fn value(&self, status: &str) -> Value {
        let id = &self.id;
        match &self.body {
            ItemBody::Message(texts) => {
                let parts: Vec<_> = texts.iter().map(ItemText::part).collect();
                json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": parts})
            }
            ItemBody::Reasoning(text) => {
                // Reasoning that only returns to the model has no readable text.
                let parts = if text.text.is_empty() {
                    Vec::new()
                } else {
                    vec![text.part()]
                };
                json!({"id": id, "type": "reasoning", "summary": [], "content": parts})
            }
            ItemBody::Carried(sealed) => {
                json!({"id": id, "type": "reasoning", "summary": [], "encrypted_content": sealed})
            }
            ItemBody::Call {
                call_id,
                tool,
                arguments,
            } => {
                let mut call =
                    json!({"id": id, "status": status, "call_id": call_id, "name": tool.name});
                if tool.is_custom {
                    call["type"] = json!("custom_tool_call");
                    // A call without arguments has no input yet: `custom_input` would return the empty arguments as
                    // text.
                    let has_arguments = !arguments.is_empty();
                    call["input"] = json!(if has_arguments {
                        custom_input(arguments)
                    } else {
                        String::new()
                    });
                } else {
                    call["type"] = json!("function_call");
                    call["arguments"] = json!(arguments);
                }
                if let Some(namespace) = &tool.namespace {
                    call["namespace"] = json!(namespace);
                }
                call
            }
        }
    }
}
