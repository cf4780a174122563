//! `runnel limits`: the limiters of the replica that answers, over HTTP.

use std::process::ExitCode;

use anstyle::Style;
use serde_json::Value;

use crate::facts::{elements, text};
use crate::gateway::GatewayArguments;
use crate::output::{self, OutputFormat};
use crate::table::{TableRow, print_table};

const USAGE: u8 = 2;

#[derive(clap::Args)]
pub struct LimitsArguments {
    #[command(flatten)]
    gateway: GatewayArguments,
}

/// Prints the limiters.
pub(super) async fn limits(
    arguments: LimitsArguments,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let Some(gateway) = arguments.gateway.find()? else {
        return Ok(ExitCode::from(USAGE));
    };
    let limiters = gateway.get("/v1/limits").await?;
    // Scripts read the document of the API, with the members that the table leaves out.
    if format.is_json() {
        output::document(&limiters);
        return Ok(ExitCode::SUCCESS);
    }
    let limiters = elements(&limiters, "items");
    if limiters.is_empty() {
        output::remark(
            "no limits of agents, models and providers, and no key with limits has started a run",
        );
        return Ok(ExitCode::SUCCESS);
    }
    print_table(
        &[
            "of",
            "name",
            "limit",
            "max",
            "in flight",
            "available",
            "queued",
            "refused",
        ],
        limiters.iter().map(row).collect(),
    );
    Ok(ExitCode::SUCCESS)
}

fn row(limiter: &Value) -> TableRow {
    let number = |member: &str| {
        // A rate has no requests in flight, and only tokens have a level, which may be negative.
        let number = limiter[member].as_i64();
        number.map_or_else(|| "-".to_owned(), |number| number.to_string())
    };
    // Yellow rows need a look: their limit delays requests, or has refused some.
    let is_quiet = limiter["queued"] == 0 && limiter["refused"] == 0;
    TableRow {
        style: if is_quiet {
            Style::new()
        } else {
            output::YELLOW
        },
        cells: vec![
            text(limiter, "kind").replace('_', " "),
            text(limiter, "name").to_owned(),
            text(limiter, "limit").replace('_', " "),
            number("max"),
            number("in_flight"),
            number("available"),
            number("queued"),
            number("refused"),
        ],
    }
}
