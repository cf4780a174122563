//! Rule 16: reconciliation of open attempts after a take-over.

use crate::action::Class;
use crate::code::Code;
use crate::ids::ActionId;
use crate::node::{Sent, State, Wait};
use crate::schedule::{Counted, Failure, Found, Outcome, Turn};

impl Turn<'_> {
    pub(super) fn recovered(&mut self, id: &ActionId, attempt: u32, found: Found) {
        let Some(place) = self.open(id, attempt) else {
            return;
        };
        let node = &self.graph.nodes[place];
        match (found, node.state) {
            (Found::Ended(outcome), _) => self.end(place, outcome),
            (Found::Nothing | Found::Unknown, State::Running) if node.aborting => {
                self.grace_over(place);
            }
            (Found::Nothing | Found::Unknown, State::Running) => match node.class() {
                Class::Replayable | Class::Keyed => {
                    self.graph.nodes[place].resumes = true;
                    self.go(place, State::Pending, None);
                }
                Class::AtMostOnce => {
                    let now = self.now;
                    self.graph.nodes[place].end_attempt(now, None, Some(Sent::Maybe));
                    self.go(place, State::Uncertain, Some(Code::UncertainEffect));
                }
            },
            (Found::Unknown, State::Waiting(Wait::Child)) => {
                let message = "the child run is not known any more";
                let mut failure = Failure::new(Code::ChildFailed, message, Sent::No);
                failure.retryable = true;
                self.end(place, Outcome::Err(failure));
            }
            // The question is asked again, as a new attempt.
            (Found::Unknown, State::Waiting(Wait::User)) => self.go(place, State::Pending, None),
            (Found::Nothing, State::Waiting(Wait::Timer)) => self.go(place, State::Running, None),
            (Found::Alive, _) | (Found::Nothing | Found::Unknown, State::Waiting(_)) => {}
            _ => self.count(Counted::Refused),
        }
    }
}
