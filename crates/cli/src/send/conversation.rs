//! The conversation of a message, and its persistence between commands.

use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::dev_file::write_private;
use crate::output;

/// File next to `dev.json` with the id of the current conversation.
const FILE: &str = "conversation";
const FIRST: &str = "dev";
/// Maximum length of an id.
const MAX_BYTES: usize = 255;

/// The conversation of the next message.
#[derive(Debug)]
pub(super) struct CurrentConversation {
    id: String,
    /// File that stores the id.
    file: Option<PathBuf>,
}

impl CurrentConversation {
    /// A given conversation, which is not stored.
    pub(super) fn named(id: String) -> Self {
        Self { id, file: None }
    }

    /// The current conversation of a playground.
    pub(super) fn of_home(home: Option<&Path>) -> Self {
        let file = home.map(|home| home.join(FILE));
        // An unreadable file only means another conversation.
        let stored = file.as_ref().and_then(|file| {
            let text = std::fs::read_to_string(file).ok()?;
            let id = text.trim();
            (1..=MAX_BYTES).contains(&id.len()).then(|| id.to_owned())
        });
        Self {
            id: stored.unwrap_or_else(|| FIRST.to_owned()),
            file,
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Starts a new conversation. Without a file to store it, a remark states how to continue it.
    pub(super) fn renew(&mut self) -> anyhow::Result<()> {
        let number = Uuid::new_v4().simple().to_string();
        self.id = format!("{FIRST}-{}", &number[..12]);
        if let Some(file) = &self.file {
            return write_private(file, &format!("{}\n", self.id));
        }
        let id = &self.id;
        output::remark(&format!("to continue it: --conversation {id}"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversation_continues_until_renewed() {
        let home = std::env::temp_dir().join(format!("runnel-{}", Uuid::new_v4()));
        std::fs::create_dir(&home).unwrap();
        let at_home = || CurrentConversation::of_home(Some(&home));
        assert_eq!(at_home().id(), "dev");

        let mut conversation = at_home();
        conversation.renew().unwrap();
        assert!(conversation.id().starts_with("dev-"), "{conversation:?}");
        assert_eq!(at_home().id(), conversation.id());
        let mut another = at_home();
        another.renew().unwrap();
        assert_ne!(another.id(), conversation.id());
        assert_eq!(at_home().id(), another.id());

        std::fs::write(home.join(FILE), "x".repeat(MAX_BYTES + 1)).unwrap();
        assert_eq!(at_home().id(), "dev");
        std::fs::remove_dir_all(&home).unwrap();
    }
}
