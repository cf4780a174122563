//! How a run ends that says that it is completed.

use protocol::message::Message;

use super::{Judge, Reason, Said, text};
use crate::run::{Failure, FailureCode};

/// Why a run that says that it is completed is not.
pub(super) type Unfinished = (Reason, Failure);

impl Judge<'_> {
    /// The whole messages, else the one that the terminal brought, else what the deltas make.
    pub(super) fn final_messages(
        &mut self,
        of_terminal: Option<Message>,
    ) -> Result<Said, Unfinished> {
        if let Some(why) = self.lost_message.take().filter(|_| of_terminal.is_none()) {
            let message = format!("the runner completed, and its message was refused: {why}");
            let failure = Failure::new(FailureCode::RunnerProtocolViolation, message);
            return Err((Reason::NoOutput, failure));
        }
        if self.messages.said().count > 0 {
            return Ok(self.said());
        }
        if let Some(message) = of_terminal {
            return Ok(message.into());
        }
        let half = self.halves.finish();
        let gathered = self.messages.take_gathered(half).map_err(|text::Outgrown| {
            let message = "the deltas say more than one message holds: end with a message.completed of its own";
            let failure = Failure::new(FailureCode::RunnerOutputLimit, message);
            (Reason::EventTooLarge, failure)
        })?;
        if gathered.is_none() && self.expects_message {
            let message = self.with_refused("the runner completed without any message");
            let failure = Failure::new(FailureCode::RunnerNoOutput, message);
            return Err((Reason::NoOutput, failure));
        }
        Ok(gathered.map(Said::from).unwrap_or_default())
    }

    /// Notes that a whole message is not among what was said.
    pub(super) fn note_lost_message(&mut self, why: &str) {
        self.lost_message = Some(why.to_owned());
    }
}
