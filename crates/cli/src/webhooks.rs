//! `runnel webhooks`: webhooks of a gateway and their deliveries, over HTTP with an admin key.

use std::process::ExitCode;
use std::time::Duration;

use anstyle::Style;
use clap::{Subcommand, ValueEnum};
use clock::Clock;
use http::Method;
use serde_json::{Value, json};

use crate::facts::{age, elements, text};
use crate::gateway::{Gateway, GatewayArguments, encoded};
use crate::ids::{NamedList, find_id, tail};
use crate::lifetime::parse_lifetime;
use crate::output::{self, OutputFormat};
use crate::table::{ListTable, TableRow, print_table};

/// Maximum number of listed deliveries.
const MAX_LISTED: usize = 1_000;
const USAGE: u8 = 2;

/// Webhooks, which have unique names.
const WEBHOOKS: NamedList<'_> = NamedList {
    noun: "webhook",
    path: "/v1/webhooks",
    cursor: "cursor",
    id: "id",
    name: Some("name"),
    command: "runnel webhooks list",
    about: "name",
};

#[derive(Clone, Copy, ValueEnum)]
pub enum DeliveryState {
    Pending,
    Delivered,
    Dead,
}

impl DeliveryState {
    fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
        }
    }
}

#[derive(Subcommand)]
pub enum WebhooksCommand {
    /// List the webhooks with their circuits.
    List {
        #[command(flatten)]
        gateway: GatewayArguments,
    },
    /// Send a test message and show the answer. Exit code 0: it was delivered.
    Test {
        /// The webhook: its name, its id, or any unique part of the id.
        #[arg(value_name = "NAME|ID")]
        webhook: String,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
    /// List the deliveries of a webhook, newest first.
    Deliveries {
        /// The webhook: its name, its id, or any unique part of the id.
        #[arg(value_name = "NAME|ID")]
        webhook: String,
        /// Only deliveries of this status.
        #[arg(long, value_enum)]
        status: Option<DeliveryState>,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
    /// Deliver one message again, or all since a time.
    Redeliver {
        /// The webhook: its name, its id, or any unique part of the id.
        #[arg(value_name = "NAME|ID")]
        webhook: String,
        /// The message, as `deliveries` shows it.
        #[arg(
            long,
            value_name = "ID",
            required_unless_present = "since",
            conflicts_with = "since"
        )]
        message: Option<String>,
        /// All messages of this time until now, such as 2h.
        #[arg(long, value_name = "TIME", value_parser = parse_lifetime)]
        since: Option<Duration>,
        /// With --since: only deliveries of this status.
        #[arg(long, value_enum, conflicts_with = "message")]
        status: Option<DeliveryState>,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
}

impl WebhooksCommand {
    fn gateway(&self) -> &GatewayArguments {
        let (Self::List { gateway }
        | Self::Test { gateway, .. }
        | Self::Deliveries { gateway, .. }
        | Self::Redeliver { gateway, .. }) = self;
        gateway
    }
}

/// Runs a `webhooks` command.
pub(super) async fn webhooks(
    command: WebhooksCommand,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let Some(gateway) = command.gateway().find()? else {
        return Ok(ExitCode::from(USAGE));
    };
    match command {
        WebhooksCommand::List { .. } => {
            let webhooks = gateway.get(WEBHOOKS.path).await?;
            list(&webhooks, format);
            Ok(ExitCode::SUCCESS)
        }
        WebhooksCommand::Test { webhook, .. } => {
            let path = format!("{}/test", path_of(&gateway, &webhook).await?);
            let tested = gateway.ask(gateway.request(Method::POST, &path)?).await?;
            Ok(print_test(&tested, format))
        }
        WebhooksCommand::Deliveries {
            webhook, status, ..
        } => {
            let path = path_of(&gateway, &webhook).await?;
            // The gateway filters, because delivered ones may be many.
            let filter = status.map_or(String::new(), |status| {
                format!("?status={}", status.as_str())
            });
            let path = format!("{path}/deliveries{filter}");
            let deliveries = gateway.list(&path, "cursor", MAX_LISTED).await?;
            print_deliveries(&deliveries, format);
            Ok(ExitCode::SUCCESS)
        }
        WebhooksCommand::Redeliver {
            webhook,
            message,
            since,
            status,
            ..
        } => {
            let path = path_of(&gateway, &webhook).await?;
            let (path, body) = match message {
                Some(message) => {
                    let message = encoded(&message);
                    (format!("{path}/deliveries/{message}/redeliver"), json!({}))
                }
                None => (format!("{path}/redeliver"), redelivery(since, status)),
            };
            let request = gateway.request(Method::POST, &path)?.json(&body);
            let redelivered = gateway.ask(request).await?;
            if format.is_json() {
                output::document(&redelivered);
            } else {
                let count = redelivered["count"].as_u64().unwrap_or(0);
                output::line(&format!("pending again: {count}"));
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn path_of(gateway: &Gateway, webhook: &str) -> anyhow::Result<String> {
    let id = find_id(gateway, &WEBHOOKS, webhook).await?;
    Ok(format!("{}/{}", WEBHOOKS.path, encoded(&id)))
}

/// The body of a redelivery since a time.
fn redelivery(since: Option<Duration>, status: Option<DeliveryState>) -> Value {
    let age = since.unwrap_or_default().as_secs();
    // The gateway takes a time, so that a repeated command selects no further messages.
    let since = Clock::system().now_seconds() - i64::try_from(age).unwrap_or(i64::MAX);
    let mut body = json!({"since": since.max(0)});
    if let Some(status) = status {
        body["status"] = json!(status.as_str());
    }
    body
}

fn list(webhooks: &Value, format: OutputFormat) {
    if format.is_json() {
        output::document(webhooks);
        return;
    }
    let webhooks = elements(webhooks, "items");
    if webhooks.is_empty() {
        output::remark("no webhooks");
        return;
    }
    let rows = webhooks.iter().map(row).collect();
    print_table(&["id", "name", "state", "failures", "events", "url"], rows);
}

fn row(webhook: &Value) -> TableRow {
    // A webhook that waits is enabled, too, but the wait explains late messages.
    let (state, style) = match (&webhook["enabled"], &webhook["circuit"]["retry_at"]) {
        (Value::Bool(false), _) => ("disabled", output::YELLOW),
        (_, Value::Number(_)) => ("waiting", output::RED),
        _ => ("enabled", Style::new()),
    };
    let events = elements(webhook, "events").iter();
    let events: Vec<_> = events.filter_map(Value::as_str).collect();
    TableRow {
        style,
        cells: vec![
            tail(text(webhook, "id")).to_owned(),
            text(webhook, "name").to_owned(),
            state.to_owned(),
            webhook["circuit"]["failures"].to_string(),
            events.join(" "),
            webhook["url"].as_str().unwrap_or("feed only").to_owned(),
        ],
    }
}

fn print_test(tested: &Value, format: OutputFormat) -> ExitCode {
    let is_delivered = tested["delivered"] == true;
    if format.is_json() {
        output::document(tested);
    } else if is_delivered {
        let status = &tested["status"];
        output::line(&format!(
            "delivered: {status} in {} ms",
            tested["duration_ms"]
        ));
    } else {
        let error = text(tested, "error");
        output::styled_line(output::RED, &format!("not delivered: {error}"));
    }
    // Scripts decide by the code.
    if is_delivered {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn print_deliveries(deliveries: &[Value], format: OutputFormat) {
    let row = |delivery: &Value| TableRow {
        style: match text(delivery, "status") {
            "dead" => output::RED,
            "pending" => output::YELLOW,
            _ => Style::new(),
        },
        cells: vec![
            text(delivery, "message_id").to_owned(),
            text(delivery, "type").to_owned(),
            tail(text(delivery, "run_id")).to_owned(),
            text(delivery, "status").to_owned(),
            delivery["tries"].to_string(),
            age(delivery, "created_at"),
            text(delivery, "last_error").to_owned(),
        ],
    };
    let table = ListTable {
        empty: "no deliveries",
        head: &["message", "type", "run", "status", "tries", "age", "error"],
    };
    table.print(deliveries, format, row);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_show_circuit_and_missing_address() {
        let check = |webhook: Value, state: &str, url: &str| {
            let cells = row(&webhook).cells;
            assert_eq!([&*cells[2], &*cells[5]], [state, url]);
        };
        let open = json!({"enabled": true, "circuit": {"failures": 5, "retry_at": 1}, "url": "u"});
        check(open, "waiting", "u");
        check(json!({"enabled": false}), "disabled", "feed only");
        check(json!({"enabled": true}), "enabled", "feed only");
    }
}
