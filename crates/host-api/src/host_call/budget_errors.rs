//! Errors of calls that a budget refuses or ends.

use chrono::{DateTime, SecondsFormat, Utc};
use domain::budget::BudgetExceeded;
use serde_json::json;

use super::spend::Spend;
use web::error::ApiError;
use web::error::limits::{over_budget, without_price};
use web::view::micros;

pub(super) fn unpriced(spend: &Spend, budget: &str) -> ApiError {
    let Spend { kind, resource, .. } = spend;
    let model = if *kind == "model" {
        format!("the model {resource}")
    } else {
        format!("the embedding model of {resource}")
    };
    without_price(&model, budget)
}

/// A budget had nothing left while the answer was under way.
pub(super) fn cut_off(exceeded: &BudgetExceeded, now: i64) -> ApiError {
    let mut error = refusal(exceeded, now).with("reason", json!("budget_exceeded"));
    error.message = format!("the answer was stopped: {}", error.message);
    error
}

pub(super) fn refusal(exceeded: &BudgetExceeded, now: i64) -> ApiError {
    let BudgetExceeded {
        budget,
        what,
        limit,
        used,
        resets_at,
        ..
    } = exceeded;
    let resets = resets_at.and_then(DateTime::<Utc>::from_timestamp_millis);
    let when = match resets {
        Some(at) => format!(
            "it resets at {}",
            at.to_rfc3339_opts(SecondsFormat::Secs, true)
        ),
        None => "it does not reset".to_owned(),
    };
    let message = format!("the budget {budget} has no {what} left for this call; {when}");
    let scale = |number: u64| match *what {
        "cost" => json!(micros(number)),
        "seconds" => json!(number.div_ceil(1000)),
        _ => json!(number),
    };
    // Rounded up, so that a retry comes after the reset.
    let wait = resets_at.map(|at| (at - now).div_euclid(1000) + 1);
    over_budget(message, wait.and_then(|wait| u32::try_from(wait).ok()))
        .with("budget", json!(budget))
        .with("limit", json!(what))
        .with("most", scale(*limit))
        .with("used", scale(*used))
        .with("resets_at", json!(resets_at.map(|at| at.div_euclid(1000))))
}
