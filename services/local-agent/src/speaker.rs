//! What the user hears: deltas while a model speaks, where the surface shows them, and one whole message at the end.

use protocol::context::AgentRunContext;
use protocol::message::{Message, MessageChunk, MessageContent, ToolCall};
use protocol::result::{AgentRunResult, MessageDeltaPayload, ResultType};
use runner_kit::{Results, results};
use serde::Serialize;
use serde_json::Value;

use crate::line::Room;

/// A delta waits until it adds this part of the text, and carries the whole text so far when that much is new to
/// it, or when its turn ends: all deltas of a turn together are at most about this many times the size of the text, at
/// whatever pace it comes.
const REPEATS: usize = 64;

/// Says what a run has to say. The texts of its turns are one message.
#[derive(Debug)]
pub(crate) struct Speaker {
    out: Results,
    /// Whether the client hears a model while it speaks.
    streaming: bool,
    room: Room,
    /// All that was said in this run.
    said: String,
    /// Of it, what the client has.
    sent: usize,
    /// Of it, what the last delta with the whole text had.
    told_whole: usize,
    /// Where the present turn begins.
    turn: usize,
    sequence: i64,
    /// The client has text that was taken back: the next delta carries the whole text.
    has_taken_back: bool,
}

impl Speaker {
    /// The speaker of a run of this context.
    pub(crate) fn new(out: Results, context: &AgentRunContext) -> Self {
        Self {
            out,
            streaming: is_streaming(context),
            room: Room::of(context),
            said: String::new(),
            sent: 0,
            told_whole: 0,
            turn: 0,
            sequence: 0,
            has_taken_back: false,
        }
    }

    /// Whether the client hears a model while it speaks.
    pub(crate) fn is_streaming(&self) -> bool {
        self.streaming
    }

    /// What the data of a result may weigh.
    pub(crate) fn room(&self) -> Room {
        self.room
    }

    /// Sends a result of another kind.
    pub(crate) async fn send(&self, result: AgentRunResult) {
        self.out.send(result).await;
    }

    /// The next turn begins: its text goes on where those before ended.
    pub(crate) fn begin_turn(&mut self) {
        self.turn = self.said.len();
        self.sequence = 0;
    }

    /// The model has said a little more.
    pub(crate) async fn say(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if self.turn > 0
            && self.said.len() == self.turn
            && !self.said.ends_with(char::is_whitespace)
        {
            self.said.push_str("\n\n");
        }
        self.said.push_str(text);
        if (self.said.len() - self.sent) * REPEATS >= self.said.len() {
            self.flush().await;
        }
    }

    /// The text of this turn so far was thoughts.
    pub(crate) fn start_turn_over(&mut self) {
        self.said.truncate(self.turn);
        self.has_taken_back |= self.sent > self.turn;
        self.sent = self.sent.min(self.turn);
        self.told_whole = self.told_whole.min(self.turn);
    }

    /// Sends what waits: without the whole text where little of it is new.
    pub(crate) async fn flush(&mut self) {
        if self.sent < self.said.len() {
            self.delta(false, None).await;
        }
    }

    /// The turn is over. Its tool calls go along with its last delta.
    pub(crate) async fn end_turn(&mut self, calls: &[ToolCall]) {
        let has_spoken = self.said.len() > self.turn;
        if has_spoken || self.has_taken_back || !calls.is_empty() {
            let calls = (!calls.is_empty()).then(|| shown(calls));
            self.delta(true, calls).await;
        }
    }

    /// The whole message, once: the texts of all turns, or `last` where nothing was heard of it and it says as much.
    /// Calls that make it too long are left out, for they were told by their own results. A text that is too long for a
    /// result is sent as deltas alone: the host makes a message of them.
    pub(crate) async fn complete(&mut self, last: &Message) {
        let is_all = !self.streaming && last.plain_text() == self.said;
        let mut message = if self.said.is_empty() || is_all {
            Message {
                provider_specific_fields: None,
                tool_calls: last.tool_calls.as_deref().map(shown),
                ..last.clone()
            }
        } else {
            Message::text("assistant", &self.said)
        };
        let mut completed = results::message_completed(message.clone(), Vec::new());
        if message.tool_calls.is_some() && !self.room.holds(&completed.data) {
            message.tool_calls = None;
            completed = results::message_completed(message, Vec::new());
        }
        if self.room.holds(&completed.data) {
            self.send(completed).await;
        } else if self.sent < self.said.len() {
            self.tell(true, None).await;
        }
    }

    async fn delta(&mut self, is_final: bool, tool_calls: Option<Vec<ToolCall>>) {
        if self.streaming {
            self.tell(is_final, tool_calls).await;
        }
    }

    /// Sends what was not sent, in as many deltas as it takes. Calls that are too long for one are told by their
    /// own results alone.
    async fn tell(&mut self, is_final: bool, tool_calls: Option<Vec<ToolCall>>) {
        let half = self.room.half();
        let tool_calls = tool_calls.filter(|calls| half.half().holds(calls));
        loop {
            let new = half.beginning(&self.said[self.sent..]).to_owned();
            self.sent += new.len();
            if self.sent == self.said.len() {
                return self.chunk(new, is_final, tool_calls).await;
            }
            self.chunk(new, false, None).await;
        }
    }

    async fn chunk(&mut self, new: String, is_final: bool, tool_calls: Option<Vec<ToolCall>>) {
        self.sequence += 1;
        let is_much_new = (self.sent - self.told_whole) * REPEATS >= self.sent;
        let tells_whole = is_final || is_much_new || self.has_taken_back;
        let whole = tells_whole.then(|| self.said[..self.sent].to_owned());
        let chunk = MessageChunk {
            role: "assistant".to_owned(),
            content: (!new.is_empty()).then_some(MessageContent::Text(new)),
            all_content: whole,
            tool_calls,
            is_final,
            msg_sequence: Some(self.sequence),
            ..MessageChunk::default()
        };
        let mut payload = MessageDeltaPayload { chunk };
        if !self.room.holds(&payload) {
            payload.chunk.all_content = None;
        }
        if payload.chunk.all_content.is_some() {
            self.told_whole = self.sent;
            self.has_taken_back = false;
        }
        self.send(known(ResultType::MessageDelta, &payload)).await;
    }
}

/// Calls as users see them: without what providers want back.
fn shown(calls: &[ToolCall]) -> Vec<ToolCall> {
    let shown = calls.iter().map(|call| ToolCall {
        provider_specific_fields: None,
        ..call.clone()
    });
    shown.collect()
}

fn is_streaming(context: &AgentRunContext) -> bool {
    let host = context.runtime.metadata.get("streaming_supported");
    let host = host.and_then(Value::as_bool).unwrap_or(true);
    host && context.delivery.supports_streaming
}

/// A result of a type of the protocol.
pub(crate) fn known(kind: ResultType, payload: &impl Serialize) -> AgentRunResult {
    let data = serde_json::to_value(payload).ok();
    let data = data.and_then(|data| data.as_object().cloned());
    results::custom(kind.as_str(), data.unwrap_or_default())
}
