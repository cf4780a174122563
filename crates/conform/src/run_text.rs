//! Text of a run, and a comparison of its deltas with its complete messages.

use protocol::admin::DeltaMode;
use protocol::message::MessageContent;
use protocol::result::ResultType;
use serde_json::Value;

/// The text of a run.
pub(super) struct RunText {
    delta_mode: DeltaMode,
    deltas: u64,
    /// Increments since the last complete message.
    gathered: String,
    last_piece: String,
    /// All text, for searches.
    all: String,
    compared: u64,
    disagreement: Option<TextMismatch>,
}

/// A complete message that differs from its deltas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TextMismatch {
    pub(super) pieces: String,
    pub(super) complete: String,
    /// The last delta equals the complete message: deltas are snapshots.
    pub(super) snapshots: bool,
}

impl RunText {
    pub(super) fn new(delta_mode: DeltaMode) -> Self {
        Self {
            delta_mode,
            deltas: 0,
            gathered: String::new(),
            last_piece: String::new(),
            all: String::new(),
            compared: 0,
            disagreement: None,
        }
    }

    /// Adds an accepted result.
    pub(super) fn add(&mut self, kind: &str, data: &str) {
        let data: Value = serde_json::from_str(data).unwrap_or_default();
        match ResultType::parse(kind) {
            Some(ResultType::MessageDelta) => self.add_delta(&data["chunk"]),
            Some(ResultType::MessageCompleted) => self.add_message(&data["message"]),
            Some(ResultType::RunCompleted) if data["message"].is_object() => {
                self.add_message(&data["message"]);
            }
            _ => {}
        }
    }

    pub(super) fn deltas(&self) -> u64 {
        self.deltas
    }

    /// Number of complete messages that were compared with their deltas.
    pub(super) fn compared(&self) -> u64 {
        self.compared
    }

    pub(super) fn disagreement(&self) -> Option<&TextMismatch> {
        self.disagreement.as_ref()
    }

    pub(super) fn contains(&self, word: &str) -> bool {
        self.all.contains(word)
    }

    fn add_delta(&mut self, chunk: &Value) {
        self.deltas += 1;
        let piece = text_of(&chunk["content"]);
        match (chunk["all_content"].as_str(), self.delta_mode) {
            (Some(full), _) => full.clone_into(&mut self.gathered),
            (None, DeltaMode::Snapshot) if !piece.is_empty() => self.gathered.clone_from(&piece),
            (None, _) => self.gathered.push_str(&piece),
        }
        self.all.push_str(&piece);
        // An empty last chunk is common, and would hide the snapshot mistake.
        if !piece.trim().is_empty() {
            self.last_piece = piece;
        }
    }

    fn add_message(&mut self, message: &Value) {
        let complete = text_of(&message["content"]);
        let pieces = std::mem::take(&mut self.gathered);
        let last = std::mem::take(&mut self.last_piece);
        self.all.push_str(&complete);
        // A message without deltas is complete on its own.
        if pieces.trim().is_empty() {
            return;
        }
        self.compared += 1;
        // Spaces at the ends may be trimmed by the runner.
        if pieces.trim() != complete.trim() && self.disagreement.is_none() {
            self.disagreement = Some(TextMismatch {
                snapshots: last.trim() == complete.trim(),
                pieces,
                complete,
            });
        }
    }
}

fn text_of(content: &Value) -> String {
    serde_json::from_value::<MessageContent>(content.clone())
        .map(|content| content.plain_text())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(text: &str) -> (&'static str, String) {
        let chunk = serde_json::json!({"chunk": {"role": "assistant", "content": text}});
        ("message.delta", chunk.to_string())
    }

    fn complete(text: &str) -> (&'static str, String) {
        let message = serde_json::json!({"message": {"role": "assistant", "content": text}});
        ("message.completed", message.to_string())
    }

    #[track_caller]
    fn check(mode: DeltaMode, results: &[(&str, String)], agrees: bool, snapshots: bool) {
        let mut run_text = RunText::new(mode);
        for (kind, data) in results {
            run_text.add(kind, data);
        }
        let disagreement = run_text.disagreement();
        assert_eq!(disagreement.is_none(), agrees, "{disagreement:?}");
        assert_eq!(disagreement.is_some_and(|found| found.snapshots), snapshots);
    }

    #[test]
    fn compares_deltas_with_the_following_message() {
        use DeltaMode::{Increment, Snapshot};
        let grown = [piece("a"), piece("a b"), complete("a b")];
        check(
            Increment,
            &[piece("a "), piece("b"), complete("a b")],
            true,
            false,
        );
        check(
            Increment,
            &[piece("a "), piece("b\n"), complete("a b")],
            true,
            false,
        );
        check(
            Increment,
            &[piece("a"), complete("a"), piece("b"), complete("b")],
            true,
            false,
        );
        check(Increment, &[complete("a")], true, false);
        check(Increment, &[piece("a"), complete("b")], false, false);
        check(Increment, &grown, false, true);
        check(Snapshot, &grown, true, false);
    }
}
