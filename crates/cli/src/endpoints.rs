//! `runnel endpoints`: runner endpoints of a gateway, over HTTP with an admin key.

use std::process::ExitCode;

use anstyle::Style;
use clap::Subcommand;
use http::Method;
use serde_json::Value;

use crate::facts::{age, elements, text};
use crate::gateway::{GatewayArguments, encoded};
use crate::ids::{NamedList, find_id, tail};
use crate::output::{self, OutputFormat};
use crate::table::{ListTable, TableRow};

/// Maximum number of listed endpoints.
const MAX_LISTED: usize = 10_000;
const USAGE: u8 = 2;

/// Runner endpoints, which have unique names.
const ENDPOINTS: NamedList<'_> = NamedList {
    noun: "endpoint",
    path: "/v1/runner-endpoints",
    cursor: "cursor",
    id: "id",
    name: Some("name"),
    command: "runnel endpoints list",
    about: "name",
};

#[derive(Subcommand)]
pub enum EndpointsCommand {
    /// List the runner endpoints with their health and runners.
    List {
        #[command(flatten)]
        gateway: GatewayArguments,
    },
    /// Request the manifests of an endpoint now. Exit code 0: it is healthy.
    Refresh {
        /// The endpoint: its name, its id, or any unique part of the id.
        #[arg(value_name = "NAME|ID")]
        endpoint: String,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
}

/// Runs an `endpoints` command.
pub(super) async fn endpoints(
    command: EndpointsCommand,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let (EndpointsCommand::List { gateway } | EndpointsCommand::Refresh { gateway, .. }) = &command;
    let Some(gateway) = gateway.find()? else {
        return Ok(ExitCode::from(USAGE));
    };
    match command {
        EndpointsCommand::List { .. } => {
            let endpoints = gateway
                .list(ENDPOINTS.path, ENDPOINTS.cursor, MAX_LISTED)
                .await?;
            list(&endpoints, format);
            Ok(ExitCode::SUCCESS)
        }
        EndpointsCommand::Refresh { endpoint, .. } => {
            let id = find_id(&gateway, &ENDPOINTS, &endpoint).await?;
            let path = format!("{}/{}/refresh", ENDPOINTS.path, encoded(&id));
            let refreshed = gateway.ask(gateway.request(Method::POST, &path)?).await?;
            if format.is_json() {
                output::document(&refreshed);
            } else {
                print_refreshed(&refreshed);
            }
            Ok(if refreshed["health"] == "healthy" {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
    }
}

fn list(endpoints: &[Value], format: OutputFormat) {
    let row = |endpoint: &Value| TableRow {
        // An open circuit breaker matters even if discovery succeeds.
        style: match text(&endpoint["breaker"], "state") {
            "closed" => style_of(text(endpoint, "health")),
            _ => output::RED,
        },
        cells: vec![
            tail(text(endpoint, "id")).to_owned(),
            text(endpoint, "name").to_owned(),
            text(endpoint, "health").to_owned(),
            text(&endpoint["breaker"], "state").to_owned(),
            endpoint["breaker"]["failures"].to_string(),
            age(endpoint, "discovered_at"),
            elements(endpoint, "accepted").len().to_string(),
            text(endpoint, "base_url").to_owned(),
            text(endpoint, "health_reason").to_owned(),
        ],
    };
    let table = ListTable {
        empty: "no runner endpoints",
        head: &[
            "id", "name", "health", "breaker", "failures", "seen", "runners", "url", "reason",
        ],
    };
    table.print(endpoints, format, row);
}

fn style_of(health: &str) -> Style {
    match health {
        "healthy" => Style::new(),
        "unknown" => output::YELLOW,
        _ => output::RED,
    }
}

fn print_refreshed(endpoint: &Value) {
    let health = text(endpoint, "health");
    let reason = endpoint["health_reason"].as_str();
    let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
    let line = format!("{} is {health}{reason}", text(endpoint, "name"));
    output::styled_line(style_of(health), &line);
    for runner in elements(endpoint, "accepted") {
        output::line(&format!("  {}", text(runner, "id")));
        for warning in elements(runner, "warnings") {
            let (pointer, message) = (text(warning, "pointer"), text(warning, "message"));
            output::styled_line(output::YELLOW, &format!("    warning: {pointer} {message}"));
        }
    }
    for runner in elements(endpoint, "incompatible") {
        let line = format!(
            "  {} is incompatible: {}",
            text(runner, "id"),
            text(runner, "reason")
        );
        output::styled_line(output::RED, &line);
    }
    for fault in elements(endpoint, "rejected") {
        let (pointer, message) = (text(fault, "pointer"), text(fault, "message"));
        output::styled_line(output::RED, &format!("  rejected: {pointer} {message}"));
    }
}
