//! The platform's conversation id that belongs to a Runnel conversation, and the single retry with a new one.

use serde_json::Value;

use crate::machine::{HistoryMessage, OutputQueue};
use crate::turn::ConnectorTurn;
use crate::upstream::results::cut;

/// Bytes of one earlier message that is sent again.
const MESSAGE_BYTES: usize = 4_000;

/// The id of the platform's conversation, stored in the conversation's state.
#[derive(Debug)]
pub struct PlatformConversation {
    key: &'static str,
    id: Option<String>,
    /// The id comes from the state, and the platform has not confirmed it yet.
    is_unconfirmed: bool,
}

impl PlatformConversation {
    /// The id under that key of the state, where `is_valid` accepts it.
    pub fn of(turn: &ConnectorTurn, key: &'static str, is_valid: impl Fn(&str) -> bool) -> Self {
        let stored = turn.state.get(key).and_then(Value::as_str);
        let id = stored.filter(|id| !id.is_empty() && is_valid(id));
        Self {
            key,
            id: id.map(str::to_owned),
            is_unconfirmed: id.is_some(),
        }
    }

    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// True while the platform has not confirmed the stored id.
    pub fn is_unconfirmed(&self) -> bool {
        self.is_unconfirmed
    }

    /// Takes an id that the platform stated, and stores it unless it is the same.
    // An echo of the stored id confirms it, and no state update is written.
    pub fn learn(&mut self, id: &str, out: &mut OutputQueue) {
        self.is_unconfirmed = false;
        if !id.is_empty() && self.id() != Some(id) {
            self.id = Some(id.to_owned());
            out.remember(self.key, id);
        }
    }

    /// Discards a stored conversation id and logs the reason. False if the call must not be repeated: no stored id was
    /// sent, or the platform confirmed it. After first results of the run, a repeated call would duplicate them.
    pub fn start_over(&mut self, reason: &str, out: &mut OutputQueue) -> bool {
        if !self.is_unconfirmed {
            return false;
        }
        (self.id, self.is_unconfirmed) = (None, false);
        out.log(
            "warning",
            &format!("{reason}; a new conversation is started on the platform"),
        );
        true
    }
}

/// A text with the earlier messages before it, for platforms that accept a single text only.
pub fn with_history(history: &[HistoryMessage], text: &str) -> String {
    if history.is_empty() {
        return text.to_owned();
    }
    let lines = history
        .iter()
        .map(|message| format!("{}: {}\n", message.role, cut(&message.text, MESSAGE_BYTES)));
    format!(
        "The conversation so far:\n{}\n{text}",
        lines.collect::<String>()
    )
}
