//! Rule 16: reconciliation of open attempts after a take-over.

use crate::action::Class;
use crate::code::Code;
use crate::ids::ActionId;
use crate::node::{NodeState, Sent, Wait};
use crate::schedule::{
    ActionFailure, ActionOutcome, AttemptEvents, IgnoredEvent, RecoveredAttempt,
};

impl AttemptEvents<'_, '_> {
    pub(super) fn recovered(&mut self, id: &ActionId, attempt: u32, found: RecoveredAttempt) {
        let Some(position) = self.step.open(id, attempt) else {
            return;
        };
        let node = &self.step.graph.nodes[position];
        match (found, node.state) {
            (RecoveredAttempt::Ended(outcome), _) => self.end(position, outcome),
            // The process that had to confirm the abort is gone.
            (RecoveredAttempt::Nothing | RecoveredAttempt::Unknown, NodeState::Running)
                if node.aborting =>
            {
                self.step.grace_over(position);
            }
            (RecoveredAttempt::Nothing | RecoveredAttempt::Unknown, NodeState::Running) => {
                // The same attempt again: the idempotency key finds a result that was lost.
                match node.class() {
                    Class::Replayable | Class::Keyed => {
                        self.step.graph.nodes[position].resumes = true;
                        self.step.go(position, NodeState::Pending, None);
                    }
                    Class::AtMostOnce => {
                        // The call may have been made by the earlier process.
                        let now = self.step.now;
                        self.step.graph.nodes[position].end_attempt(now, None, Some(Sent::Maybe));
                        self.step
                            .go(position, NodeState::Uncertain, Some(Code::UncertainEffect));
                    }
                }
            }
            (RecoveredAttempt::Unknown, NodeState::Waiting(Wait::Child)) => {
                let message = "the child run is not known any more";
                // Not sent: without a record of the child run, a second one repeats nothing.
                let mut failure = ActionFailure::new(Code::ChildFailed, message, Sent::No);
                failure.retryable = true;
                self.end(position, ActionOutcome::Err(failure));
            }
            // The question is lost; a new attempt puts it to the user again.
            (RecoveredAttempt::Unknown, NodeState::Waiting(Wait::User)) => {
                self.step.go(position, NodeState::Pending, None);
            }
            // The timer was lost with the process; the runner evaluates the wait again.
            (RecoveredAttempt::Nothing, NodeState::Waiting(Wait::Timer)) => {
                self.step.go(position, NodeState::Running, None);
            }
            (RecoveredAttempt::Alive, _)
            | (RecoveredAttempt::Nothing | RecoveredAttempt::Unknown, NodeState::Waiting(_)) => {}
            _ => self.step.count(IgnoredEvent::Refused),
        }
    }
}
