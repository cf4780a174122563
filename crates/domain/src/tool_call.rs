//! Idempotent tool calls: call the tool, return the stored result, or reject.

use protocol::resources::ToolEffect;

/// State of an earlier call with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlierCall {
    /// The call had other parameters, or another tool.
    OtherRequest,
    /// Its result is stored.
    Done,
    /// The call is in progress.
    GoesOn,
    /// The call ended without a stored result. The tool may have been called.
    Unknown,
}

/// Decision on the next call with the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepeatedCallDecision {
    /// Call the tool again, which has no further effect.
    Call,
    /// Return the stored result.
    Answer,
    /// Reject: other parameters, or another tool.
    Mismatch,
    InProgress,
    OutcomeUnknown,
}

/// Returns true if a repeated call is safe. An unknown effect is treated as a write.
pub fn is_repeatable(effect: Option<ToolEffect>) -> bool {
    effect == Some(ToolEffect::Read)
}

/// Decides on a call with a known key.
pub fn decide(earlier: EarlierCall, effect: Option<ToolEffect>) -> RepeatedCallDecision {
    match earlier {
        // A key that returns for another request is an error of the runner; its stored result would be wrong.
        EarlierCall::OtherRequest => RepeatedCallDecision::Mismatch,
        EarlierCall::Done => RepeatedCallDecision::Answer,
        EarlierCall::GoesOn => RepeatedCallDecision::InProgress,
        // Only reads are safe to repeat: a write may have happened already.
        EarlierCall::Unknown if is_repeatable(effect) => RepeatedCallDecision::Call,
        EarlierCall::Unknown => RepeatedCallDecision::OutcomeUnknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_repeats_calls_with_possible_side_effects() {
        let (read, write) = (Some(ToolEffect::Read), Some(ToolEffect::Write));
        for (earlier, effect, expected) in [
            (EarlierCall::Done, write, RepeatedCallDecision::Answer),
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
}
