//! Rule 16: reconciliation of open attempts after a take-over.

use crate::action::Class;
use crate::code::Code;
use crate::ids::ActionId;
use crate::node::{Sent, State, Wait};
use crate::schedule::{AttemptEvents, Counted, Failure, Found, Outcome};

impl AttemptEvents<'_, '_> {
    pub(super) fn recovered(&mut self, id: &ActionId, attempt: u32, found: Found) {
        let Some(place) = self.step.open(id, attempt) else {
            return;
        };
        let node = &self.step.graph.nodes[place];
        match (found, node.state) {
            (Found::Ended(outcome), _) => self.end(place, outcome),
            (Found::Nothing | Found::Unknown, State::Running) if node.aborting => {
                self.step.grace_over(place);
            }
            (Found::Nothing | Found::Unknown, State::Running) => match node.class() {
                Class::Replayable | Class::Keyed => {
                    self.step.graph.nodes[place].resumes = true;
                    self.step.go(place, State::Pending, None);
                }
                Class::AtMostOnce => {
                    let now = self.step.now;
                    self.step.graph.nodes[place].end_attempt(now, None, Some(Sent::Maybe));
                    self.step
                        .go(place, State::Uncertain, Some(Code::UncertainEffect));
                }
            },
            (Found::Unknown, State::Waiting(Wait::Child)) => {
                let message = "the child run is not known any more";
                let mut failure = Failure::new(Code::ChildFailed, message, Sent::No);
                failure.retryable = true;
                self.end(place, Outcome::Err(failure));
            }
            // The question is asked again, as a new attempt.
            (Found::Unknown, State::Waiting(Wait::User)) => {
                self.step.go(place, State::Pending, None)
            }
            (Found::Nothing, State::Waiting(Wait::Timer)) => {
                self.step.go(place, State::Running, None)
            }
            (Found::Alive, _) | (Found::Nothing | Found::Unknown, State::Waiting(_)) => {}
            _ => self.step.count(Counted::Refused),
        }
    }
}
