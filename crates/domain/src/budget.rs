//! Budgets: limits of outgoing calls per time window.

use chrono::{DateTime, Datelike as _, Months, NaiveTime, TimeDelta, Utc};

/// Subject whose usage is added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetScope {
    Run,
    Agent,
    Endpoint,
    Workspace,
}

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

/// A configured budget.
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
}

/// A limit that a call would exceed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetExceeded {
    pub budget: String,
    /// `calls`, `tokens`, `cost` or `seconds`.
    pub what: &'static str,
    pub limit: u64,
    pub used: u64,
    /// End of the window, in epoch milliseconds. `None`: never.
    pub resets_at: Option<i64>,
}

impl Budget {
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
