//! Idempotent tool calls: call the tool, return the stored result, or reject.

use protocol::resources::ToolEffect;

/// State of an earlier call with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlierCall {
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
pub fn decide(
    earlier: EarlierCall,
    same_request: bool,
    effect: Option<ToolEffect>,
) -> RepeatedCallDecision {
    match earlier {
        // A key that returns for another request is an error of the runner; its stored result would be wrong.
        _ if !same_request => RepeatedCallDecision::Mismatch,
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
        for (earlier, same, effect, expected) in [
            (EarlierCall::Done, true, write, RepeatedCallDecision::Answer),
            (
                EarlierCall::Done,
                false,
                read,
                RepeatedCallDecision::Mismatch,
            ),
            (
                EarlierCall::GoesOn,
                true,
                read,
                RepeatedCallDecision::InProgress,
            ),
            (
                EarlierCall::GoesOn,
                false,
                read,
                RepeatedCallDecision::Mismatch,
            ),
            (EarlierCall::Unknown, true, read, RepeatedCallDecision::Call),
            (
                EarlierCall::Unknown,
                true,
                write,
                RepeatedCallDecision::OutcomeUnknown,
            ),
            (
                EarlierCall::Unknown,
                true,
                None,
                RepeatedCallDecision::OutcomeUnknown,
            ),
            (
                EarlierCall::Unknown,
                true,
                Some(ToolEffect::Irreversible),
                RepeatedCallDecision::OutcomeUnknown,
            ),
            (
                EarlierCall::Unknown,
                false,
                read,
                RepeatedCallDecision::Mismatch,
            ),
        ] {
            assert_eq!(decide(earlier, same, effect), expected, "{earlier:?}");
        }
    }
}
