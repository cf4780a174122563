//! The answer of a run: text as pieces or snapshots, tool calls, files and usage.

use std::collections::BTreeSet;

use protocol::message::LlmTokenUsage;
use protocol::thinking::{FilteredText, ThinkFilter, without_thinking};
use serde_json::Value;

use crate::machine::{MachineOutput, OutputQueue, SavedFile};
use crate::turn::ConnectorTurn;
use crate::upstream::results::{self, cut};
use crate::upstream::tools::ToolEvents;

/// Ratio for repeats: a delta repeats the full text only if at least 1/64 of it is new. Otherwise a long answer would
/// need bytes quadratic in its length.
const REPEATS: usize = 64;

/// Maximum files of one answer.
pub const MAX_FILES: usize = 50;

/// The answer of one run so far, and the outputs that are not handled yet.
#[derive(Debug)]
pub struct PlatformAnswer {
    streams: bool,
    shows_reasoning: bool,
    /// Maximum bytes of one result's data.
    max_bytes: usize,
    filter: ThinkFilter,
    reasoning: MarkedReasoning,
    text: String,
    /// The last snapshot, reasoning included.
    snapshot: String,
    /// Length in bytes of the text at the last delta that repeated it.
    repeated: usize,
    sequence: i64,
    has_begun: bool,
    tools: ToolEvents,
    files: BTreeSet<String>,
    pub usage: Option<LlmTokenUsage>,
    /// The platform's reason for the end; absent for `stop`.
    pub finish_reason: Option<String>,
    pub out: OutputQueue,
}

impl PlatformAnswer {
    /// An empty answer.
    pub fn new(turn: &ConnectorTurn) -> Self {
        Self {
            streams: turn.streams,
            shows_reasoning: turn.shows_reasoning,
            // Leave an eighth of the limit for the envelope around the data.
            max_bytes: turn.result_bytes - turn.result_bytes / 8,
            filter: ThinkFilter::default(),
            reasoning: MarkedReasoning::default(),
            text: String::new(),
            snapshot: String::new(),
            repeated: 0,
            sequence: 0,
            has_begun: false,
            tools: ToolEvents::default(),
            files: BTreeSet::new(),
            usage: None,
            finish_reason: None,
            out: OutputQueue::default(),
        }
    }

    /// The next piece of the text.
    pub fn append(&mut self, piece: &str) {
        if piece.is_empty() {
            return;
        }
        self.has_begun = true;
        let filtered = self.filter.push(piece);
        // A restarted text repeats its reasoning, so emit only the new part.
        let reasoning = self.reasoning.new_of(&filtered.reasoning);
        self.think(&reasoning);
        if filtered.starts_over {
            self.text.clear();
            self.restate(&filtered.text);
        } else {
            self.say(&filtered.text);
        }
    }

    /// Begins a new paragraph, unless the answer is empty.
    pub fn begin_paragraph(&mut self) {
        if !self.is_empty() {
            self.append("\n\n");
        }
    }

    /// The full text so far, for platforms that repeat it: emits the new part, or replaces the text.
    pub fn snapshot(&mut self, full_text: &str) {
        let last = std::mem::replace(&mut self.snapshot, full_text.to_owned());
        match full_text.strip_prefix(last.as_str()) {
            Some(piece) => self.append(piece),
            None => self.replace(full_text),
        }
    }

    /// The next piece of a text whose next snapshot repeats it.
    pub fn extend_snapshot(&mut self, piece: &str) {
        self.snapshot.push_str(piece);
        self.append(piece);
    }

    /// Replaces the text so far by another one.
    pub fn replace(&mut self, full_text: &str) {
        self.has_begun = true;
        // The new text may end within a reasoning mark, which later pieces continue.
        self.filter = ThinkFilter::default();
        let FilteredText {
            text, reasoning, ..
        } = self.filter.push(full_text);
        self.reasoning.start_over();
        let reasoning = self.reasoning.new_of(&reasoning);
        self.think(&reasoning);
        if text != self.text {
            self.text.clear();
            self.restate(&text);
        }
    }

    /// The complete text, for platforms that send it at the end of an answer whose pieces may lack a part. Emits the
    /// missing part. A text that differs from the pieces is ignored; white space is not compared.
    pub fn add_missing(&mut self, full_text: &str) {
        // A held part of a mark belongs to the text, so release it before the comparison.
        let rest = self.filter.finish();
        self.say(&rest);
        if self.is_empty() {
            return self.append(full_text);
        }
        let full_text = without_thinking(full_text);
        match end_of(&self.text, &full_text) {
            Some(end) if !full_text[end..].trim().is_empty() => {
                self.filter = ThinkFilter::default();
                self.append(&full_text[end..]);
            }
            // The pieces are a later part of the text, so the beginning is missing: replace it all.
            None if squeezed(&full_text).contains(&squeezed(&self.text)) => {
                self.replace(&full_text);
            }
            Some(_) | None => {}
        }
    }

    /// A piece of reasoning from a channel of its own.
    pub fn think(&mut self, piece: &str) {
        if piece.is_empty() {
            return;
        }
        self.has_begun = true;
        if self.shows_reasoning {
            // A quarter of the limit leaves space for JSON escapes.
            for piece in pieces(piece, self.max_bytes / 4) {
                self.out.tell(results::thought(piece));
            }
        }
    }

    /// True once results of the run exist.
    pub fn has_begun(&self) -> bool {
        self.has_begun || self.tools.has_reported() || !self.files.is_empty()
    }

    /// True without text; reasoning does not count.
    pub fn is_empty(&self) -> bool {
        self.text.trim().is_empty()
    }

    /// True without text and files.
    pub fn has_no_content(&self) -> bool {
        self.is_empty() && self.files.is_empty()
    }

    /// True if the text contains this one, without white space around it.
    pub fn has(&self, text: &str) -> bool {
        self.text.contains(text.trim())
    }

    /// The usage so far; a later one replaces it.
    pub fn count(&mut self, usage: Option<LlmTokenUsage>) {
        self.usage = usage.or(self.usage.take());
    }

    /// Emits the start of a call that the platform runs, unless the id was reported before.
    pub fn tool_started(&mut self, id: &str, name: &str, parameters: Value) {
        self.tools.start(id, name, parameters, &mut self.out);
    }

    /// Emits the end of a started call.
    pub fn tool_completed(&mut self, id: &str, result: Value, error: Option<&str>) {
        self.tools.complete(id, result, error, &mut self.out);
    }

    /// Saves a file once; files with the same key are one file. False if the answer has [`MAX_FILES`] already.
    pub fn save(&mut self, key: &str, file: SavedFile) -> bool {
        if self.files.contains(key) {
            return true;
        }
        if self.files.len() >= MAX_FILES {
            return false;
        }
        self.files.insert(key.to_owned());
        self.out.push(MachineOutput::Save(file));
        true
    }

    /// Completes the message. Returns false without text and files; then nothing is sent.
    pub(crate) fn complete(&mut self) -> bool {
        let rest = self.filter.finish();
        self.say(&rest);
        if self.has_no_content() {
            return false;
        }
        // The gateway assembles a longer message from the deltas.
        if self.is_empty() {
            self.out.tell(results::completed(""));
        } else if self.text.len() <= self.max_bytes / 2 || !self.streams {
            let text = cut(&self.text, self.max_bytes / 2);
            self.out.tell(results::completed(&text));
        }
        true
    }

    fn say(&mut self, text: &str) {
        for piece in pieces(text, self.max_bytes / 4) {
            self.text.push_str(piece);
            self.sequence += 1;
            if !self.streams {
                continue;
            }
            // Integer form of the ratio: new bytes / all bytes >= 1 / `REPEATS`.
            let is_much_new = (self.text.len() - self.repeated) * REPEATS >= self.text.len();
            let repeats = is_much_new && self.text.len() <= self.max_bytes / 4;
            if repeats {
                self.repeated = self.text.len();
            }
            let all = repeats.then_some(self.text.as_str());
            self.out.tell(results::delta(piece, all, self.sequence));
        }
    }

    /// Restarts the text: a delta with the full text replaces the earlier ones.
    fn restate(&mut self, text: &str) {
        let first = pieces(text, self.max_bytes / 4).next().unwrap_or_default();
        first.clone_into(&mut self.text);
        self.repeated = first.len();
        self.sequence += 1;
        // The rest follows as deltas, because the full text may exceed the limit of one result.
        if self.streams {
            self.out
                .tell(results::delta("", Some(first), self.sequence));
        }
        self.say(&text[first.len()..]);
    }
}

/// The end of `text` within the beginning of `full_text`, ignoring white space.
fn end_of(text: &str, full_text: &str) -> Option<usize> {
    let mut letters = full_text
        .char_indices()
        .filter(|(_, letter)| !letter.is_whitespace());
    let mut end = 0;
    for letter in text.chars().filter(|letter| !letter.is_whitespace()) {
        let (at, found) = letters.next()?;
        if found != letter {
            return None;
        }
        end = at + found.len_utf8();
    }
    Some(end)
}

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect()
}

/// Reasoning between marks of the text. A text that is sent again repeats it.
#[derive(Debug, Default)]
struct MarkedReasoning {
    emitted: String,
    /// Reasoning since the last restart of the text.
    current: String,
}

impl MarkedReasoning {
    fn start_over(&mut self) {
        self.current.clear();
    }

    /// The part of a piece that was not sent before.
    fn new_of(&mut self, piece: &str) -> String {
        self.current.push_str(piece);
        // The repetition has not reached new reasoning yet.
        if self.emitted.starts_with(&self.current) {
            return String::new();
        }
        let new = self
            .current
            .strip_prefix(&self.emitted)
            .unwrap_or(piece)
            .to_owned();
        self.emitted.clone_from(&self.current);
        new
    }
}

/// A text in pieces of at most this many bytes, cut between characters.
fn pieces(text: &str, bytes: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        // At least 4 bytes, the longest character: otherwise the loop would make no progress.
        let (piece, behind) = rest.split_at(rest.floor_char_boundary(bytes.max(4)));
        rest = behind;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::MachineOutput;

    fn emitted(answer: PlatformAnswer) -> Vec<String> {
        let texts = answer.out.0.into_iter().map(|output| match output {
            MachineOutput::Tell(result) => match result.kind.as_str() {
                "message.delta" => {
                    let chunk = &result.data["chunk"];
                    let all = chunk["all_content"].as_str().unwrap_or("-");
                    format!("{}|{all}", chunk["content"].as_str().unwrap())
                }
                "message.completed" => {
                    format!("={}", result.data["message"]["content"].as_str().unwrap())
                }
                _ => format!("?{}", result.data["text"].as_str().unwrap()),
            },
            other => format!("{other:?}"),
        });
        texts.collect()
    }

    fn last_emitted(answer: PlatformAnswer) -> String {
        emitted(answer).pop().unwrap_or_default()
    }

    fn answer(streams: bool, result_bytes: usize) -> PlatformAnswer {
        PlatformAnswer::new(&ConnectorTurn {
            streams,
            result_bytes,
            shows_reasoning: true,
            ..ConnectorTurn::default()
        })
    }

    #[test]
    fn snapshots_become_increments() {
        let mut answer = answer(true, 4_000);
        for snapshot in ["He", "Hello", "Hello", "Bye"] {
            answer.snapshot(snapshot);
        }
        assert!(answer.complete());
        assert_eq!(emitted(answer), ["He|He", "llo|Hello", "|Bye", "=Bye"]);
    }

    #[test]
    fn adds_text_missing_from_pieces() {
        for (pieces, full_text, expected) in [
            (&[][..], "a\nb", "a\nb"),
            (&["a"], "a\nb", "a\nb"),
            (&["a\n\n"], "a\nb", "a\n\n\nb"),
            (&["b"], "a\nb", "a\nb"),
            (&["a", "b"], "a\nb", "ab"),
            (&["<think>x</think>a"], "<think>x</think>a b", "a b"),
            (&["a b <"], "a b < c", "a b < c"),
            (&["c"], "a\nb", "c"),
            (&["a"], " ", "a"),
        ] {
            let mut answer = answer(false, 4_000);
            for piece in pieces {
                answer.append(piece);
            }
            answer.add_missing(full_text);
            answer.complete();
            let completed = last_emitted(answer);
            assert_eq!(completed, format!("={expected}"), "{pieces:?} {full_text}");
        }
    }

    #[test]
    fn reasoning_is_split_off() {
        let mut answer = answer(true, 4_000);
        for piece in ["<thi", "nk>hm</think>", "\n\nYes"] {
            answer.append(piece);
        }
        answer.complete();
        assert_eq!(emitted(answer), ["?hm", "Yes|Yes", "=Yes"]);
    }

    #[test]
    fn restated_text_repeats_no_reasoning() {
        let mut answer = answer(false, 4_000);
        for piece in ["<think>a", "b", "</think>Hi"] {
            answer.append(piece);
        }
        answer.replace("");
        for piece in ["<think>a", "bc</think>", "Hi"] {
            answer.append(piece);
        }
        answer.replace("<think>ab");
        answer.append("c</think>Ho");
        answer.complete();
        assert_eq!(emitted(answer), ["?a", "?b", "?c", "=Ho"]);
    }

    #[test]
    fn closing_marks_turn_text_into_reasoning() {
        let mut answer = answer(true, 4_000);
        for piece in ["hm", "</think>", "Yes"] {
            answer.append(piece);
        }
        answer.complete();
        assert_eq!(emitted(answer), ["hm|hm", "|", "Yes|Yes", "=Yes"]);
    }

    #[test]
    fn results_stay_within_their_bound() {
        let mut answer = answer(true, 64);
        answer.append(&"ä".repeat(100));
        assert!(answer.complete());
        let emitted = emitted(answer);
        assert!(
            emitted
                .iter()
                .all(|emitted| emitted.len() <= 64 && !emitted.starts_with('=')),
            "{emitted:?}"
        );
        let joined: String = emitted
            .iter()
            .map(|emitted| emitted.split('|').next().unwrap())
            .collect();
        assert_eq!(joined, "ä".repeat(100));
    }

    #[test]
    fn sends_one_message_without_streaming() {
        let mut answer = answer(false, 4_000);
        answer.append("a");
        answer.append("b");
        answer.complete();
        assert_eq!(emitted(answer), ["=ab"]);
    }
}
