//! The state of one run that the loop and its platform share.

use std::collections::BTreeSet;

use protocol::message::LlmTokenUsage;
use serde_json::{Value, json};

use crate::machine::{HistoryMessage, MachineOutput, OutputQueue, SavedFile};
use crate::turn::ConnectorTurn;
use crate::upstream::answer::AnswerText;
use crate::upstream::conversation::{PlatformConversation, with_history};
use crate::upstream::tools::ToolEvents;

/// Maximum files of one answer.
pub const MAX_FILES: usize = 50;

/// One run on one platform.
pub struct ConnectorRun {
    pub turn: ConnectorTurn,
    pub conversation: PlatformConversation,
    /// Earlier messages that the next message repeats, oldest first.
    pub history: Vec<HistoryMessage>,
    /// The turn's files in the platform's form, in the order of the turn.
    pub files: Vec<Value>,
    pub answer: PlatformAnswer,
    /// Id of the work on the platform, while a stop call for it makes sense.
    pub task: Option<String>,
}

impl ConnectorRun {
    /// A run before its first request.
    pub fn new(turn: ConnectorTurn, conversation: PlatformConversation) -> Self {
        Self {
            answer: PlatformAnswer::new(&turn),
            conversation,
            history: Vec::new(),
            files: Vec::new(),
            task: None,
            turn,
        }
    }

    /// Stores the id of the platform's conversation. An echo of the stored id confirms it.
    pub fn learn(&mut self, id: &str) {
        self.conversation.learn(id, &mut self.answer.out);
    }

    /// Confirms the stored id, so that the run does not start over.
    pub fn confirm(&mut self) {
        self.learn("");
    }

    /// The stored id, or a new one for platforms that accept ids of their clients.
    pub fn own_conversation(&mut self) -> String {
        if self.conversation.id().is_none() {
            self.learn(&format!("runnel_{}", self.turn.run_id));
        }
        self.conversation.id().unwrap_or_default().to_owned()
    }

    /// An id under a key of the state, created by the conversation's first run.
    pub fn stable_id(&mut self, key: &str, prefix: &str) -> String {
        let stored = self.turn.state.get(key).and_then(Value::as_str);
        if let Some(id) = stored.filter(|id| !id.is_empty()) {
            return id.to_owned();
        }
        let id = format!("{prefix}_{}", self.turn.run_id.replace('-', ""));
        self.answer.out.remember(key, id.as_str());
        id
    }

    /// The text with the earlier messages before it, for platforms that accept a single text only.
    pub fn query(&self, text: &str) -> String {
        with_history(&self.history, text)
    }

    /// The content of a chat message: the text, or a text part of this type and the files.
    pub fn content(&self, kind: &str) -> Value {
        if self.files.is_empty() {
            return json!(self.turn.text);
        }
        let text =
            (!self.turn.text.is_empty()).then(|| json!({"type": kind, "text": self.turn.text}));
        text.into_iter().chain(self.files.iter().cloned()).collect()
    }

    /// The earlier messages as `role` and `content`.
    pub fn chat_history(&self) -> Vec<Value> {
        let messages = self.history.iter();
        let messages =
            messages.map(|message| json!({"role": message.role, "content": message.text}));
        messages.collect()
    }
}

/// The answer so far, and the outputs that are not handled yet.
pub struct PlatformAnswer {
    text: AnswerText,
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
            text: AnswerText::new(turn),
            tools: ToolEvents::default(),
            files: BTreeSet::new(),
            usage: None,
            finish_reason: None,
            out: OutputQueue::default(),
        }
    }

    /// True once results of the run exist.
    pub fn has_begun(&self) -> bool {
        self.text.has_begun() || self.tools.has_reported() || !self.files.is_empty()
    }

    /// True without text; reasoning does not count.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// True without text and files.
    pub fn has_no_content(&self) -> bool {
        self.text.is_empty() && self.files.is_empty()
    }

    /// True if the text contains this one, without white space around it.
    pub fn has(&self, text: &str) -> bool {
        self.text.has(text)
    }

    /// The next piece of the text.
    pub fn append(&mut self, piece: &str) {
        self.text.append(piece, &mut self.out);
    }

    /// Begins a new paragraph, unless the answer is empty.
    pub fn begin_paragraph(&mut self) {
        if !self.is_empty() {
            self.append("\n\n");
        }
    }

    /// The full text so far, for platforms that repeat it.
    pub fn snapshot(&mut self, full_text: &str) {
        self.text.snapshot(full_text, &mut self.out);
    }

    /// Replaces the text so far by another one.
    pub fn replace(&mut self, full_text: &str) {
        self.text.replace(full_text, &mut self.out);
    }

    /// Adds the part of the complete text that the pieces lack.
    pub fn add_missing(&mut self, full_text: &str) {
        self.text.add_missing(full_text, &mut self.out);
    }

    /// A piece of reasoning.
    pub fn think(&mut self, piece: &str) {
        self.text.think(piece, &mut self.out);
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
        let has_files = !self.files.is_empty();
        self.text.complete_with_files(has_files, &mut self.out)
    }
}
