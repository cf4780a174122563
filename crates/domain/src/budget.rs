//! Budgets: limits of outgoing calls per time window.

use chrono::{DateTime, Datelike as _, Months, NaiveTime, TimeDelta, Utc};
use protocol::admin::Fault;
use protocol::budget::{BudgetDefinition, BudgetScope, OnReached, ResetInterval};
use uuid::Uuid;

mod expected;
mod question;

pub use expected::{CallBound, ExpectedCall, PastCall, RecentCalls, growth};
pub use question::{
    AskDecision, PastQuestion, QuestionEnd, RAISE, decide_question, extended_deadline, question,
    raise_of,
};

/// Maximum limit of calls and of tokens.
pub const MAX_COUNT: u64 = 1_000_000_000_000;

/// Maximum limit of cost and of seconds.
pub const MAX_MEASURE: f64 = 1e9;

/// Default of `max_wait_seconds`, and its maximum: that of any question.
const WAIT_SECONDS: u64 = 60 * 60;
pub const MAX_WAIT_SECONDS: u64 = 24 * 60 * 60;

/// Millionths and thousandths in one unit.
const MICROS: f64 = 1e6;
const MILLIS: f64 = 1e3;

/// Window over which usage is added up. Windows start in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetWindow {
    /// The lifetime of the subject. The only window for runs.
    Lifetime,
    Hour,
    Day,
    Month,
}

/// An amount of usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Calls of models, tools and knowledge bases.
    pub calls: u64,
    /// Model tokens, input and output.
    pub tokens: u64,
    /// Cost in millionths of the operator's currency.
    pub cost_micros: u64,
    /// Duration of calls, in milliseconds.
    pub wall_ms: u64,
}

/// A budget of the configuration or of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Unique name.
    pub name: String,
    pub scope: BudgetScope,
    /// Id of the only subject. `None`: each subject has a budget of its own.
    pub only: Option<String>,
    pub window: BudgetWindow,
    /// `None`: unlimited.
    pub calls: Option<u64>,
    pub tokens: Option<u64>,
    pub cost_micros: Option<u64>,
    pub wall_ms: Option<u64>,
    pub reached: BudgetReached,
}

/// Effect of a budget on a call beyond it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BudgetReached {
    #[default]
    Refuse,
    /// The call waits for a raise. All waits of a run for this budget last at most `max_wait_ms` in total.
    Pause { max_wait_ms: i64 },
}

/// A limit that a call would exceed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetExceeded {
    pub budget: String,
    /// `calls`, `tokens`, `cost` or `seconds`.
    pub what: &'static str,
    pub limit: u64,
    pub used: u64,
    /// Upper bound of the call.
    pub more: u64,
    /// End of the window, in epoch milliseconds. `None`: never.
    pub resets_at: Option<i64>,
}

/// Returns all faults of a budget. Pointers name the keys.
pub fn check_budget(spec: &BudgetDefinition) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut fault = |key: &str, message: &str| faults.push(Fault::new(format!("/{key}"), message));
    match (spec.scope, spec.window) {
        (BudgetScope::Run, Some(_)) => fault(
            "window",
            "is not for scope run: a run is counted from start to end",
        ),
        (BudgetScope::Agent | BudgetScope::Endpoint | BudgetScope::Workspace, None) => {
            fault("window", "is required: hour, day or month");
        }
        _ => {}
    }
    let counts = [("calls", spec.calls), ("tokens", spec.tokens)];
    for (key, count) in counts {
        if count.is_some_and(|count| count > MAX_COUNT) {
            fault(key, &format!("must be an integer from 0 to {MAX_COUNT}"));
        }
    }
    let measures = [("cost", spec.cost), ("seconds", spec.seconds)];
    for (key, measure) in measures {
        // Not a number is in no range.
        if measure.is_some_and(|measure| !(0.0..=MAX_MEASURE).contains(&measure)) {
            fault(key, &format!("must be a number from 0 to {MAX_MEASURE}"));
        }
    }
    let is_unlimited = counts.iter().all(|(_, count)| count.is_none())
        && measures.iter().all(|(_, measure)| measure.is_none());
    if is_unlimited {
        fault(
            "calls",
            "is not set, and neither is tokens, cost or seconds: set at least one of them",
        );
    }
    match (spec.on_reached, spec.max_wait_seconds) {
        (OnReached::Refuse, Some(_)) => {
            fault("max_wait_seconds", "needs on_reached = \"pause\"");
        }
        (OnReached::Pause, Some(wait)) if !(1..=MAX_WAIT_SECONDS).contains(&wait) => {
            let message = format!("must be an integer from 1 to {MAX_WAIT_SECONDS}");
            fault("max_wait_seconds", &message);
        }
        _ => {}
    }
    let of = match spec.scope {
        BudgetScope::Run => "run",
        BudgetScope::Agent => "agent",
        BudgetScope::Endpoint => "endpoint",
        // A workspace has a name of the operator's choice.
        BudgetScope::Workspace => return faults,
    };
    if spec.only.as_ref().is_some_and(|only| !is_id(only)) {
        let message = format!("must be the id of one {of} as the API returns it, not its name");
        fault("only", &message);
    }
    faults
}

/// An id has one canonical form; other spellings would match no run.
fn is_id(text: &str) -> bool {
    Uuid::parse_str(text).is_ok_and(|id| id.to_string() == text)
}

/// Fault of a budget's name. Names are 1 to 255 bytes on one line.
pub fn check_budget_name(name: &str) -> Result<(), &'static str> {
    if name.trim().is_empty() || name.len() > 255 {
        return Err("must have 1 to 255 bytes");
    }
    if name.contains(char::is_control) {
        return Err("must not hold control characters");
    }
    Ok(())
}

/// An amount in smaller units, rounded: a decimal fraction such as 0.1 is not exact.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range excludes negative and too large values"
)]
fn scaled(amount: f64, units: f64) -> u64 {
    (amount.clamp(0.0, MAX_MEASURE) * units).round() as u64
}

impl Budget {
    /// The budget of a valid specification, see [`check_budget`].
    pub fn of(name: String, spec: &BudgetDefinition) -> Self {
        Self {
            name,
            scope: spec.scope,
            only: spec.only.clone(),
            window: match spec.window {
                Some(ResetInterval::Hour) => BudgetWindow::Hour,
                Some(ResetInterval::Day) => BudgetWindow::Day,
                Some(ResetInterval::Month) => BudgetWindow::Month,
                None => BudgetWindow::Lifetime,
            },
            calls: spec.calls,
            tokens: spec.tokens,
            cost_micros: spec.cost.map(|cost| scaled(cost, MICROS)),
            wall_ms: spec.seconds.map(|seconds| scaled(seconds, MILLIS)),
            reached: match spec.on_reached {
                OnReached::Refuse => BudgetReached::Refuse,
                OnReached::Pause => {
                    let wait = spec.max_wait_seconds.unwrap_or(WAIT_SECONDS);
                    let max_wait_ms = i64::try_from(wait.saturating_mul(1000)).unwrap_or(i64::MAX);
                    BudgetReached::Pause { max_wait_ms }
                }
            },
        }
    }

    /// The budget with the limits that raises have set for a run; zero: not raised. A raise lowers no limit.
    #[must_use]
    pub fn raised(&self, to: Amount) -> Self {
        let raised = |limit: Option<u64>, to| limit.map(|limit| limit.max(to));
        Self {
            calls: raised(self.calls, to.calls),
            tokens: raised(self.tokens, to.tokens),
            cost_micros: raised(self.cost_micros, to.cost_micros),
            wall_ms: raised(self.wall_ms, to.wall_ms),
            ..self.clone()
        }
    }

    /// Checks whether `more` fits next to `used`.
    pub fn check(
        &self,
        used: Amount,
        more: Amount,
        resets_at: Option<i64>,
    ) -> Result<(), BudgetExceeded> {
        let bounds = [
            ("calls", self.calls, used.calls, more.calls),
            ("tokens", self.tokens, used.tokens, more.tokens),
            ("cost", self.cost_micros, used.cost_micros, more.cost_micros),
            // The duration of a call is unknown in advance: past usage decides, and 1 ms blocks a full budget.
            ("seconds", self.wall_ms, used.wall_ms, more.wall_ms.max(1)),
        ];
        for (what, limit, used, more) in bounds {
            let Some(limit) = limit else { continue };
            // A sum that overflows must exceed the limit, not wrap below it.
            if used.saturating_add(more) > limit {
                return Err(BudgetExceeded {
                    budget: self.name.clone(),
                    what,
                    limit,
                    used,
                    more,
                    resets_at,
                });
            }
        }
        Ok(())
    }
}

impl BudgetWindow {
    /// Returns the start of the window that contains `now`, and of the next window, in epoch milliseconds. A lifetime
    /// window starts at 0 and never ends.
    pub fn around(self, now: i64) -> (i64, Option<i64>) {
        let Some(now) = DateTime::<Utc>::from_timestamp_millis(now) else {
            // Years that chrono cannot represent share one window instead of failing the call.
            return (0, None);
        };
        let midnight = now.date_naive().and_time(NaiveTime::MIN).and_utc();
        let (begin, end) = match self {
            Self::Lifetime => return (0, None),
            Self::Hour => {
                let begin =
                    midnight + TimeDelta::hours(now.signed_duration_since(midnight).num_hours());
                (begin, begin + TimeDelta::hours(1))
            }
            Self::Day => (midnight, midnight + TimeDelta::days(1)),
            Self::Month => {
                let begin = midnight - TimeDelta::days(i64::from(now.day0()));
                // chrono clamps to the last day of a month; from the first day, the result is exact.
                (begin, begin + Months::new(1))
            }
        };
        (begin.timestamp_millis(), Some(end.timestamp_millis()))
    }
}

impl Amount {
    /// Returns the sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            // Counters come from providers: saturate, since a wrapped sum would reset the budget.
            calls: self.calls.saturating_add(other.calls),
            tokens: self.tokens.saturating_add(other.tokens),
            cost_micros: self.cost_micros.saturating_add(other.cost_micros),
            wall_ms: self.wall_ms.saturating_add(other.wall_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(text: &str) -> i64 {
        DateTime::parse_from_rfc3339(text)
            .unwrap()
            .timestamp_millis()
    }

    #[test]
    fn budget_windows_follow_utc() {
        let now = at("2024-02-29T13:45:10Z");
        for (window, begin, end) in [
            (
                BudgetWindow::Hour,
                "2024-02-29T13:00:00Z",
                "2024-02-29T14:00:00Z",
            ),
            (
                BudgetWindow::Day,
                "2024-02-29T00:00:00Z",
                "2024-03-01T00:00:00Z",
            ),
            (
                BudgetWindow::Month,
                "2024-02-01T00:00:00Z",
                "2024-03-01T00:00:00Z",
            ),
        ] {
            assert_eq!(window.around(now), (at(begin), Some(at(end))), "{window:?}");
        }
        assert_eq!(BudgetWindow::Lifetime.around(now), (0, None));
        let last = at("2026-12-31T23:59:59Z");
        assert_eq!(
            BudgetWindow::Month.around(last).1,
            Some(at("2027-01-01T00:00:00Z"))
        );
    }

    #[test]
    fn budget_faults_name_their_keys() {
        let faults = |changes: Value| {
            let mut spec = json!({"scope": "agent", "window": "day", "tokens": 1});
            json_patch(&mut spec, &changes);
            let spec: BudgetDefinition = serde_json::from_value(spec).unwrap();
            let faults = check_budget(&spec).into_iter();
            faults.map(|fault| fault.pointer).collect::<Vec<_>>()
        };
        let id = "01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e61";
        for valid in [
            json!({}),
            json!({"only": id}),
            json!({"on_reached": "pause", "max_wait_seconds": MAX_WAIT_SECONDS}),
            json!({"scope": "run", "window": null}),
            json!({"scope": "workspace", "only": "default", "cost": 0.0}),
            json!({"tokens": MAX_COUNT, "seconds": MAX_MEASURE}),
        ] {
            assert_eq!(faults(valid.clone()), [""; 0], "{valid}");
        }
        for (invalid, pointer) in [
            (json!({"window": null}), "/window"),
            (json!({"scope": "run"}), "/window"),
            (json!({"tokens": null}), "/calls"),
            (json!({"tokens": MAX_COUNT + 1}), "/tokens"),
            (json!({"cost": -0.1}), "/cost"),
            (json!({"seconds": 1e10}), "/seconds"),
            (json!({"max_wait_seconds": 9}), "/max_wait_seconds"),
            (
                json!({"on_reached": "pause", "max_wait_seconds": 0}),
                "/max_wait_seconds",
            ),
            (json!({"only": "hello"}), "/only"),
            (json!({"only": id.to_uppercase()}), "/only"),
        ] {
            assert_eq!(faults(invalid.clone()), [pointer], "{invalid}");
        }
    }

    fn json_patch(of: &mut Value, changes: &Value) {
        for (key, value) in changes.as_object().unwrap() {
            of[key] = value.clone();
        }
    }

    #[test]
    fn decimal_limits_are_exact_in_small_units() {
        let spec = json!({"scope": "run", "cost": 0.1, "seconds": 1.5});
        let budget = Budget::of("b".to_owned(), &serde_json::from_value(spec).unwrap());
        assert_eq!(
            (budget.cost_micros, budget.wall_ms),
            (Some(100_000), Some(1500))
        );
        assert_eq!(budget.window, BudgetWindow::Lifetime);
    }

    #[test]
    fn budget_names_fit_one_line() {
        for name in ["a", "each agent/day", &"n".repeat(255)] {
            assert_eq!(check_budget_name(name), Ok(()), "{name}");
        }
        for name in ["", " ", "a\nb", &"n".repeat(256)] {
            assert!(check_budget_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn reports_exceeded_budget_and_usage() {
        let budget = Budget {
            name: "b".to_owned(),
            scope: BudgetScope::Run,
            only: None,
            window: BudgetWindow::Lifetime,
            calls: Some(3),
            tokens: Some(100),
            cost_micros: None,
            wall_ms: Some(1000),
            reached: BudgetReached::Refuse,
        };
        let used = Amount {
            calls: 2,
            tokens: 90,
            cost_micros: 7,
            wall_ms: 999,
        };
        let more = |tokens| Amount {
            calls: 1,
            tokens,
            ..Amount::default()
        };
        assert_eq!(budget.check(used, more(10), Some(5)), Ok(()));
        let over = budget.check(used, more(11), Some(5)).unwrap_err();
        assert_eq!(
            (over.what, over.limit, over.used, over.resets_at),
            ("tokens", 100, 90, Some(5))
        );
        let over = budget.check(used.plus(more(0)), more(0), None).unwrap_err();
        assert_eq!(over.what, "calls");
        let raised = budget.raised(Amount {
            calls: 2,
            tokens: 101,
            cost_micros: 9,
            wall_ms: 0,
        });
        assert_eq!(raised.check(used, more(11), None), Ok(()));
        assert_eq!(
            (raised.calls, raised.cost_micros),
            (Some(3), None),
            "a raise lowers no limit and adds none"
        );
        let late = Amount {
            wall_ms: 1000,
            ..Amount::default()
        };
        assert_eq!(
            budget.check(late, more(0), None).unwrap_err().what,
            "seconds"
        );
    }
}
