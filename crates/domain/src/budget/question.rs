//! The question whether a budget is raised for a run.

use protocol::admin::Fault;
use protocol::budget::BudgetScope;
use protocol::interaction::{
    InteractionAction, InteractionActionStyle, InteractionField, InteractionFieldType,
    InteractionKind, InteractionRequest, InteractionSubmission,
};
use serde_json::{Value, json};

use super::{BudgetExceeded, MAX_COUNT, MAX_MEASURE, MICROS, MILLIS, scaled};

/// Action that raises the limit by the field [`AMOUNT`].
pub const RAISE: &str = "raise";
const REFUSE: &str = "refuse";
const AMOUNT: &str = "amount";

/// Questions of one run about one budget in one window. Each has an answer before the next, so an operator sees them.
const MAX_QUESTIONS: usize = 100;
/// Shortest wait that is worth a question, in milliseconds.
const MIN_WAIT_MS: i64 = 1000;
/// Time by which an open question extends the deadline in advance, in milliseconds: the deadline is read again later.
const LOOK_AHEAD_MS: i64 = 5000;

/// An earlier question of the run about the same budget. Times are epoch milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastQuestion {
    /// It concerns the same subject and window.
    pub is_same: bool,
    pub asked_at: i64,
    pub expires_at: i64,
    pub end: Option<QuestionEnd>,
}

/// End of a question. Times are epoch milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionEnd {
    Raised {
        at: i64,
    },
    Refused,
    /// Closed without an answer: at its expiry, or earlier because its calls fit into the budget again.
    Closed {
        at: i64,
    },
}

/// Decision about a call beyond a budget that pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskDecision {
    /// Wait for the answer to the open question.
    Join,
    /// Ask a question that expires at this time.
    Ask { expires_at: i64 },
    /// The open question has expired: close it and refuse the call.
    Expire,
    /// A refusal or an expiry holds for the run until the window resets or the limit is raised.
    Refuse,
}

/// Decides about a call. `past`: questions of its run, newest first. `now`: epoch milliseconds.
pub fn decide_question(past: &[PastQuestion], max_wait_ms: i64, now: i64) -> AskDecision {
    match past.iter().find(|question| question.is_same) {
        Some(last) if last.end.is_none() && last.expires_at > now => return AskDecision::Join,
        Some(last) if last.end.is_none() => return AskDecision::Expire,
        Some(last) if last.is_final() => return AskDecision::Refuse,
        _ => {}
    }
    let left = max_wait_ms - past.iter().map(|question| question.waited()).sum::<i64>();
    if left < MIN_WAIT_MS || past.len() >= MAX_QUESTIONS {
        return AskDecision::Refuse;
    }
    AskDecision::Ask {
        expires_at: now.saturating_add(left),
    }
}

impl PastQuestion {
    fn is_final(self) -> bool {
        match self.end {
            Some(QuestionEnd::Refused) => true,
            Some(QuestionEnd::Closed { at }) => at >= self.expires_at,
            Some(QuestionEnd::Raised { .. }) | None => false,
        }
    }

    /// Duration of the wait for an answer, in milliseconds.
    fn waited(self) -> i64 {
        let Some(QuestionEnd::Raised { at } | QuestionEnd::Closed { at }) = self.end else {
            return 0;
        };
        wait_until(self.asked_at, self.expires_at, at)
    }
}

fn wait_until(asked_at: i64, expires_at: i64, at: i64) -> i64 {
    (at.min(expires_at) - asked_at).max(0)
}

/// Deadline of a run with open questions about budgets, each with its begin and expiry. All times are epoch
/// milliseconds. `deadline_at` includes the waits of closed questions.
pub fn extended_deadline(deadline_at: i64, open: &[(i64, i64)], now: i64) -> i64 {
    let soon = now.saturating_add(LOOK_AHEAD_MS);
    let waits = open
        .iter()
        .map(|(asked_at, expires_at)| wait_until(*asked_at, *expires_at, soon));
    deadline_at.saturating_add(waits.sum())
}

/// The question of a refused call. `id`: that of the interaction.
pub fn question(id: String, exceeded: &BudgetExceeded, scope: BudgetScope) -> InteractionRequest {
    let BudgetExceeded {
        budget,
        what,
        limit,
        used,
        more,
        ..
    } = exceeded;
    let shown = |amount: u64| shown(what, amount);
    let short = used.saturating_add(*more).saturating_sub(*limit).max(1);
    let description = format!(
        "A call of this run needs {} {what}. The budget {budget} of the {} has {} of {} left, so the call waits. A raise \
         holds for this run only, until the budget resets.",
        shown(*more),
        match scope {
            BudgetScope::Run => "run",
            BudgetScope::Agent => "agent",
            BudgetScope::Endpoint => "endpoint",
            BudgetScope::Workspace => "workspace",
        },
        shown(limit.saturating_sub(*used)),
        shown(*limit),
    );
    let title = format!("Raise the budget {budget} for this run?");
    let action = |id: &str, label: &str, style| InteractionAction {
        id: id.to_owned(),
        label: label.to_owned(),
        style,
    };
    InteractionRequest {
        interaction_id: id,
        kind: InteractionKind::Budget,
        fallback_text: format!("{title} {description}"),
        title,
        description: Some(description),
        fields: vec![InteractionField {
            id: AMOUNT.to_owned(),
            label: format!("Raise {what} by"),
            kind: InteractionFieldType::Number,
            required: true,
            options: Vec::new(),
            placeholder: None,
            default: shown(short),
        }],
        actions: vec![
            action(RAISE, "Raise", InteractionActionStyle::Primary),
            action(REFUSE, "Refuse", InteractionActionStyle::Danger),
        ],
        expires_at: None,
        awaits: true,
    }
}

/// An amount in the unit of its limit, rounded up for seconds.
#[expect(
    clippy::cast_precision_loss,
    reason = "amounts of money and time stay below 2^53 in their small units"
)]
fn shown(what: &str, amount: u64) -> Value {
    match what {
        "cost" => json!(amount as f64 / MICROS),
        "seconds" => json!(amount.div_ceil(1000)),
        _ => json!(amount),
    }
}

/// The amount of an answer in the small unit of the limit `what`; `None`: the answer refuses.
pub fn raise_of(what: &str, answer: &InteractionSubmission) -> Result<Option<u64>, Fault> {
    if answer.action_id.as_deref() != Some(RAISE) {
        return Ok(None);
    }
    let fault = |message: String| Fault::new(format!("/values/{AMOUNT}"), message);
    let amount = answer.values.get(AMOUNT).unwrap_or(&Value::Null);
    let raise = match what {
        "cost" | "seconds" => {
            let units = if what == "cost" { MICROS } else { MILLIS };
            let amount = amount.as_f64().filter(|amount| *amount <= MAX_MEASURE);
            amount.map(|amount| scaled(amount, units))
        }
        _ => amount.as_u64().filter(|amount| *amount <= MAX_COUNT),
    };
    let raise = raise.filter(|raise| *raise > 0);
    let expected = match what {
        "cost" | "seconds" => format!("must be a number above 0, at most {MAX_MEASURE}"),
        _ => format!("must be an integer from 1 to {MAX_COUNT}"),
    };
    raise.map(Some).ok_or_else(|| fault(expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn past(asked_at: i64, expires_at: i64, end: Option<QuestionEnd>) -> PastQuestion {
        PastQuestion {
            is_same: true,
            asked_at,
            expires_at,
            end,
        }
    }

    #[test]
    fn calls_share_open_question_until_expiry() {
        let open = past(0, 60_000, None);
        let decide = |now| decide_question(&[open], 60_000, now);
        assert_eq!(decide(59_999), AskDecision::Join);
        assert_eq!(decide(60_000), AskDecision::Expire);
        let expired = past(0, 60_000, Some(QuestionEnd::Closed { at: 60_000 }));
        let refused = past(0, 60_000, Some(QuestionEnd::Refused));
        for last in [expired, refused] {
            let decided = decide_question(&[last], 900_000, 61_000);
            assert_eq!(decided, AskDecision::Refuse, "{last:?}");
        }
    }

    #[test]
    fn waits_add_up_to_maximum() {
        let ask = |past: &[PastQuestion]| decide_question(past, 60_000, 100_000);
        assert_eq!(
            ask(&[]),
            AskDecision::Ask {
                expires_at: 160_000
            }
        );
        let raised = past(0, 60_000, Some(QuestionEnd::Raised { at: 20_000 }));
        let withdrawn = past(30_000, 70_000, Some(QuestionEnd::Closed { at: 45_000 }));
        let decided = ask(&[withdrawn, raised]);
        assert_eq!(
            decided,
            AskDecision::Ask {
                expires_at: 125_000
            }
        );
        let long = past(0, 60_000, Some(QuestionEnd::Raised { at: 59_500 }));
        assert_eq!(ask(&[long]), AskDecision::Refuse);
        let mut earlier = past(0, 60_000, Some(QuestionEnd::Closed { at: 60_000 }));
        earlier.is_same = false;
        assert_eq!(ask(&[earlier]), AskDecision::Refuse, "in all windows");
        let instant = past(0, 60_000, Some(QuestionEnd::Raised { at: 0 }));
        assert_eq!(ask(&[instant; MAX_QUESTIONS]), AskDecision::Refuse);
    }

    #[test]
    fn open_questions_extend_deadline_by_their_wait() {
        let at = |open: &[(i64, i64)], now| extended_deadline(50_000, open, now);
        assert_eq!(at(&[], 50_000), 50_000);
        assert_eq!(at(&[(10_000, 90_000)], 20_000), 50_000 + 15_000);
        // At most until the expiry.
        assert_eq!(at(&[(10_000, 90_000)], 500_000), 50_000 + 80_000);
        assert_eq!(
            at(&[(10_000, 90_000), (0, 1_000)], 500_000),
            50_000 + 81_000
        );
    }

    fn answer(action: &str, values: &Value) -> InteractionSubmission {
        let answer = json!({"interaction_id": "q", "action_id": action, "values": values});
        serde_json::from_value(answer).unwrap()
    }

    #[test]
    fn raises_are_positive_and_bounded() {
        let raise =
            |what, amount: Value| raise_of(what, &answer(RAISE, &json!({"amount": amount})));
        assert_eq!(raise("tokens", json!(5)), Ok(Some(5)));
        assert_eq!(raise("cost", json!(0.5)), Ok(Some(500_000)));
        assert_eq!(raise("seconds", json!(2)), Ok(Some(2000)));
        for (what, amount) in [
            ("tokens", json!(0)),
            ("tokens", json!(-5)),
            ("tokens", json!(1.5)),
            ("calls", json!(MAX_COUNT + 1)),
            ("calls", json!("NaN")),
            ("cost", json!(-0.5)),
            ("cost", json!(0)),
            ("cost", json!(1e10)),
            ("seconds", Value::Null),
        ] {
            let fault = raise(what, amount.clone()).unwrap_err();
            assert_eq!(fault.pointer, "/values/amount", "{what} {amount}");
        }
        assert_eq!(raise_of("tokens", &answer(REFUSE, &json!({}))), Ok(None));
    }

    #[test]
    fn question_suggests_missing_amount() {
        let exceeded = |what, limit, used, more| BudgetExceeded {
            budget: "day".to_owned(),
            what,
            limit,
            used,
            more,
            resets_at: None,
        };
        let suggested = |exceeded: BudgetExceeded| {
            let question = question("q".to_owned(), &exceeded, BudgetScope::Run);
            question.fields[0].default.clone()
        };
        assert_eq!(suggested(exceeded("tokens", 100, 90, 30)), json!(20));
        assert_eq!(
            suggested(exceeded("cost", 1_000_000, 1_000_000, 250_000)),
            json!(0.25)
        );
        assert_eq!(suggested(exceeded("seconds", 1000, 2500, 1)), json!(2));
    }
}
