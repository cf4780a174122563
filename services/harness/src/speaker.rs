//! Results of a run as its user and the ledger see them.

use protocol::context::AgentRunContext;
use protocol::message::{Message, MessageChunk, MessageContent};
use protocol::resources::StateScope;
use protocol::result::{
    AgentRunResult, MessageDeltaPayload, ResultType, ToolCallCompletedPayload,
    ToolCallStartedPayload,
};
use runner_kit::{Results, results};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// A result of a gateway that tells no bounds, in bytes.
const RESULT_BYTES: u64 = 256 * 1024;
/// A delta repeats the whole text once that much of it, as a part, is new.
const REPEATS: usize = 64;

/// Sends the results of one run.
pub(crate) struct Speaker {
    out: Results,
    /// Bytes that the data of one result may take.
    most: usize,
    streams: bool,
    /// The text of this turn.
    said: String,
    /// Of it, bytes that the last delta with the whole text had.
    repeated: usize,
    sequence: i64,
    /// The next piece begins a paragraph.
    breaks: bool,
    /// Sentences that are added at the end of the turn.
    notes: Vec<String>,
}

impl Speaker {
    pub(crate) fn new(out: Results, context: &AgentRunContext) -> Self {
        let limits = &context.runtime.metadata.get("limits");
        let told = ["line_bytes", "event_bytes"]
            .into_iter()
            .filter_map(|name| {
                limits
                    .and_then(|limits| limits.get(name)?.as_u64())
                    .filter(|bytes| *bytes > 0)
            });
        let most = usize::try_from(told.min().unwrap_or(RESULT_BYTES)).unwrap_or(usize::MAX);
        Self {
            out,
            most: most - most / 8,
            streams: context.delivery.supports_streaming,
            said: String::new(),
            repeated: 0,
            sequence: 0,
            breaks: false,
            notes: Vec::new(),
        }
    }

    /// The results beside those of messages.
    pub(crate) fn out(&self) -> &Results {
        &self.out
    }

    /// Bytes that one part of a result may take, such as the output of a tool.
    pub(crate) fn part_bytes(&self) -> usize {
        self.most / 4
    }

    /// The next piece of the answer begins a paragraph: something was done before it.
    pub(crate) fn new_paragraph(&mut self) {
        self.breaks = true;
    }

    pub(crate) async fn say(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let breaks = std::mem::take(&mut self.breaks);
        if breaks && !self.said.is_empty() && !self.said.ends_with('\n') {
            self.say_pieces("\n\n").await;
        }
        self.say_pieces(text).await;
    }

    async fn say_pieces(&mut self, text: &str) {
        let piece_bytes = self.part_bytes();
        for piece in pieces(text, piece_bytes) {
            self.said.push_str(piece);
            self.sequence += 1;
            if !self.streams {
                continue;
            }
            let is_much_new = (self.said.len() - self.repeated) * REPEATS >= self.said.len();
            let repeats = is_much_new && self.said.len() <= self.most / 4;
            if repeats {
                self.repeated = self.said.len();
            }
            let chunk = MessageChunk {
                role: "assistant".to_owned(),
                content: Some(MessageContent::Text(piece.to_owned())),
                all_content: repeats.then(|| self.said.clone()),
                msg_sequence: Some(self.sequence),
                ..MessageChunk::default()
            };
            self.known(ResultType::MessageDelta, &MessageDeltaPayload { chunk })
                .await;
        }
    }

    /// Adds a sentence to the end of this turn's message.
    pub(crate) fn note(&mut self, sentence: String) {
        if !self.notes.contains(&sentence) && self.notes.len() < 20 {
            self.notes.push(sentence);
        }
    }

    /// Ends the turn with one `message.completed`. Whether the harness said anything.
    pub(crate) async fn complete(&mut self, file_ids: Vec<String>) -> bool {
        let has_spoken = !self.said.trim().is_empty();
        for note in std::mem::take(&mut self.notes) {
            let gap = if self.said.is_empty() { "" } else { "\n\n" };
            self.say(&format!("{gap}{note}")).await;
        }
        let text = std::mem::take(&mut self.said);
        (self.repeated, self.sequence, self.breaks) = (0, 0, false);
        if text.is_empty() && file_ids.is_empty() {
            return has_spoken;
        }
        // The gateway makes a longer message out of the deltas.
        if text.len() <= self.most / 2 || !self.streams {
            let text = cut(&text, self.most / 2);
            let message = Message::text("assistant", text);
            self.out
                .send(results::message_completed(message, file_ids))
                .await;
        }
        has_spoken
    }

    /// `tool.call.started`.
    pub(crate) async fn tool_started(&self, id: &str, name: &str, parameters: Value) {
        let payload = ToolCallStartedPayload {
            tool_call_id: cut(id, 255),
            tool_name: cut(name, 255),
            parameters: object(parameters),
        };
        self.known(ResultType::ToolCallStarted, &payload).await;
    }

    /// `tool.call.completed`.
    pub(crate) async fn tool_completed(
        &self,
        (id, name): (&str, &str),
        result: Value,
        error: Option<String>,
    ) {
        let payload = ToolCallCompletedPayload {
            tool_call_id: cut(id, 255),
            tool_name: cut(name, 255),
            result: Some(object(result)).filter(|result| !result.is_empty()),
            error: error.map(|error| cut(&error, 4_000)),
        };
        self.known(ResultType::ToolCallCompleted, &payload).await;
    }

    /// A result of the harness service's own: `x.harness.KIND`.
    pub(crate) async fn tell(&self, kind: &str, data: Value) {
        let result = results::custom(format!("x.harness.{kind}"), object(data));
        self.out.send(result).await;
    }

    /// Stores a value in the conversation's state.
    pub(crate) async fn remember(&self, key: &str, value: Value) {
        let result = results::state_updated(StateScope::Conversation, key, value);
        self.out.send(result).await;
    }

    async fn known(&self, kind: ResultType, payload: &impl Serialize) {
        self.out.send(known(kind, payload)).await;
    }
}

/// A result of a type of the protocol.
pub(crate) fn known(kind: ResultType, payload: &impl Serialize) -> AgentRunResult {
    let data = serde_json::to_value(payload).unwrap_or_default();
    results::custom(kind.as_str(), object(data))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        Value::Null => Map::new(),
        value => Map::from_iter([("value".to_owned(), value)]),
    }
}

/// At most so many bytes of a text, ended where a character ends.
pub(crate) fn cut(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    format!(
        "{}…",
        &text[..text.floor_char_boundary(bytes.saturating_sub('…'.len_utf8()))]
    )
}

/// A value whose JSON takes at most so many bytes, or its beginning as a text.
pub(crate) fn bounded(value: &Value, bytes: usize) -> Value {
    let text = value.to_string();
    if text.len() <= bytes {
        return value.clone();
    }
    json!({"truncated": true, "bytes": text.len(), "preview": cut(&text, bytes / 2)})
}

fn pieces(text: &str, bytes: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let at = rest.floor_char_boundary(bytes.max(4));
        let (piece, behind) = rest.split_at(at);
        rest = behind;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_where_a_character_ends() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("ääää", 6), "ä…");
        assert_eq!(pieces("äöü", 4).collect::<Vec<_>>(), ["äö", "ü"]);
        assert_eq!(bounded(&json!("abcdefgh"), 20), json!("abcdefgh"));
        assert_eq!(bounded(&json!("abcdefgh"), 8)["truncated"], true);
    }
}
