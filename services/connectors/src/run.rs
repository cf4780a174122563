//! The state of one run that the loop and its platform share.

use serde_json::{Value, json};

use crate::machine::HistoryMessage;
use crate::turn::ConnectorTurn;
use crate::upstream::answer::PlatformAnswer;
use crate::upstream::conversation::{PlatformConversation, with_history};

/// One run on one platform.
pub struct ConnectorRun {
    pub turn: ConnectorTurn,
    pub conversation: PlatformConversation,
    /// Number of earlier messages that are read before the message is sent.
    pub sent_history: u32,
    /// Number of earlier messages that are read before the message is sent in a new conversation.
    pub resent_history: u32,
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
            sent_history: 0,
            resent_history: 0,
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
