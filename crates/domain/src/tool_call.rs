//! Whether a call of a tool under an idempotency key is made, answered from what is kept, or refused.

use protocol::resources::ToolEffect;

/// How an earlier call under the same key stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Earlier {
    /// Its result is kept.
    Done,
    /// Somebody waits for its result.
    GoesOn,
    /// Nobody does any more, and none is kept: the tool may have been called, or not.
    Unknown,
}

/// What follows for the next call under the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The tool is called again: that changes nothing.
    Call,
    /// The kept result is the answer.
    Answer,
    /// Other parameters, or another tool.
    Mismatch,
    InProgress,
    OutcomeUnknown,
}

/// Whether calling twice does no more than calling once. What nobody has said is taken for a write.
pub fn is_repeatable(effect: Option<ToolEffect>) -> bool {
    effect == Some(ToolEffect::Read)
}

/// Decides about a call whose key was seen before.
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
