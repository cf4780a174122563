//! Messages of a completed run.

use protocol::event::EventEnvelope;
use protocol::message::Message;

use super::{Reason, ResultValidator, RunMessages, text};
use crate::run::{Failure, FailureCode};

/// Output without which a completed run has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedOutput {
    /// A message, for events that are messages.
    Message,
    Nothing,
}

impl ExpectedOutput {
    pub fn of(event: &EventEnvelope) -> Self {
        if event.event_type.starts_with("message.") {
            Self::Message
        } else {
            Self::Nothing
        }
    }
}

/// Reason for which a `run.completed` is rejected.
pub(super) type Unfinished = (Reason, Failure);

impl ResultValidator<'_> {
    /// Returns the complete messages, or the message of the terminal result, or the text of the deltas.
    pub(super) fn final_messages(
        &mut self,
        of_terminal: Option<Message>,
    ) -> Result<RunMessages, Unfinished> {
        if let Some(why) = self
            .rejected_message
            .take()
            .filter(|_| of_terminal.is_none())
        {
            let message = format!("the runner completed, and its message was rejected: {why}");
            let failure = Failure::new(FailureCode::RunnerProtocolViolation, message);
            return Err((Reason::NoOutput, failure));
        }
        // Complete messages win over deltas, whose text they repeat.
        if self.messages.stored().count > 0 {
            return Ok(self.completed_messages());
        }
        if let Some(message) = of_terminal {
            return Ok(message.into());
        }
        // The stream is over: a buffered half gets no partner.
        let half = self.halves.finish();
        let gathered = self
            .messages
            .take_gathered(half)
            .map_err(|text::MessageTooLong| {
                let message =
                    "the deltas exceed the size of one message: send a complete message.completed";
                let failure = Failure::new(FailureCode::RunnerOutputLimit, message);
                (Reason::EventTooLarge, failure)
            })?;
        // Runs of other events may end without a message.
        if gathered.is_none() && self.expected_output == ExpectedOutput::Message {
            let message = "the runner completed without any message";
            let failure = Failure::new(FailureCode::RunnerNoOutput, message);
            // Rejected results before may explain the missing message.
            return Err((Reason::NoOutput, self.explain(failure)));
        }
        Ok(gathered.map(RunMessages::from).unwrap_or_default())
    }

    /// Notes that a complete message was rejected.
    pub(super) fn note_rejected_message(&mut self, why: &str) {
        self.rejected_message = Some(why.to_owned());
    }
}
