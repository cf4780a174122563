//! Line editing at a terminal: history, wide characters, messages of several lines.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustyline::completion::Completer;
use rustyline::config::{Behavior, Config};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Editor, Helper};

/// Begin and end of a message of several lines.
pub(super) const FENCE: &str = "\"\"\"";
/// Maximum number of messages in the history.
const MAX_HISTORY: usize = 1000;

/// An entry at a prompt.
pub(super) enum TypedEntry {
    Text(String),
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D, or the end of the input.
    Ended,
}

/// Reads lines at the terminal.
pub(super) struct LineEditor {
    editor: Editor<Fenced, DefaultHistory>,
    /// File of the history.
    file: Option<PathBuf>,
}

impl LineEditor {
    /// An editor of messages, whose history is kept in a file, if there is one.
    pub(super) fn of_messages(file: Option<PathBuf>) -> anyhow::Result<Self> {
        let mut editor = open(true)?;
        editor.set_helper(Some(Fenced));
        if let Some(file) = file.as_deref().filter(|file| file.exists()) {
            load(&mut editor, file);
        }
        Ok(Self { editor, file })
    }

    /// An editor of single lines without history.
    pub(super) fn of_answers() -> anyhow::Result<Self> {
        Ok(Self {
            editor: open(false)?,
            file: None,
        })
    }

    /// Reads the next entry after a prompt.
    pub(super) fn read(&mut self, prompt: &str) -> anyhow::Result<TypedEntry> {
        loop {
            match self.editor.readline(prompt) {
                Ok(text) => {
                    self.keep_history();
                    return Ok(TypedEntry::Text(text));
                }
                Err(ReadlineError::Interrupted) => return Ok(TypedEntry::Interrupted),
                Err(ReadlineError::Eof) => return Ok(TypedEntry::Ended),
                // The window was resized.
                Err(ReadlineError::Signal(_)) => {}
                Err(error) => return Err(error).context("the terminal cannot be read"),
            }
        }
    }

    /// Appends new entries to the file. Without it the history lasts as long as the chat, so failures are ignored.
    fn keep_history(&mut self) {
        if let Some(file) = &self.file {
            let _ = self.editor.append_history(file);
        }
    }
}

fn open(has_history: bool) -> anyhow::Result<Editor<Fenced, DefaultHistory>> {
    // Prompts do not belong into a redirected standard output.
    let behavior = if std::io::stdout().is_terminal() {
        Behavior::Stdio
    } else {
        Behavior::PreferTerm
    };
    let config = Config::builder()
        .behavior(behavior)
        .auto_add_history(has_history)
        .max_history_size(MAX_HISTORY)
        .and_then(|config| config.history_ignore_dups(true))
        .context("the history cannot be set up")?
        .build();
    Editor::with_config(config).context("the terminal cannot be used")
}

/// An unreadable history does not stop the chat.
fn load(editor: &mut Editor<Fenced, DefaultHistory>, file: &Path) {
    let _ = editor.load_history(file);
}

/// Continues an entry that begins with a fence until the fence that ends it.
struct Fenced;

impl Validator for Fenced {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_open(context.input()) {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

impl Completer for Fenced {
    type Candidate = String;
}

impl Hinter for Fenced {
    type Hint = String;
}

impl Highlighter for Fenced {}
impl Helper for Fenced {}

fn is_open(text: &str) -> bool {
    let rest = text.trim_start().strip_prefix(FENCE);
    rest.is_some_and(|rest| !rest.trim_end().ends_with(FENCE))
}

/// The message of an entry, without its fences.
pub(super) fn message_of(entry: &str) -> &str {
    let entry = entry.trim();
    let inner = entry.strip_prefix(FENCE);
    let inner = inner.and_then(|rest| rest.strip_suffix(FENCE));
    inner.map_or(entry, str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fenced_messages_may_have_several_lines() {
        for (entry, open) in [
            ("hello", false),
            ("\"\"\"", true),
            ("\"\"\"one\ntwo", true),
            ("\"\"\"one\ntwo\n\"\"\"", false),
            ("\"\"\"one\"\"\" ", false),
            ("say \"\"\"", false),
        ] {
            assert_eq!(is_open(entry), open, "{entry}");
        }
        assert_eq!(message_of("\"\"\"\none\n two\n\"\"\""), "one\n two");
        assert_eq!(message_of(" hello "), "hello");
        assert_eq!(message_of("\"\"\"\"\"\""), "");
    }
}
