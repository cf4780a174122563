//! `runnel conversations`: conversations of a gateway, over HTTP.

use std::process::ExitCode;

use anstyle::Style;
use anyhow::bail;
use clap::Subcommand;
use serde_json::{Value, json};

use crate::facts::{age, moment, text};
use crate::gateway::{GatewayArguments, encoded};
use crate::output::{self, OutputFormat, OutputPart};
use crate::table::{ListTable, TableRow};

const USAGE: u8 = 2;

#[derive(Subcommand)]
pub enum ConversationsCommand {
    /// List the conversations, those with the newest events first.
    List {
        /// Maximum number of conversations.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=2000))]
        limit: u16,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
    /// Show the last messages of a conversation, oldest first.
    Show {
        /// The conversation.
        #[arg(value_name = "ID")]
        conversation: String,
        /// The bot of the conversation, if the id is ambiguous without it.
        #[arg(long, value_name = "ID")]
        bot: Option<String>,
        /// The thread of the conversation, if the id is ambiguous without it.
        #[arg(long, value_name = "ID")]
        thread: Option<String>,
        /// Maximum number of messages.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=2000))]
        limit: u16,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
}

/// Runs a `conversations` command.
pub(super) async fn conversations(
    command: ConversationsCommand,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let (ConversationsCommand::List { gateway, .. } | ConversationsCommand::Show { gateway, .. }) =
        &command;
    let Some(gateway) = gateway.find()? else {
        return Ok(ExitCode::from(USAGE));
    };
    match command {
        ConversationsCommand::List { limit, .. } => {
            let path = "/v1/conversations";
            let found = gateway.list(path, "cursor", usize::from(limit)).await?;
            list(&found, format);
        }
        ConversationsCommand::Show {
            conversation,
            bot,
            thread,
            limit,
            ..
        } => {
            let id = encoded(&conversation);
            // Backward, so that the limit keeps the newest messages.
            let mut path = format!("/v1/conversations/{id}/history?direction=backward");
            // Several bots and threads may use the same conversation id.
            for (name, value) in [("bot_id", bot), ("thread_id", thread)] {
                path += &value.map_or(String::new(), |value| {
                    format!("&{name}={}", encoded(&value))
                });
            }
            let mut messages = gateway
                .list(&path, "before_cursor", usize::from(limit))
                .await?;
            if messages.is_empty() {
                bail!(
                    "there is no message in the conversation {conversation}; \
                     `runnel conversations list` shows the conversations"
                );
            }
            // The API lists newest items first, pages of one request may be in either order.
            messages.sort_by_key(|message| message["seq"].as_i64());
            show(&messages, format);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(conversations: &[Value], format: OutputFormat) {
    let row = |conversation: &Value| TableRow {
        style: if conversation["is_busy"] == true {
            output::YELLOW
        } else {
            Style::new()
        },
        cells: vec![
            name_of(conversation),
            conversation["message_count"].to_string(),
            age(conversation, "last_event_at"),
            text(conversation, "input_preview").to_owned(),
        ],
    };
    let table = ListTable {
        empty: "no conversations",
        head: &["conversation", "messages", "age", "input"],
    };
    table.print(conversations, format, row);
}

/// Id of a conversation, with its bot and thread.
fn name_of(conversation: &Value) -> String {
    let part = |noun: &str, key: &str| {
        let part = conversation[key].as_str();
        part.map_or(String::new(), |part| format!(" ({noun} {part})"))
    };
    let id = text(conversation, "conversation_id");
    format!(
        "{id}{}{}",
        part("bot", "bot_id"),
        part("thread", "thread_id")
    )
}

fn show(messages: &[Value], format: OutputFormat) {
    if format.is_json() {
        output::document(&json!({ "items": messages }));
        return;
    }
    for message in messages {
        let role = text(message, "role");
        let at = moment(message, "created_at").unwrap_or_default();
        let run = message["run_id"].as_str();
        let run = run.map_or(String::new(), |run| format!("  run {run}"));
        let head = format!("{role}  {at}{run}");
        output::line_of(&[OutputPart::Styled(output::DIM, &head)]);
        output::line(text(message, "content"));
        output::line("");
    }
}
