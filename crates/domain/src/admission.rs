//! What becomes of an event while its conversation is busy (contracts §4).

use protocol::admin::Concurrency;
use protocol::id::RunId;

/// Whether an event may start a run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Start,
    /// Refused: this run of the same agent is active in the conversation.
    Busy(RunId),
}

/// Decides by the agent's policy. `active`: the agent's oldest active run in the event's conversation.
pub fn admit(policy: Concurrency, active: Option<RunId>) -> Admission {
    match (policy, active) {
        (Concurrency::Reject, Some(run)) => Admission::Busy(run),
        _ => Admission::Start,
    }
}
