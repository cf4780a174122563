//! Messages of a model request: role and protocol, turns, and the final instruction.

use action_graph::card::{carrier_tool, system_message};
use action_graph::catalog::Catalog;
use action_graph::result::tokens::estimate;
use action_graph::rules::AgentRules;
use action_graph::transcript::{Replay, TranscriptTurn, instruction, render_from, replay};
use protocol::JsonObject;
use protocol::message::Message;
use protocol::model::{LlmRequest, LlmTool};
use serde_json::{Value, json};

/// Request argument that forces the call of a tool.
pub(crate) const TOOL_CHOICE: &str = "tool_choice";
/// Minimum tokens for the transcript, even if the system message exceeds the budget.
const LEAST: usize = 1_000;

/// Parts of a model request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelPrompt<'a> {
    /// Role messages of the entry, or of the configuration.
    pub(crate) role: &'a [Message],
    pub(crate) catalog: &'a Catalog,
    pub(crate) rules: &'a AgentRules,
    pub(crate) turns: &'a [TranscriptTurn],
    pub(crate) replay: Replay,
    /// Maximum tokens of the complete request.
    pub(crate) max_tokens: usize,
    /// Line about open questions.
    pub(crate) waiting: Option<&'a str>,
    /// Remaining declarations of the run.
    pub(crate) left: Option<u32>,
}

impl ModelPrompt<'_> {
    /// Request of an agent that declares actions.
    pub(crate) fn request(&self) -> LlmRequest {
        let mut messages = self.begin();
        let before: usize = messages.iter().map(|one| estimate(&one.plain_text())).sum();
        let instruction = instruction(self.rules.carrier, self.waiting, self.left);
        let transcript_tokens = self
            .max_tokens
            .saturating_sub(before + estimate(&instruction))
            .max(LEAST);
        let turns = replay(self.turns, self.replay, transcript_tokens, &estimate);
        messages.extend(alternating(&turns, &instruction));
        let tool = carrier_tool(self.rules).and_then(as_tool);
        LlmRequest {
            messages,
            extra_args: tool.as_ref().map(pinned).unwrap_or_default(),
            tools: tool.into_iter().collect(),
            // Reasoning in the content is no part of a declaration.
            remove_think: true,
            ..LlmRequest::default()
        }
    }

    /// Request of an agent without the protocol: an ordinary conversation.
    pub(crate) fn conversation(&self) -> LlmRequest {
        let mut messages = self.begin();
        let history = self.turns.iter().filter_map(|turn| match turn {
            TranscriptTurn::User { text, .. } => Some(Message::text("user", text)),
            TranscriptTurn::Answer { text } => Some(Message::text("assistant", text)),
            TranscriptTurn::Notice(_) | TranscriptTurn::Protocol(_) => None,
        });
        let mut left = self.max_tokens;
        let mut fitting: Vec<_> = history
            .rev()
            .take_while(|message| {
                let tokens = estimate(&message.plain_text());
                // The current request always stays, even if it exceeds the budget.
                let fits = tokens <= left || left == self.max_tokens;
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

    /// System message, then the role's examples in other roles.
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

/// Turns and instruction as messages of alternating roles: answers become assistant messages, all turns between two
/// answers one user message.
fn alternating(turns: &[TranscriptTurn], instruction: &str) -> Vec<Message> {
    // Some chat templates reject repeated roles, and a conversation that begins with the assistant.
    let mut messages = Vec::new();
    let (mut shown, mut answer) = (String::new(), String::new());
    for (index, turn) in turns.iter().enumerate() {
        match turn {
            TranscriptTurn::Answer { text } if !(messages.is_empty() && shown.is_empty()) => {
                if !shown.is_empty() {
                    messages.push(Message::text("user", std::mem::take(&mut shown)));
                }
                if !answer.is_empty() {
                    answer.push_str("\n\n");
                }
                answer.push_str(text);
            }
            turn => {
                if !answer.is_empty() {
                    messages.push(Message::text("assistant", std::mem::take(&mut answer)));
                }
                shown.push_str(&render_from(index, std::slice::from_ref(turn)));
            }
        }
    }
    if !answer.is_empty() {
        messages.push(Message::text("assistant", answer));
    }
    shown.push_str(instruction);
    messages.push(Message::text("user", shown));
    messages
}

/// Argument that forces a model to call this tool.
fn pinned(tool: &LlmTool) -> JsonObject {
    let choice = json!({"type": "function", "function": {"name": tool.name}});
    JsonObject::from_iter([(TOOL_CHOICE.to_owned(), choice)])
}

fn as_tool(tool: Value) -> Option<LlmTool> {
    serde_json::from_value(tool).ok()
}
