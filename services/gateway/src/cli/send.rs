//! `runnel send`: posts messages and follows their runs.

mod conversation;
mod graph_list;
mod message_run; // one message, to the end of its run
mod questions;
mod screen; // output of a run
mod tool_line;

use std::io::{BufRead as _, IsTerminal as _, Read as _};
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use crate::cli::gateway::{Gateway, GatewayArguments};
use crate::cli::output;
use conversation::CurrentConversation;
use message_run::LineInput;

#[derive(clap::Args)]
pub(super) struct SendArguments {
    /// The text of the message. Default: standard input, or at a terminal one message per line.
    text: Option<String>,
    #[command(flatten)]
    gateway: GatewayArguments,
    /// The conversation of the message. Default: the last conversation of `--new`, else `dev`.
    #[arg(long, value_name = "ID")]
    conversation: Option<String>,
    /// Start a new conversation, which later messages continue.
    #[arg(long, conflicts_with = "conversation")]
    new: bool,
}

/// Maximum size of a message, which is that of an event.
const MAX_BYTES: u64 = 1024 * 1024;
const USAGE: u8 = 2;

/// Posts messages and prints the answers as they arrive.
pub(super) async fn send(arguments: SendArguments, json: bool) -> anyhow::Result<ExitCode> {
    let Some(gateway) = arguments.gateway.find()? else {
        return Ok(ExitCode::from(USAGE));
    };
    let mut conversation = match arguments.conversation {
        Some(id) => CurrentConversation::named(id),
        None => CurrentConversation::of_home(gateway.home()),
    };
    if arguments.new {
        conversation.renew()?;
    }
    let text = match arguments.text {
        Some(text) => text,
        None if std::io::stdin().is_terminal() => return chat(&gateway, conversation, json).await,
        None => whole_input()?,
    };
    let asks = std::io::stdin().is_terminal() && !json;
    let mut input = prompted;
    let input: Option<LineInput<'_>> = if asks { Some(&mut input) } else { None };
    message_run::send_message(&gateway, conversation.id(), &text, (json, input)).await
}

/// One message per line, until the end of the input. A failed message does not end the loop.
async fn chat(
    gateway: &Gateway,
    mut conversation: CurrentConversation,
    json: bool,
) -> anyhow::Result<ExitCode> {
    output::remark(&format!(
        "conversation {}; /new begins another one, Ctrl-D ends",
        conversation.id()
    ));
    loop {
        output::remark_piece("> ");
        let Some(line) = line()? else {
            output::remark("");
            return Ok(ExitCode::SUCCESS);
        };
        match line.trim() {
            "" => {}
            "/new" => {
                conversation.renew()?;
                output::remark(&format!("conversation {}", conversation.id()));
            }
            text => {
                let mut input = prompted;
                let input: Option<LineInput<'_>> = if json { None } else { Some(&mut input) };
                let said =
                    message_run::send_message(gateway, conversation.id(), text, (json, input))
                        .await;
                if let Err(error) = said {
                    output::error(&error, json);
                }
            }
        }
    }
}

/// The next line after a prompt; `None` at the end of the input.
fn prompted(prompt: &str) -> anyhow::Result<Option<String>> {
    output::remark_piece(prompt);
    let line = line()?;
    if line.is_none() {
        output::remark("");
    }
    Ok(line)
}

/// The next line; `None` at the end of the input.
fn line() -> anyhow::Result<Option<String>> {
    let mut line = String::new();
    let read = std::io::stdin().lock().take(MAX_BYTES).read_line(&mut line);
    let read = read.context("standard input cannot be read")?;
    Ok((read > 0).then_some(line))
}

/// Reads the whole input as one message.
fn whole_input() -> anyhow::Result<String> {
    let mut text = String::new();
    let read = std::io::stdin()
        .lock()
        .take(MAX_BYTES + 1)
        .read_to_string(&mut text);
    read.context("standard input cannot be read")?;
    if text.len() as u64 > MAX_BYTES {
        bail!("standard input holds more than 1 MiB; that is no message");
    }
    let text = text.trim_end_matches(['\r', '\n']);
    if text.trim().is_empty() {
        bail!("there is nothing to send: give a text, or write one to standard input");
    }
    Ok(text.to_owned())
}
