//! Idempotent tool calls: call the tool, return the stored result, or reject.

use protocol::resources::ToolEffect;

/// State of an earlier call with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Earlier {
    /// Its result is stored.
    Done,
    /// The call is in progress.
    GoesOn,
    /// The call ended without a stored result. The tool may have been called.
    Unknown,
}

/// Decision on the next call with the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
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
pub fn decide(earlier: Earlier, same_request: bool, effect: Option<ToolEffect>) -> Decision {
    match earlier {
        _ if !same_request => Decision::Mismatch,
        Earlier::Done => Decision::Answer,
        Earlier::GoesOn => Decision::InProgress,
        Earlier::Unknown if is_repeatable(effect) => Decision::Call,
        Earlier::Unknown => Decision::OutcomeUnknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_been_written_is_never_called_again() {
        let (read, write) = (Some(ToolEffect::Read), Some(ToolEffect::Write));
        for (earlier, same, effect, expected) in [
            (Earlier::Done, true, write, Decision::Answer),
            (Earlier::Done, false, read, Decision::Mismatch),
            (Earlier::GoesOn, true, read, Decision::InProgress),
            (Earlier::GoesOn, false, read, Decision::Mismatch),
            (Earlier::Unknown, true, read, Decision::Call),
            (Earlier::Unknown, true, write, Decision::OutcomeUnknown),
            (Earlier::Unknown, true, None, Decision::OutcomeUnknown),
            (
                Earlier::Unknown,
                true,
                Some(ToolEffect::Irreversible),
                Decision::OutcomeUnknown,
            ),
            (Earlier::Unknown, false, read, Decision::Mismatch),
        ] {
            assert_eq!(decide(earlier, same, effect), expected, "{earlier:?}");
        }
    }
}
