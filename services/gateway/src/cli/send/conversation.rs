//! Which conversation a message belongs to, and which one the next goes on with.

use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::cli::output;
use crate::dev::write_private;

/// The file beside `dev.json` with the id of the conversation that goes on.
const FILE: &str = "conversation";
const FIRST: &str = "dev";
/// The longest id that the gateway takes.
const MOST_BYTES: usize = 255;

/// The conversation of the next message.
#[derive(Debug)]
pub(super) struct Conversation {
    id: String,
    /// Where it is remembered.
    file: Option<PathBuf>,
}

impl Conversation {
    /// This one, and the next message may belong to another.
    pub(super) fn named(id: String) -> Self {
        Self { id, file: None }
    }

    /// The one that goes on in a playground's data directory.
    pub(super) fn of_home(home: Option<&Path>) -> Self {
        let file = home.map(|home| home.join(FILE));
        let known = file.as_ref().and_then(|file| {
            let text = std::fs::read_to_string(file).ok()?;
            let id = text.trim();
            (1..=MOST_BYTES).contains(&id.len()).then(|| id.to_owned())
        });
        Self {
            id: known.unwrap_or_else(|| FIRST.to_owned()),
            file,
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Begins another one. Where nothing remembers it, a remark says how to go on with it.
    pub(super) fn renew(&mut self) -> anyhow::Result<()> {
        let number = Uuid::new_v4().simple().to_string();
        self.id = format!("{FIRST}-{}", &number[..12]);
        if let Some(file) = &self.file {
            return write_private(file, &format!("{}\n", self.id));
        }
        let id = &self.id;
        output::remark(&format!("to go on with it: --conversation {id}"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_goes_on_until_another_one_begins() {
        let home = std::env::temp_dir().join(format!("runnel-{}", Uuid::new_v4()));
        std::fs::create_dir(&home).unwrap();
        let at_home = || Conversation::of_home(Some(&home));
        assert_eq!(at_home().id(), "dev");

        let mut conversation = at_home();
        conversation.renew().unwrap();
        assert!(conversation.id().starts_with("dev-"), "{conversation:?}");
        assert_eq!(at_home().id(), conversation.id());
        let mut another = at_home();
        another.renew().unwrap();
        assert_ne!(another.id(), conversation.id());
        assert_eq!(at_home().id(), another.id());

        std::fs::write(home.join(FILE), "x".repeat(MOST_BYTES + 1)).unwrap();
        assert_eq!(at_home().id(), "dev");
        std::fs::remove_dir_all(&home).unwrap();
    }
}
