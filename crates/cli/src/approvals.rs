//! `runnel approvals`: approvals of tool calls, over HTTP with a key of role admin, operator or viewer.

use std::process::ExitCode;

use anstyle::Style;
use clap::Subcommand;
use http::Method;
use serde_json::{Value, json};

use crate::facts::{age, elements, moment, principal, text};
use crate::gateway::{GatewayArguments, encoded};
use crate::ids::{NamedList, find_id, tail};
use crate::output::{self, OutputFormat};
use crate::table::{TableRow, print_table};

const USAGE: u8 = 2;
/// Maximum approvals of a list.
const MAX_LISTED: usize = 1_000;

const APPROVALS: NamedList<'_> = NamedList {
    noun: "approval",
    path: "/v1/approvals",
    cursor: "cursor",
    id: "id",
    name: None,
    command: "runnel approvals list",
    about: "tool",
};

#[derive(Subcommand)]
pub enum ApprovalsCommand {
    /// List the approvals of tool calls, newest first.
    List {
        #[command(flatten)]
        gateway: GatewayArguments,
    },
    /// Revoke an approval. The next call that it covered asks again.
    Revoke {
        /// The approval: its id, or any unique part of it.
        #[arg(value_name = "ID")]
        approval: String,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
}

impl ApprovalsCommand {
    fn gateway(&self) -> &GatewayArguments {
        let (Self::List { gateway } | Self::Revoke { gateway, .. }) = self;
        gateway
    }
}

/// Runs an `approvals` command.
pub(super) async fn approvals(
    command: ApprovalsCommand,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let Some(gateway) = command.gateway().find()? else {
        return Ok(ExitCode::from(USAGE));
    };
    match command {
        ApprovalsCommand::List { .. } => {
            let items = gateway.list(APPROVALS.path, APPROVALS.cursor, MAX_LISTED);
            list(&json!({"items": items.await?}), format);
        }
        ApprovalsCommand::Revoke { approval, .. } => {
            let id = find_id(&gateway, &APPROVALS, &approval).await?;
            let path = format!("{}/{}/revoke", APPROVALS.path, encoded(&id));
            let request = gateway.request(Method::POST, &path)?;
            let revoked = gateway.ask(request).await?;
            if format.is_json() {
                output::document(&revoked);
            } else {
                output::line(&format!(
                    "revoked: the next call of {} asks",
                    text(&revoked, "tool")
                ));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(approvals: &Value, format: OutputFormat) {
    if format.is_json() {
        output::document(approvals);
        return;
    }
    let approvals = elements(approvals, "items");
    if approvals.is_empty() {
        output::remark("no approvals");
        return;
    }
    let row = |approval: &Value| {
        let is_active = approval["status"] == "active";
        let used = match approval["count"].as_u64() {
            Some(count) => format!("{} of {count}", approval["used"]),
            None => approval["used"].to_string(),
        };
        TableRow {
            style: if is_active {
                Style::new()
            } else {
                output::YELLOW
            },
            cells: vec![
                tail(text(approval, "id")).to_owned(),
                text(approval, "status").to_owned(),
                text(approval, "scope").to_owned(),
                text(approval, "tool").to_owned(),
                used,
                moment(approval, "expires_at").unwrap_or_default(),
                age(approval, "created_at"),
                principal(approval, "created_by").unwrap_or_default(),
            ],
        }
    };
    let rows = approvals.iter().map(row).collect();
    let columns = [
        "id", "status", "scope", "tool", "used", "expires", "age", "by",
    ];
    print_table(&columns, rows);
}
