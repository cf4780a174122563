//! `runnel send`: posts messages and follows their runs.

mod attachments;
mod busy;
mod chat;
mod conversation;
mod follow_stop;
mod graph_list;
mod line_editor;
mod message_run; // one run, to its end
mod questions;
mod screen; // output of a run
mod sending;
mod tool_line;

use std::io::{IsTerminal as _, Read as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use serde_json::{Map, Value};

use crate::event_body::EventParts;
use crate::gateway::{Gateway, GatewayArguments};
use crate::output::{self, OutputFormat};
use conversation::CurrentConversation;
use line_editor::{LineEditor, TypedEntry};
use questions::QuestionAnswer;
use sending::{FollowEnd, Sending};

#[derive(clap::Args)]
pub struct SendArguments {
    /// The text of the message; several words need no quotes. Default: standard input, or at a terminal a chat.
    #[arg(value_name = "TEXT")]
    words: Vec<String>,
    #[command(flatten)]
    gateway: GatewayArguments,
    /// The conversation of the message. Default: that of --event, else the last one of --new, else `dev`.
    #[arg(long, value_name = "ID")]
    conversation: Option<String>,
    /// Start a new conversation, which later messages continue.
    #[arg(long, conflicts_with = "conversation")]
    new: bool,
    /// A file with an event for `POST /v1/events`; - is standard input. Other arguments override its members.
    #[arg(long, value_name = "FILE")]
    event: Option<PathBuf>,
    /// The event type. Default: that of --event, else `message.received`.
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// Attach a file to the message. May be repeated.
    #[arg(long, value_name = "FILE")]
    attach: Vec<PathBuf>,
    /// Fail at once if the gateway is busy. Default: wait for `Retry-After`, up to a minute.
    #[arg(long)]
    no_wait: bool,
}

/// Maximum size of a message, which is that of an event.
const MAX_BYTES: u64 = 1024 * 1024;
const USAGE: u8 = 2;
/// Exit code of commands that Ctrl-C ends.
const LEFT: u8 = 130;

/// Posts messages and prints the answers as they arrive.
pub(super) async fn send(
    arguments: SendArguments,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let words = arguments.words.join(" ");
    let has_parts =
        arguments.event.is_some() || arguments.event_type.is_some() || !arguments.attach.is_empty();
    // An empty variable of a script would post an empty message.
    if !arguments.words.is_empty() && words.trim().is_empty() {
        output::fault(
            "the message is empty: give a text, or no argument to write it at the terminal",
        );
        return Ok(ExitCode::from(USAGE));
    }
    let Some(gateway) = arguments.gateway.find()? else {
        return Ok(ExitCode::from(USAGE));
    };
    let is_named = arguments.conversation.is_some() || arguments.new;
    let mut conversation = match arguments.conversation {
        Some(id) => CurrentConversation::named(id),
        None => CurrentConversation::of_home(gateway.home()),
    };
    if arguments.new {
        conversation.renew()?;
    }
    let text = match words {
        words if !words.is_empty() => Some(words),
        _ if has_parts => None,
        _ if std::io::stdin().is_terminal() => {
            return Box::pin(chat::chat(&gateway, conversation, format)).await;
        }
        _ => Some(read_input()?),
    };
    let parts = EventParts {
        file: arguments.event.as_deref(),
        event_type: arguments.event_type.as_deref(),
        text: text.as_deref(),
        // An event of a file has its own conversation, or none.
        conversation: (arguments.event.is_none() || is_named).then(|| conversation.id()),
        ..EventParts::default()
    };
    let mut event = parts.build()?;
    attachments::attach(&gateway, &arguments.attach, &mut event).await?;
    let on_busy = if arguments.no_wait {
        OnBusy::Fail
    } else {
        OnBusy::Wait
    };
    post(&gateway, event, format, on_busy).await
}

/// Handling of a busy gateway.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OnBusy {
    Wait,
    Fail,
}

/// Posts an event and follows its run. Answers its questions at a terminal.
pub(super) async fn post(
    gateway: &Gateway,
    event: Map<String, Value>,
    format: OutputFormat,
    on_busy: OnBusy,
) -> anyhow::Result<ExitCode> {
    let mut input = answers(std::io::stdin().is_terminal() && !format.is_json());
    let mut sending = Sending::new(gateway, format, input.as_deref_mut());
    if on_busy == OnBusy::Fail {
        sending = sending.without_wait();
    }
    Ok(code_of(sending.post(event, &mut None).await?))
}

/// Follows a run from its first event to its end.
pub(super) async fn watch(
    gateway: &Gateway,
    run: &str,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let mut input = answers(std::io::stdin().is_terminal() && !format.is_json());
    let sending = Sending::new(gateway, format, input.as_deref_mut());
    Ok(code_of(sending.watch(run).await?))
}

/// Answers a question, and follows the run that continues. Without an action and values it asks at the terminal.
pub(super) async fn answer(
    gateway: &Gateway,
    question: &Value,
    action: Option<&str>,
    values: &[(&str, &str)],
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let request = &question["request"];
    let answer = if action.is_some() || !values.is_empty() {
        Some(QuestionAnswer::new(request, action, values)?)
    } else if let Some(input) = &mut answers(std::io::stdin().is_terminal()) {
        questions::ask(request, input)?
    } else {
        bail!("give --action or --value; without them, the command needs a terminal");
    };
    let Some(answer) = answer else {
        bail!("the question is still open");
    };
    let next = questions::submit(gateway, question, &answer).await?;
    let Some(next) = next else {
        let run = question["run_id"].as_str().unwrap_or_default();
        output::remark(&format!(
            "answered; `runnel runs watch {run}` follows the run"
        ));
        return Ok(ExitCode::SUCCESS);
    };
    watch(gateway, &next, format).await
}

fn code_of(end: FollowEnd) -> ExitCode {
    match end {
        FollowEnd::Ended(code) => code,
        FollowEnd::Left => ExitCode::from(LEFT),
    }
}

/// Reads a line after a prompt; `None` at the end of the input.
type LineInput = dyn FnMut(&str) -> anyhow::Result<Option<String>>;

/// Answers of questions, typed at the terminal. Ctrl-C leaves a question open.
fn answers(asks: bool) -> Option<Box<LineInput>> {
    let mut editor: Option<LineEditor> = None;
    let read = move |prompt: &str| -> anyhow::Result<Option<String>> {
        let editor = match &mut editor {
            Some(editor) => editor,
            none => none.insert(LineEditor::of_answers()?),
        };
        Ok(match editor.read(prompt)? {
            TypedEntry::Text(text) => Some(text),
            TypedEntry::Interrupted | TypedEntry::Ended => None,
        })
    };
    asks.then(|| -> Box<LineInput> { Box::new(read) })
}

/// Reads the complete input as one message.
fn read_input() -> anyhow::Result<String> {
    let mut text = String::new();
    let read = std::io::stdin()
        .lock()
        // One byte more than allowed, to notice the excess.
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
