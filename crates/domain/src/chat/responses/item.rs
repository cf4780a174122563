//! Items of an answer: messages, reasoning and tool calls.

use serde_json::{Value, json};

use super::tools::{Tool, custom_input};

/// One item of `output`.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) id: String,
    pub(super) body: Body,
    /// Set when the item is finished.
    pub(super) status: Option<&'static str>,
}

/// Content of an item.
#[derive(Debug)]
pub(super) enum Body {
    Message(Vec<Text>),
    /// Reasoning text.
    Thoughts(Text),
    /// Members that must return to the model.
    Carried(String),
    Call {
        call_id: String,
        tool: Tool,
        arguments: String,
    },
}

/// A text of an item.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) kind: TextKind,
    pub(super) text: String,
}

/// Kind of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextKind {
    Answer,
    Refusal,
    Thoughts,
}

impl TextKind {
    /// Returns the event name of the text, without `.delta` and `.done`.
    pub(super) fn event(self) -> &'static str {
        match self {
            Self::Answer => "response.output_text",
            Self::Refusal => "response.refusal",
            Self::Thoughts => "response.reasoning_text",
        }
    }

    /// Returns the member that holds the text.
    pub(super) fn member(self) -> &'static str {
        match self {
            Self::Refusal => "refusal",
            Self::Answer | Self::Thoughts => "text",
        }
    }
}

impl Text {
    pub(super) fn part(&self) -> Value {
        match self.kind {
            TextKind::Answer => {
                json!({"type": "output_text", "text": self.text, "annotations": [], "logprobs": []})
            }
            TextKind::Refusal => json!({"type": "refusal", "refusal": self.text}),
            TextKind::Thoughts => json!({"type": "reasoning_text", "text": self.text}),
        }
    }
}

impl Item {
    /// Returns the id prefix of an item's kind.
    pub(super) fn prefix(body: &Body) -> &'static str {
        match body {
            Body::Message(_) => "msg",
            Body::Thoughts(_) | Body::Carried(_) => "rs",
            Body::Call { tool, .. } if tool.is_custom => "ctc",
            Body::Call { .. } => "fc",
        }
    }

    /// Returns the item in its current state.
    pub(super) fn value(&self, status: &str) -> Value {
        let id = &self.id;
        match &self.body {
            Body::Message(texts) => {
                let parts: Vec<_> = texts.iter().map(Text::part).collect();
                json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": parts})
            }
            Body::Thoughts(text) => {
                let parts = if text.text.is_empty() {
                    Vec::new()
                } else {
                    vec![text.part()]
                };
                json!({"id": id, "type": "reasoning", "summary": [], "content": parts})
            }
            Body::Carried(sealed) => {
                json!({"id": id, "type": "reasoning", "summary": [], "encrypted_content": sealed})
            }
            Body::Call {
                call_id,
                tool,
                arguments,
            } => {
                let mut call =
                    json!({"id": id, "status": status, "call_id": call_id, "name": tool.name});
                if tool.is_custom {
                    call["type"] = json!("custom_tool_call");
                    let is_said = !arguments.is_empty();
                    call["input"] = json!(if is_said {
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
