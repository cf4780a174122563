//! `[[budgets]]`: limits on calls of models, tools and knowledge bases.

use domain::budget::{Budget, BudgetScope, BudgetWindow};
use serde_json::Value;
use uuid::Uuid;

use super::table::{Reported, Table, integer, name, one_of, seconds, text};

const MAX_AMOUNT: u64 = 1_000_000_000_000;

pub(super) fn read(mut table: Table<'_>) -> Result<Budget, Reported> {
    let name = table.required("name", name);
    let scope = table.required("scope", one_of(&["run", "agent", "endpoint", "workspace"]));
    let only = table.optional("only", text);
    let window = table.optional("window", one_of(&["hour", "day", "month"]));
    let calls = table.optional("calls", integer(0..=MAX_AMOUNT));
    let tokens = table.optional("tokens", integer(0..=MAX_AMOUNT));
    let cost = table.optional("cost", |value| cost(&value));
    let wall = table.optional("seconds", seconds(0.0..=1e9));
    let shape = match (&scope, &window) {
        // A fault of the scope itself is reported already.
        (Ok(scope), Ok(None)) if scope != "run" => {
            Err(table.fault("window", "is required: hour, day or month"))
        }
        (Ok(scope), Ok(Some(_))) if scope == "run" => Err(table.fault(
            "window",
            "is not for scope run: a run is counted from start to end",
        )),
        _ => Ok(()),
    };
    let bounds = (&calls, &tokens, &cost, &wall);
    let bounds = if let (Ok(None), Ok(None), Ok(None), Ok(None)) = bounds {
        Err(table.fault(
            "calls",
            "is not set, and neither is tokens, cost or seconds: set at least one of them",
        ))
    } else {
        Ok(())
    };
    let whose = match (&scope, &only) {
        (Ok(scope), Ok(Some(only))) if scope != "workspace" && !is_id(only) => Err(table.fault(
            "only",
            format!("must be the id of one {scope} as the API returns it, not its name"),
        )),
        _ => Ok(()),
    };
    table.close()?;
    shape.and(bounds).and(whose)?;
    let scope = match scope?.as_str() {
        "run" => BudgetScope::Run,
        "agent" => BudgetScope::Agent,
        "endpoint" => BudgetScope::Endpoint,
        _ => BudgetScope::Workspace,
    };
    Ok(Budget {
        name: name?,
        scope,
        only: only?,
        window: match window?.as_deref() {
            Some("hour") => BudgetWindow::Hour,
            Some("day") => BudgetWindow::Day,
            Some(_) => BudgetWindow::Month,
            None => BudgetWindow::Lifetime,
        },
        calls: calls?,
        tokens: tokens?,
        cost_micros: cost?,
        wall_ms: wall?.map(|wall| u64::try_from(wall.as_millis()).unwrap_or(u64::MAX)),
    })
}

/// An id has one canonical form; other spellings would match no run.
fn is_id(text: &str) -> bool {
    Uuid::parse_str(text).is_ok_and(|id| id.to_string() == text)
}

/// An amount of money, in millionths of the currency unit.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range excludes negative and too large values"
)]
fn cost(value: &Value) -> Result<u64, &'static str> {
    let cost = value.as_f64().filter(|cost| (0.0..=1e9).contains(cost));
    // Rounded, since a decimal fraction such as 0.1 is not exact.
    cost.map(|cost| (cost * 1e6).round() as u64)
        .ok_or("must be a number from 0 to 1000000000")
}
