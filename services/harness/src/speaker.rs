//! Results of a run: messages for the user, and records for the ledger.

use agent_core::output::{LineLimit, json_bytes};
use protocol::context::AgentRunContext;
use protocol::message::{Message, MessageChunk, MessageContent};
use protocol::resources::StateScope;
use protocol::result::{
    MessageDeltaPayload, ResultType, ToolCallCompletedPayload, ToolCallStartedPayload,
};
use runner_kit::{ResultSender, results};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::config::Config;
use crate::shorten::cut;

/// A delta repeats the full text once the new part is at least 1/`REPEATS` of it.
const REPEATS: usize = 64;

/// Writer of one run's results.
pub(crate) struct TurnWriter {
    out: ResultSender,
    line_limit: LineLimit,
    deltas: DeltaContent,
    /// The next delta repeats the text so far, because a part of it was removed.
    replaces: bool,
    /// Text of the open message.
    text: String,
    /// Bytes of that text as JSON.
    text_bytes: usize,
    /// Bytes of that text in the last delta that repeated it.
    repeated: usize,
    sequence: i64,
    /// The next piece starts a paragraph.
    breaks: bool,
    /// Sentences that form the answer of a turn without text.
    notes: Vec<String>,
    /// Messages of the turn that were completed because they were full.
    full_messages: usize,
}

/// Content of the deltas of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeltaContent {
    /// The surface does not stream.
    None,
    /// Only the new part.
    Parts,
    /// The new part, and sometimes the text so far.
    Repeating,
}

/// Position in the text of a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextMark {
    full_messages: usize,
    bytes: usize,
}

impl TurnWriter {
    pub(crate) fn new(out: ResultSender, context: &AgentRunContext, config: &Config) -> Self {
        Self {
            out,
            line_limit: LineLimit::of(context),
            deltas: match context.delivery.supports_streaming {
                true if config.repeats_text => DeltaContent::Repeating,
                true => DeltaContent::Parts,
                false => DeltaContent::None,
            },
            replaces: false,
            text: String::new(),
            text_bytes: 0,
            repeated: 0,
            sequence: 0,
            breaks: false,
            notes: Vec::new(),
            full_messages: 0,
        }
    }

    /// Maximum bytes of one part of a result, such as the output of a tool.
    pub(crate) fn part_bytes(&self) -> usize {
        self.line_limit.bytes() / 4
    }

    /// Starts a paragraph with the next piece of the answer, such as after a tool call.
    pub(crate) fn new_paragraph(&mut self) {
        self.breaks = true;
    }

    /// Appends a piece of the answer. A full message is completed, and the next one continues the text.
    pub(crate) async fn append(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let breaks = std::mem::take(&mut self.breaks);
        if breaks && !self.text.is_empty() && !self.text.ends_with('\n') {
            self.append_pieces("\n\n").await;
        }
        self.append_pieces(text).await;
    }

    async fn append_pieces(&mut self, text: &str) {
        let part = LineLimit::of_bytes(self.part_bytes());
        for piece in part.pieces(text) {
            let bytes = json_bytes(piece);
            // `message.completed` carries the full text in one result, with its message envelope.
            if self.text_bytes + bytes > self.part_bytes() * 3 {
                self.end_message(Vec::new()).await;
                self.full_messages += 1;
            }
            self.text.push_str(piece);
            self.text_bytes += bytes;
            self.sequence += 1;
            if self.deltas == DeltaContent::None {
                continue;
            }
            let is_much_new = (self.text.len() - self.repeated) * REPEATS >= self.text.len();
            let replaces = std::mem::take(&mut self.replaces);
            let repeats = (replaces || self.deltas == DeltaContent::Repeating && is_much_new)
                && self.text_bytes <= self.part_bytes();
            if repeats {
                self.repeated = self.text.len();
            }
            let chunk = MessageChunk {
                role: "assistant".to_owned(),
                content: Some(MessageContent::Text(piece.to_owned())),
                all_content: repeats.then(|| self.text.clone()),
                msg_sequence: Some(self.sequence),
                ..MessageChunk::default()
            };
            self.send_typed(ResultType::MessageDelta, &MessageDeltaPayload { chunk })
                .await;
        }
    }

    /// End of the text so far.
    pub(crate) fn mark(&self) -> TextMark {
        TextMark {
            full_messages: self.full_messages,
            bytes: self.text.len(),
        }
    }

    /// Removes the text after a mark from the open message. The next delta repeats the text so far.
    pub(crate) fn retract_to(&mut self, mark: TextMark) {
        // Completed messages cannot be changed; only the open one is cut.
        let is_here = mark.full_messages == self.full_messages;
        let end = if is_here { mark.bytes } else { 0 };
        if end < self.text.len() {
            self.text.truncate(self.text.floor_char_boundary(end));
            self.text_bytes = json_bytes(&self.text);
            (self.repeated, self.replaces) = (0, true);
        }
    }

    /// Sends `processor.log`: for the ledger, not for the conversation.
    pub(crate) async fn log(&self, text: impl Into<String>) {
        self.out.send(results::log(text)).await;
    }

    /// Records a sentence, such as a refusal. It is the answer of a turn without text, otherwise a log entry.
    pub(crate) fn note(&mut self, sentence: String) {
        if !self.notes.contains(&sentence) && self.notes.len() < 20 {
            self.notes.push(sentence);
        }
    }

    /// Text of the open message.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// True if the turn has text or notes so far. Files do not count.
    pub(crate) fn has_answered(&self) -> bool {
        self.has_text() || !self.notes.is_empty()
    }

    fn has_text(&self) -> bool {
        self.full_messages > 0 || !self.text.trim().is_empty()
    }

    /// Ends the turn with a `message.completed` of its remaining text, or its notes, and the files. Returns false for a
    /// turn without any answer.
    pub(crate) async fn complete(&mut self, file_ids: Vec<String>) -> bool {
        let has_answered = self.has_answered() || !file_ids.is_empty();
        let notes = std::mem::take(&mut self.notes).join("\n\n");
        // The answer becomes history, and models repeat the phrases that they find in it.
        if self.has_text() && !notes.is_empty() {
            self.log(notes).await;
        } else if !notes.is_empty() {
            self.text.clear();
            self.append_pieces(&notes).await;
        }
        if !self.text.is_empty() || !file_ids.is_empty() {
            self.end_message(file_ids).await;
        }
        (self.breaks, self.replaces, self.full_messages) = (false, false, 0);
        has_answered
    }

    async fn end_message(&mut self, file_ids: Vec<String>) {
        let text = std::mem::take(&mut self.text);
        (self.text_bytes, self.repeated, self.sequence) = (0, 0, 0);
        let message = Message::text("assistant", text);
        let completed = results::message_completed(message, file_ids);
        self.out.send(completed).await;
    }

    /// Sends `tool.call.started`.
    pub(crate) async fn tool_started(&self, id: &str, name: &str, parameters: Value) {
        let payload = ToolCallStartedPayload {
            tool_call_id: cut(id, 255),
            tool_name: cut(name, 255),
            parameters: object(parameters),
        };
        self.send_typed(ResultType::ToolCallStarted, &payload).await;
    }

    /// Sends `tool.call.completed`.
    pub(crate) async fn tool_completed(
        &self,
        id: &str,
        name: &str,
        result: Value,
        error: Option<String>,
    ) {
        let payload = ToolCallCompletedPayload {
            tool_call_id: cut(id, 255),
            tool_name: cut(name, 255),
            result: Some(object(result)).filter(|result| !result.is_empty()),
            error: error.map(|error| cut(&error, 4_000)),
        };
        self.send_typed(ResultType::ToolCallCompleted, &payload)
            .await;
    }

    /// Sends a result of the harness service's own type `x.harness.KIND`.
    pub(crate) async fn send_custom(&self, kind: &str, data: Value) {
        let result = results::custom(format!("x.harness.{kind}"), object(data));
        self.out.send(result).await;
    }

    /// Stores a value in the conversation's state.
    pub(crate) async fn remember(&self, key: &str, value: Value) {
        let result = results::state_updated(StateScope::Conversation, key, value);
        self.out.send(result).await;
    }

    async fn send_typed(&self, kind: ResultType, payload: &impl Serialize) {
        self.out.send(results::typed(kind, payload)).await;
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        Value::Null => Map::new(),
        value => Map::from_iter([("value".to_owned(), value)]),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;
    use protocol::result::AgentRunResult;
    use serde_json::json;

    use super::*;

    /// Results of a turn with this text and one file.
    async fn results_of(text: String, streams: bool, repeats: bool) -> Vec<AgentRunResult> {
        let access = runner_kit::testing::offline_access();
        let request = runner_kit::testing::run_request("plugin:a/b/c", "hi", &access).unwrap();
        let mut context = request.context;
        context.delivery.supports_streaming = streams;
        let results = runner_kit::stream(move |out| async move {
            let mut config = crate::preset::testing::config(crate::config::PermissionMode::Ask);
            config.repeats_text = repeats;
            let mut writer = TurnWriter::new(out, &context, &config);
            writer.append(&text).await;
            assert!(writer.complete(vec!["file".to_owned()]).await);
            Ok(())
        });
        results.map(Result::unwrap).collect().await
    }

    #[tokio::test]
    async fn long_answers_keep_their_text_and_files() {
        let long = "\u{1}\"long\" line\n".repeat(50_000);
        for (text, streams, repeats) in [
            (&long, true, true),
            (&long, true, false),
            (&long, false, true),
            (&String::new(), true, true),
        ] {
            let results = results_of(text.clone(), streams, repeats).await;
            let of = |kind: &str| {
                results
                    .iter()
                    .filter(|it| it.kind == kind)
                    .collect::<Vec<_>>()
            };
            let messages = of("message.completed");
            let texts = messages
                .iter()
                .map(|it| it.data["message"]["content"].as_str().unwrap());
            assert_eq!(texts.collect::<String>(), *text);
            let (last, others) = messages.split_last().expect("a message");
            assert_eq!(last.data["file_ids"], json!(["file"]));
            assert!(others.iter().all(|it| it.data["file_ids"] == json!([])));
            let size = |it: &AgentRunResult| serde_json::to_vec(it).unwrap().len() as u64;
            assert!(results.iter().all(|it| size(it) < 256 * 1024));
            let deltas = of("message.delta");
            assert_eq!(deltas.is_empty(), text.is_empty() || !streams);
            let has_repeats = deltas
                .iter()
                .any(|it| !it.data["chunk"]["all_content"].is_null());
            assert_eq!(has_repeats, !deltas.is_empty() && repeats);
            if !repeats {
                // Without repeats, the size of the events is linear in the text.
                let bytes: u64 = deltas.iter().map(|it| size(it)).sum();
                assert!(bytes < long.len() as u64 * 8, "{bytes}");
            }
        }
    }
}
