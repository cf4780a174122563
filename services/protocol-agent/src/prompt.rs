//! The messages of a model request: role and protocol, one message per turn, the instruction.

use action_graph::card::{carrier_tool, system_message};
use action_graph::catalog::Catalog;
use action_graph::result::tokens::estimate;
use action_graph::rules::AgentRules;
use action_graph::transcript::{Replay, TranscriptTurn, instruction, render_from, replay};
use protocol::JsonObject;
use protocol::message::Message;
use protocol::model::{LlmRequest, LlmTool};
use serde_json::{Value, json};

/// Name of the argument that pins a tool.
pub(crate) const TOOL_CHOICE: &str = "tool_choice";
/// Least tokens of the transcript, also where the system message takes more than its share.
const LEAST: usize = 1_000;

/// Parts of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelPrompt<'a> {
    /// Role messages of the entry, or of the configuration.
    pub(crate) role: &'a [Message],
    pub(crate) catalog: &'a Catalog,
    pub(crate) rules: &'a AgentRules,
    pub(crate) turns: &'a [TranscriptTurn],
    pub(crate) replay: Replay,
    /// Tokens of the whole request.
    pub(crate) most: usize,
    /// A line about open questions.
    pub(crate) waiting: Option<&'a str>,
    /// Declarations that are left.
    pub(crate) left: Option<u32>,
}

impl ModelPrompt<'_> {
    /// The request of an agent that declares actions.
    pub(crate) fn request(&self) -> LlmRequest {
        let mut messages = self.begin();
        let before: usize = messages.iter().map(|one| estimate(&one.plain_text())).sum();
        let instruction = instruction(self.rules.carrier, self.waiting, self.left);
        let most = self
            .most
            .saturating_sub(before + estimate(&instruction))
            .max(LEAST);
        let turns = replay(self.turns, self.replay, most, &estimate);
        messages.extend(alternating(&turns, &instruction));
        let tool = carrier_tool(self.rules).and_then(as_tool);
        LlmRequest {
            messages,
            extra_args: tool.as_ref().map(pinned).unwrap_or_default(),
            tools: tool.into_iter().collect(),
            remove_think: true,
            ..LlmRequest::default()
        }
    }

    /// The request of an agent without the protocol: an ordinary conversation.
    pub(crate) fn conversation(&self) -> LlmRequest {
        let mut messages = self.begin();
        let said = self.turns.iter().filter_map(|turn| match turn {
            TranscriptTurn::User { text, .. } => Some(Message::text("user", text)),
            TranscriptTurn::Answer { text } => Some(Message::text("assistant", text)),
            TranscriptTurn::Notice(_) | TranscriptTurn::Protocol(_) => None,
        });
        let mut left = self.most;
        let mut fitting: Vec<_> = said
            .rev()
            .take_while(|message| {
                let tokens = estimate(&message.plain_text());
                let fits = tokens <= left || left == self.most;
                left = left.saturating_sub(tokens);
                fits
            })
            .collect();
        fitting.reverse();
        messages.extend(fitting);
        LlmRequest {
            messages,
            ..LlmRequest::default()
        }
    }

    /// The system message, then examples of the role that have other authors.
    fn begin(&self) -> Vec<Message> {
        let is_system = |message: &&Message| message.role == "system";
        let role: Vec<_> = self
            .role
            .iter()
            .filter(is_system)
            .map(Message::plain_text)
            .collect();
        let system = system_message(&role.join("\n\n"), self.catalog, self.rules);
        let examples = self.role.iter().filter(|message| message.role != "system");
        let mut messages = vec![Message::text("system", system)];
        messages.extend(examples.cloned());
        messages
    }
}

/// The turns and the instruction as messages of alternating roles, which some chat templates require: answers are the
/// assistant's, all between two answers is one message of the user. Answers before the first request stay turns.
fn alternating(turns: &[TranscriptTurn], instruction: &str) -> Vec<Message> {
    let mut messages = Vec::new();
    let (mut shown, mut said) = (String::new(), String::new());
    for (index, turn) in turns.iter().enumerate() {
        match turn {
            TranscriptTurn::Answer { text } if !(messages.is_empty() && shown.is_empty()) => {
                if !shown.is_empty() {
                    messages.push(Message::text("user", std::mem::take(&mut shown)));
                }
                if !said.is_empty() {
                    said.push_str("\n\n");
                }
                said.push_str(text);
            }
            turn => {
                if !said.is_empty() {
                    messages.push(Message::text("assistant", std::mem::take(&mut said)));
                }
                shown.push_str(&render_from(index, std::slice::from_ref(turn)));
            }
        }
    }
    if !said.is_empty() {
        messages.push(Message::text("assistant", said));
    }
    shown.push_str(instruction);
    messages.push(Message::text("user", shown));
    messages
}

/// Argument that makes a model call this tool.
fn pinned(tool: &LlmTool) -> JsonObject {
    let choice = json!({"type": "function", "function": {"name": tool.name}});
    JsonObject::from_iter([(TOOL_CHOICE.to_owned(), choice)])
}

fn as_tool(tool: Value) -> Option<LlmTool> {
    serde_json::from_value(tool).ok()
}
