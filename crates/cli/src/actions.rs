//! `runnel actions`: platform actions of runs, over HTTP.

use std::process::ExitCode;

use anstyle::Style;
use clap::Subcommand;
use serde_json::Value;

use crate::facts::{age, text};
use crate::gateway::GatewayArguments;
use crate::ids::tail;
use crate::output::{self, OutputFormat};
use crate::table::{ListTable, TableRow};

const USAGE: u8 = 2;

#[derive(Subcommand)]
pub enum ActionsCommand {
    /// List the platform actions that no program has claimed, or that wait for an approval.
    List {
        /// Also list claimed, finished, declined, expired and cancelled ones.
        #[arg(long)]
        all: bool,
        /// Maximum number of actions.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=2000))]
        limit: u16,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
}

/// Runs an `actions` command.
pub(super) async fn actions(
    command: ActionsCommand,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let ActionsCommand::List {
        all,
        limit,
        gateway,
    } = command;
    let Some(gateway) = gateway.find()? else {
        return Ok(ExitCode::from(USAGE));
    };
    let limit = usize::from(limit);
    let mut found = Vec::new();
    if all {
        found = gateway.list("/v1/actions", "after", limit).await?;
    } else {
        for status in ["open", "awaiting_approval"] {
            let path = format!("/v1/actions?status={status}");
            found.extend(gateway.list(&path, "after", limit).await?);
        }
        found.truncate(limit);
    }
    list(&found, format);
    Ok(ExitCode::SUCCESS)
}

fn list(actions: &[Value], format: OutputFormat) {
    let row = |action: &Value| TableRow {
        style: if action["status"] == "open" {
            Style::new()
        } else {
            output::DIM
        },
        cells: vec![
            tail(text(action, "id")).to_owned(),
            text(action, "status").to_owned(),
            age(action, "created_at"),
            tail(text(action, "run_id")).to_owned(),
            text(action, "action").to_owned(),
        ],
    };
    let table = ListTable {
        empty: "no actions",
        head: &["id", "status", "age", "run", "action"],
    };
    table.print(actions, format, row);
}
