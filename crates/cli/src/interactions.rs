//! `runnel interactions`: questions of runs, over HTTP.

use std::process::ExitCode;

use anstyle::Style;
use anyhow::bail;
use clap::Subcommand;
use serde_json::Value;

use crate::facts::{age, text};
use crate::gateway::{Gateway, GatewayArguments, encoded};
use crate::ids::{NamedList, find_id, tail};
use crate::output::{self, OutputFormat};
use crate::send;
use crate::table::{ListTable, TableRow};

const USAGE: u8 = 2;

const INTERACTIONS: NamedList<'_> = NamedList {
    noun: "interaction",
    path: "/v1/interactions",
    cursor: "after",
    id: "id",
    name: None,
    command: "runnel interactions list --all",
    about: "status",
};

#[derive(Subcommand)]
pub enum InteractionsCommand {
    /// List the questions that wait for an answer.
    List {
        /// Also list answered, expired and cancelled ones.
        #[arg(long)]
        all: bool,
        /// Maximum number of questions.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=2000))]
        limit: u16,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
    /// Answer a question, and follow the run that continues. Without --action and --value it asks at the terminal.
    Answer {
        /// The question: its id, or any unique part of it. Default: the newest open one.
        #[arg(value_name = "ID")]
        interaction: Option<String>,
        /// The action: its number, name or label.
        #[arg(long)]
        action: Option<String>,
        /// The value of a field; several values with commas. May be repeated.
        #[arg(long = "value", value_name = "FIELD=VALUE")]
        values: Vec<String>,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
}

/// Runs an `interactions` command.
pub(super) async fn interactions(
    command: InteractionsCommand,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let (InteractionsCommand::List { gateway, .. } | InteractionsCommand::Answer { gateway, .. }) =
        &command;
    let Some(gateway) = gateway.find()? else {
        return Ok(ExitCode::from(USAGE));
    };
    match command {
        InteractionsCommand::List { all, limit, .. } => {
            // Answered questions accumulate; open ones need an action.
            let path = if all {
                "/v1/interactions"
            } else {
                "/v1/interactions?status=open"
            };
            let found = gateway.list(path, "after", usize::from(limit)).await?;
            list(&found, format);
            Ok(ExitCode::SUCCESS)
        }
        InteractionsCommand::Answer {
            interaction,
            action,
            values,
            ..
        } => {
            let question = find(&gateway, interaction).await?;
            // The API refuses the answer, too, but only after the user has typed it.
            if question["status"] != "open" {
                bail!("the question is {}", text(&question, "status"));
            }
            let mut pairs = Vec::new();
            for value in &values {
                // The first `=` separates, because values may contain more.
                let Some(pair) = value.split_once('=') else {
                    output::fault(&format!("{value} is not FIELD=VALUE"));
                    return Ok(ExitCode::from(USAGE));
                };
                pairs.push(pair);
            }
            send::answer(&gateway, &question, action.as_deref(), &pairs, format).await
        }
    }
}

async fn find(gateway: &Gateway, named: Option<String>) -> anyhow::Result<Value> {
    if let Some(named) = named {
        let id = find_id(gateway, &INTERACTIONS, &named).await?;
        return gateway
            .get(&format!("{}/{}", INTERACTIONS.path, encoded(&id)))
            .await;
    }
    // The list is sorted by time, newest first.
    let open = gateway
        .list("/v1/interactions?status=open", "after", 1)
        .await?;
    match open.into_iter().next() {
        Some(question) => Ok(question),
        None => bail!("no question is open"),
    }
}

fn list(questions: &[Value], format: OutputFormat) {
    let row = |question: &Value| TableRow {
        style: if question["status"] == "open" {
            Style::new()
        } else {
            output::DIM
        },
        cells: vec![
            tail(text(question, "id")).to_owned(),
            text(question, "status").to_owned(),
            age(question, "asked_at"),
            tail(text(question, "run_id")).to_owned(),
            text(&question["request"], "title").to_owned(),
        ],
    };
    let table = ListTable {
        empty: "no questions",
        head: &["id", "status", "age", "run", "question"],
    };
    table.print(questions, format, row);
}
