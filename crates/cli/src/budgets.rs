//! `runnel budgets`: budgets of a gateway and their use, over HTTP with an admin key.

use std::process::ExitCode;

use anstyle::Style;
use serde_json::{Value, json};

use crate::facts::{elements, moment, text};
use crate::gateway::GatewayArguments;
use crate::output::{self, OutputFormat};
use crate::table::{TableRow, print_table};

const USAGE: u8 = 2;
/// Measures that a budget can limit.
const MEASURES: [&str; 4] = ["calls", "tokens", "cost", "seconds"];
/// A cell without a value.
const NONE: &str = "-";

#[derive(clap::Args)]
pub struct BudgetsArguments {
    #[command(flatten)]
    gateway: GatewayArguments,
}

/// Prints the budgets of the gateway.
pub(super) async fn budgets(
    arguments: BudgetsArguments,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let Some(gateway) = arguments.gateway.find()? else {
        return Ok(ExitCode::from(USAGE));
    };
    let budgets = gateway.get("/v1/budgets").await?;
    if format.is_json() {
        output::document(&budgets);
        return Ok(ExitCode::SUCCESS);
    }
    let budgets = elements(&budgets, "items");
    if budgets.is_empty() {
        output::remark("no budgets; `[[budgets]]` of the configuration adds one");
        return Ok(ExitCode::SUCCESS);
    }
    print_table(
        &[
            "budget",
            "subject",
            "limit of",
            "limit",
            "used",
            "left",
            "resets at",
        ],
        budgets.iter().flat_map(rows_of).collect(),
    );
    Ok(ExitCode::SUCCESS)
}

/// Rows of a budget: one for each subject and limit. A budget without use has one subject, the one that could use it.
fn rows_of(budget: &Value) -> Vec<TableRow> {
    let scope = text(budget, "scope");
    // The API lists subjects only after their first use.
    let unused = json!({"id": budget["only"], "left": budget["most"]});
    let used = match elements(budget, "used") {
        [] => std::slice::from_ref(&unused),
        used => used,
    };
    let mut rows = Vec::new();
    for subject in used {
        let name = subject["name"].as_str().or(subject["id"].as_str());
        let name = name.map_or_else(|| format!("each {scope}"), |name| format!("{scope} {name}"));
        let limited = MEASURES.iter().filter(|of| !budget["most"][**of].is_null());
        rows.extend(limited.map(|of| row(budget, subject, &name, of)));
    }
    rows
}

fn row(budget: &Value, subject: &Value, name: &str, of: &str) -> TableRow {
    let left = &subject["left"][of];
    TableRow {
        // Runs under an exhausted budget are refused.
        style: if left.as_f64() == Some(0.0) {
            output::RED
        } else {
            Style::new()
        },
        cells: vec![
            text(budget, "name").to_owned(),
            name.to_owned(),
            of.to_owned(),
            amount(&budget["most"][of]),
            amount(&subject[of]),
            amount(left),
            moment(budget, "resets_at").unwrap_or_else(|| NONE.to_owned()),
        ],
    }
}

/// A number; 0 if the subject has used nothing.
fn amount(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        _ => "0".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(budget: &Value) -> Vec<String> {
        let rows = rows_of(budget).into_iter();
        rows.map(|row| row.cells.join("|")).collect()
    }

    #[test]
    fn budgets_have_one_row_per_subject_and_limit() {
        let mut budget = json!({
            "name": "day", "scope": "agent", "window": "day", "most": {"tokens": 100, "cost": 1.5},
            "resets_at": 1_795_824_000,
            "used": [{"id": "a-1", "name": "hello", "calls": 3, "tokens": 120, "cost": 0.5, "seconds": 1.0,
                      "left": {"tokens": 0, "cost": 1.0}}],
        });
        assert_eq!(
            cells(&budget),
            [
                "day|agent hello|tokens|100|120|0|2026-11-28T00:00:00Z",
                "day|agent hello|cost|1.5|0.5|1.0|2026-11-28T00:00:00Z",
            ]
        );
        assert_eq!(rows_of(&budget)[0].style, output::RED);
        budget["used"] = json!([]);
        budget["resets_at"] = Value::Null;
        assert_eq!(
            cells(&budget),
            [
                "day|each agent|tokens|100|0|100|-",
                "day|each agent|cost|1.5|0|1.5|-"
            ]
        );
    }
}
