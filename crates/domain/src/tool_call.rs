//! Tool calls with a ticket: call the tool, return the recorded result, find out what became of the call, or reject.

use protocol::resources::ToolEffect;
use serde_json::Value;

/// State of an earlier call with the same ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlierCall {
    /// The call had other parameters, or another tool.
    OtherRequest,
    /// Its result is recorded.
    Done,
    /// The tool did not execute the call.
    NotDone,
    /// The call is in progress.
    GoesOn,
    /// The call ended without a recorded result. The tool may have executed it.
    Unknown,
}

/// Decision on the next call with the ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepeatedCallDecision {
    /// Call the tool: it has not executed the call, or a repeated call has no further effect.
    Call,
    /// Return the recorded result.
    Answer,
    /// Reject: other parameters, or another tool.
    Mismatch,
    InProgress,
    /// Find out whether the tool executed the call, and never repeat it before.
    OutcomeUnknown,
}

/// Returns true if a repeated call is safe. An unknown effect is treated as a write.
pub fn is_repeatable(effect: Option<ToolEffect>) -> bool {
    effect == Some(ToolEffect::Read)
}

/// Decides on a call with a known ticket.
pub fn decide(earlier: EarlierCall, effect: Option<ToolEffect>) -> RepeatedCallDecision {
    match earlier {
        // A key that returns for another request is an error of the runner; its recorded result would be wrong.
        EarlierCall::OtherRequest => RepeatedCallDecision::Mismatch,
        EarlierCall::Done => RepeatedCallDecision::Answer,
        EarlierCall::NotDone => RepeatedCallDecision::Call,
        EarlierCall::GoesOn => RepeatedCallDecision::InProgress,
        // Only reads are safe to repeat: a write may have happened already.
        EarlierCall::Unknown if is_repeatable(effect) => RepeatedCallDecision::Call,
        EarlierCall::Unknown => RepeatedCallDecision::OutcomeUnknown,
    }
}

/// An earlier call of a run without an idempotency key, with the tool and the parameters of the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SameCall {
    /// 1 for the first such call of the run.
    pub ordinal: u64,
    /// The newest attempt that made or repeated the call.
    pub attempt: u64,
    /// True if its outcome is not recorded, and no task of this process makes the call.
    pub is_open: bool,
}

/// Ticket of a call without an idempotency key, by its ordinal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameCallTicket {
    Repeated(u64),
    New(u64),
}

/// Decides whether a call without a key repeats one of the same calls before it. `began`: the attempt in which the
/// runner began the run anew; a resume continues that attempt.
///
/// A runner that begins anew repeats its calls in their order. Within an attempt a runner repeats only a call whose
/// response it lost, so calls with a recorded outcome are not repeated there.
pub fn next_ticket(same: &[SameCall], began: u64) -> SameCallTicket {
    let first = |is: &dyn Fn(&&SameCall) -> bool| {
        let calls = same.iter().filter(is);
        calls.map(|call| call.ordinal).min()
    };
    let of_earlier_start = first(&|call| call.attempt < began);
    let repeated = of_earlier_start.or_else(|| first(&|call| call.is_open));
    let newest = same.iter().map(|call| call.ordinal).max();
    repeated.map_or(
        SameCallTicket::New(newest.unwrap_or(0) + 1),
        SameCallTicket::Repeated,
    )
}

/// Effect of a call, as the audit log has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallEffect {
    /// The tool executed the call.
    Done,
    /// The tool executed an earlier call with this ticket, and the call got its recorded result.
    Recorded,
    /// The tool did not execute the call.
    NotDone,
    /// The tool may have executed the call.
    Unknown,
}

impl CallEffect {
    /// Returns the name in the audit log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Recorded => "recorded",
            Self::NotDone => "not_done",
            Self::Unknown => "unknown",
        }
    }
}

/// Answer of a `reconcile` call about an earlier call.
#[derive(Clone, Debug, PartialEq)]
pub enum ReconcileAnswer {
    /// The earlier call was executed, with this result.
    Done(Value),
    NotDone,
    /// The tool does not know, or its answer has another form.
    Unknown,
}

impl ReconcileAnswer {
    /// Reads `{"outcome": "done" | "not_done", "result"}`: a JSON object, its text, or the structured content of an MCP
    /// result.
    pub fn read(answer: &Value) -> Self {
        let parsed = answer.as_str().map(serde_json::from_str::<Value>);
        let answer = match &parsed {
            Some(Ok(parsed)) => parsed,
            Some(Err(_)) => return Self::Unknown,
            None => answer.get("structured_content").unwrap_or(answer),
        };
        match answer.get("outcome").and_then(Value::as_str) {
            Some("done") => Self::Done(answer.get("result").cloned().unwrap_or_default()),
            Some("not_done") => Self::NotDone,
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn never_repeats_calls_with_possible_side_effects() {
        let (read, write) = (Some(ToolEffect::Read), Some(ToolEffect::Write));
        for (earlier, effect, expected) in [
            (EarlierCall::Done, write, RepeatedCallDecision::Answer),
            (EarlierCall::NotDone, write, RepeatedCallDecision::Call),
            (
                EarlierCall::OtherRequest,
                read,
                RepeatedCallDecision::Mismatch,
            ),
            (EarlierCall::GoesOn, read, RepeatedCallDecision::InProgress),
            (EarlierCall::Unknown, read, RepeatedCallDecision::Call),
            (
                EarlierCall::Unknown,
                write,
                RepeatedCallDecision::OutcomeUnknown,
            ),
            (
                EarlierCall::Unknown,
                None,
                RepeatedCallDecision::OutcomeUnknown,
            ),
            (
                EarlierCall::Unknown,
                Some(ToolEffect::Irreversible),
                RepeatedCallDecision::OutcomeUnknown,
            ),
        ] {
            assert_eq!(decide(earlier, effect), expected, "{earlier:?}");
        }
    }

    #[test]
    fn calls_without_key_repeat_in_order() {
        use SameCallTicket::{New, Repeated};
        let call = |ordinal, attempt, is_open| SameCall {
            ordinal,
            attempt,
            is_open,
        };
        for (same, began, expected) in [
            (vec![], 1, New(1)),
            // The same runner goes on: only a lost response is asked for again.
            (vec![call(1, 1, false)], 1, New(2)),
            (vec![call(1, 1, false), call(2, 1, true)], 1, Repeated(2)),
            (vec![call(2, 2, false), call(1, 1, false)], 1, New(3)),
            // The runner began anew in attempt 2.
            (vec![call(2, 1, false), call(1, 1, false)], 2, Repeated(1)),
            (vec![call(1, 2, false), call(2, 1, true)], 2, Repeated(2)),
            (vec![call(1, 2, false), call(2, 2, false)], 2, New(3)),
            // The first ordinals were deleted.
            (vec![call(7, 1, false)], 1, New(8)),
        ] {
            assert_eq!(next_ticket(&same, began), expected, "{same:?} {began}");
        }
    }

    #[test]
    fn reads_reconcile_answers_and_trusts_no_other_form() {
        let done = json!({"outcome": "done", "result": {"id": 7}});
        let is_done = ReconcileAnswer::Done(json!({"id": 7}));
        for (answer, expected) in [
            (done.clone(), is_done.clone()),
            (json!(done.to_string()), is_done.clone()),
            (json!({"content": [], "structured_content": done}), is_done),
            (
                json!({"outcome": "done"}),
                ReconcileAnswer::Done(Value::Null),
            ),
            (json!({"outcome": "not_done"}), ReconcileAnswer::NotDone),
            (json!({"outcome": "unknown"}), ReconcileAnswer::Unknown),
            (json!({"outcome": true}), ReconcileAnswer::Unknown),
            (json!("not_done"), ReconcileAnswer::Unknown),
            (json!([done]), ReconcileAnswer::Unknown),
            (Value::Null, ReconcileAnswer::Unknown),
        ] {
            assert_eq!(ReconcileAnswer::read(&answer), expected, "{answer}");
        }
    }
}
