//! `[[budgets]]`: limits on calls of models, tools and knowledge bases.

use std::ops::RangeInclusive;

use domain::budget::{Budget, MAX_COUNT, MAX_MEASURE, MAX_WAIT_SECONDS, check_budget};
use protocol::budget::{BudgetDefinition, BudgetScope, OnReached, ResetInterval};
use serde_json::Value;

use super::table::{Reported, Table, integer, name, one_of, text};

pub(super) fn read(mut table: Table<'_>) -> Result<Budget, Reported> {
    let name = table.required("name", name);
    let scope = table.required("scope", one_of(&["run", "agent", "endpoint", "workspace"]));
    let only = table.optional("only", text);
    let window = table.optional("window", one_of(&["hour", "day", "month"]));
    let calls = table.optional("calls", integer(0..=MAX_COUNT));
    let tokens = table.optional("tokens", integer(0..=MAX_COUNT));
    let cost = table.optional("cost", number(0.0..=MAX_MEASURE));
    let seconds = table.optional("seconds", number(0.0..=MAX_MEASURE));
    let on_reached = table.optional("on_reached", one_of(&["refuse", "pause"]));
    let max_wait = table.optional("max_wait_seconds", integer(1..=MAX_WAIT_SECONDS));
    let scope = scope.map(|scope| match scope.as_str() {
        "run" => BudgetScope::Run,
        "agent" => BudgetScope::Agent,
        "endpoint" => BudgetScope::Endpoint,
        _ => BudgetScope::Workspace,
    });
    let window = window.map(|window| match window.as_deref() {
        Some("hour") => Some(ResetInterval::Hour),
        Some("day") => Some(ResetInterval::Day),
        Some(_) => Some(ResetInterval::Month),
        None => None,
    });
    let on_reached = on_reached.map(|on_reached| match on_reached.as_deref() {
        Some("pause") => OnReached::Pause,
        _ => OnReached::Refuse,
    });
    let mut shape = Ok(());
    if let Ok(scope) = scope {
        // A value with a fault of its own is reported already, so a valid one replaces it here.
        let valid_window = (scope != BudgetScope::Run).then_some(ResetInterval::Day);
        let considered = BudgetDefinition {
            scope,
            only: only.clone().unwrap_or_default(),
            window: window.unwrap_or(valid_window),
            calls: calls.unwrap_or(Some(0)),
            tokens: tokens.unwrap_or(Some(0)),
            cost: cost.unwrap_or(Some(0.0)),
            seconds: seconds.unwrap_or(Some(0.0)),
            on_reached: on_reached.unwrap_or(OnReached::Pause),
            max_wait_seconds: max_wait.unwrap_or_default(),
        };
        for fault in check_budget(&considered) {
            let key = fault.pointer.trim_start_matches('/');
            shape = Err(table.fault(key, fault.message));
        }
    }
    table.close()?;
    shape?;
    let spec = BudgetDefinition {
        scope: scope?,
        only: only?,
        window: window?,
        calls: calls?,
        tokens: tokens?,
        cost: cost?,
        seconds: seconds?,
        on_reached: on_reached?,
        max_wait_seconds: max_wait?,
    };
    Ok(Budget::of(name?, &spec))
}

fn number(range: RangeInclusive<f64>) -> impl Fn(Value) -> Result<f64, String> {
    move |value| {
        let number = value.as_f64().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("must be a number from {} to {}", range.start(), range.end()))
    }
}
