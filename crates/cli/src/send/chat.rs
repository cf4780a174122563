//! A chat at the terminal: one message per line, until the end of the input.

use std::process::ExitCode;

use http::Method;

use super::conversation::CurrentConversation;
use super::line_editor::{FENCE, LineEditor, TypedEntry, message_of};
use super::sending::{FollowEnd, Sending};
use super::{LEFT, answers};
use crate::event_body::EventParts;
use crate::facts::text;
use crate::gateway::{Gateway, encoded};
use crate::output::{self, OutputFormat};

/// File next to `dev.json` with the messages of earlier chats.
const HISTORY: &str = "chat-history";
const HELP: &str = "\
/new     begin another conversation
/cancel  cancel the last run, if it has not ended
/quit    leave; Ctrl-D does so too
/help    show this list
\"\"\"      begin and end a message of several lines
Ctrl-C   cancel the current run; once more leaves";

/// A line of the chat.
#[derive(Debug, PartialEq, Eq)]
enum ChatLine<'a> {
    Nothing,
    New,
    Cancel,
    Quit,
    Help,
    Unknown(&'a str),
    Message(&'a str),
}

impl<'a> ChatLine<'a> {
    /// A text in fences is a message, even if it begins with a slash.
    fn parse(entry: &'a str) -> Self {
        let line = entry.trim();
        match line {
            "/new" => Self::New,
            "/cancel" => Self::Cancel,
            "/quit" | "/exit" => Self::Quit,
            "/help" | "/?" => Self::Help,
            _ if line.starts_with('/') => Self::Unknown(line),
            _ => match message_of(line) {
                "" => Self::Nothing,
                message => Self::Message(message),
            },
        }
    }
}

/// Sends each line as a message and prints its answer. A failed message does not end the chat.
pub(super) async fn chat(
    gateway: &Gateway,
    mut conversation: CurrentConversation,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let id = conversation.id();
    output::remark(&format!(
        "conversation {id}; /help lists the commands, Ctrl-D ends"
    ));
    let history = gateway.home().map(|home| home.join(HISTORY));
    let mut editor = LineEditor::of_messages(history)?;
    let mut last_run = None;
    let mut was_interrupted = false;
    loop {
        let entry = match editor.read("> ")? {
            TypedEntry::Text(entry) => entry,
            TypedEntry::Ended => return Ok(ExitCode::SUCCESS),
            TypedEntry::Interrupted if was_interrupted => return Ok(ExitCode::from(LEFT)),
            TypedEntry::Interrupted => {
                was_interrupted = true;
                output::remark("Ctrl-C again, or Ctrl-D, leaves");
                continue;
            }
        };
        was_interrupted = false;
        match ChatLine::parse(&entry) {
            ChatLine::Nothing => {}
            ChatLine::New => {
                conversation.renew()?;
                output::remark(&format!("conversation {}", conversation.id()));
            }
            ChatLine::Cancel => cancel(gateway, last_run.as_deref(), format).await,
            ChatLine::Quit => return Ok(ExitCode::SUCCESS),
            ChatLine::Help => output::remark(HELP),
            ChatLine::Unknown(command) => {
                let word = command.split_whitespace().next().unwrap_or(command);
                output::fault(&format!(
                    "unknown command {word}; /help lists the commands, {FENCE}{word}{FENCE} sends it"
                ));
            }
            ChatLine::Message(message) => {
                let parts = EventParts {
                    text: Some(message),
                    conversation: Some(conversation.id()),
                    ..EventParts::default()
                };
                // A new reader per message: an answer must not enter the history of messages.
                let mut input = answers(!format.is_json());
                let sending = Sending::new(gateway, format, input.as_deref_mut());
                match sending.post(parts.build()?, &mut last_run).await {
                    Ok(FollowEnd::Left) => return Ok(ExitCode::from(LEFT)),
                    Ok(FollowEnd::Ended(_)) => {}
                    // A network error must not end the chat and its history.
                    Err(error) => output::error(&error, format),
                }
            }
        }
    }
}

/// Cancels the last run of the chat.
async fn cancel(gateway: &Gateway, run: Option<&str>, format: OutputFormat) {
    let Some(run) = run else {
        return output::remark("no message was sent in this chat");
    };
    let path = format!("/v1/runs/{}/cancel", encoded(run));
    let asking = async { gateway.ask(gateway.request(Method::POST, &path)?).await };
    match asking.await {
        Ok(cancelled) if cancelled["finished_at"].is_null() => {
            output::remark(&format!("run {run} is being cancelled"));
        }
        Ok(cancelled) => {
            let status = text(&cancelled, "status");
            output::remark(&format!("run {run} has ended: {status}"));
        }
        Err(error) => output::error(&error, format),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_slash_commands_are_no_messages() {
        for (entry, line) in [
            ("", ChatLine::Nothing),
            (" /new ", ChatLine::New),
            ("/help", ChatLine::Help),
            ("/hlep me", ChatLine::Unknown("/hlep me")),
            ("\"\"\"/etc/hosts\"\"\"", ChatLine::Message("/etc/hosts")),
            ("1/2", ChatLine::Message("1/2")),
        ] {
            assert_eq!(ChatLine::parse(entry), line, "{entry}");
        }
    }
}
