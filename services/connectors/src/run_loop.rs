//! The loop of a run: files, message, events, lost conversation, questions, end. Pure.

use protocol::interaction::AwaitedInteraction;

use crate::machine::{MachineInput, MachineOutput};
use crate::mapping::{FileReference, MappingStep, PersonAnswer, PlatformMapping};
use crate::platform::{ConversationKind, HistoryUse, Platform};
use crate::request::PlatformRequest;
use crate::run::ConnectorRun;
use crate::turn::ConnectorTurn;
use crate::upstream::config::ConfigReader;
use crate::upstream::conversation::PlatformConversation;
use crate::upstream::failure::{
    ConnectorFailure, ErrorStatus, FailureKind, Mapped, TransportError,
};
use crate::upstream::reader::UpstreamEvent;

/// One run of a mapping. Each input gives the outputs up to the next one.
pub(crate) struct RunLoop {
    mapping: Box<dyn PlatformMapping>,
    kind: ConversationKind,
    run: ConnectorRun,
    /// The open call uploads the file after those of the run.
    is_uploading: bool,
}

impl RunLoop {
    pub(crate) fn new(
        platform: &Platform,
        turn: ConnectorTurn,
        reader: &mut ConfigReader<'_>,
    ) -> Mapped<Self> {
        let mapping = (platform.start)(&turn, reader)?;
        platform.check_files(&turn)?;
        let kind = platform.conversation;
        let accepts = |id: &str| mapping.accepts(id);
        let conversation = PlatformConversation::of(&turn, kind.key, accepts);
        let mut run = ConnectorRun::new(turn, conversation);
        (run.sent_history, run.resent_history) = match platform.history {
            HistoryUse::Unused => (0, 0),
            HistoryUse::Resent(default) => (0, reader.messages("resend-history", default)?),
            HistoryUse::Sent(default) => (reader.messages("history", default)?, 0),
            HistoryUse::SentUnlessStored(default) => {
                let messages = reader.messages("history", default)?;
                let sent = if mapping.accepts("") { 0 } else { messages };
                (sent, messages)
            }
        };
        Ok(Self {
            mapping,
            kind,
            run,
            is_uploading: false,
        })
    }

    /// Handles one input. Returns the outputs up to the next input; a failure ends the run after them.
    pub(crate) fn on(&mut self, input: MachineInput) -> (Vec<MachineOutput>, Mapped) {
        let handled = self.input(input);
        (std::mem::take(&mut self.run.answer.out.0), handled)
    }

    pub(crate) fn is_ping(&mut self, event: &UpstreamEvent) -> bool {
        self.mapping.is_ping(event)
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.mapping.is_answered()
    }

    /// The request that stops the work on the platform.
    pub(crate) fn stop(&self) -> Option<PlatformRequest> {
        let task = self.run.task.as_deref()?;
        self.mapping.stop(task, &self.run)
    }

    fn input(&mut self, input: MachineInput) -> Mapped {
        let run = &mut self.run;
        let step = match input {
            MachineInput::Begin => match run.turn.submission.clone() {
                Some(answer) => self.mapping.submitted(answer, run),
                None => Ok(MappingStep::Send),
            },
            MachineInput::History(messages) => {
                run.history = messages;
                return self.send_files();
            }
            MachineInput::Opened(_) if self.is_uploading => Ok(MappingStep::Read),
            MachineInput::Opened(head) => {
                self.mapping.opened(&head, run);
                Ok(MappingStep::Read)
            }
            MachineInput::Event(event) if self.is_uploading => return self.uploaded(&event),
            MachineInput::Event(event) => self.mapping.event(&event, run),
            MachineInput::Refused(refusal) => return self.refused(&refusal),
            MachineInput::Failed(error) => return self.failed(error),
            MachineInput::Ended if self.mapping.is_complete() => Ok(MappingStep::Complete),
            MachineInput::Ended if self.is_uploading => {
                return Err(self.of_upload(ConnectorFailure::ended_early()));
            }
            MachineInput::Ended => self.mapping.ended(run),
            MachineInput::Answered(answer) => self.answered(answer),
        };
        self.follow(step)
    }

    fn follow(&mut self, step: Mapped<MappingStep>) -> Mapped {
        match step {
            Ok(MappingStep::Read) => {}
            Ok(MappingStep::Send) => return self.send(),
            Ok(MappingStep::Call(request)) => self.run.answer.out.call(*request),
            Ok(MappingStep::Ask(question)) => {
                self.run.answer.out.push(MachineOutput::Ask(question));
            }
            Ok(MappingStep::StartOver(reason)) => {
                return self.start_over(ConnectorFailure::ended_early(), reason);
            }
            Ok(MappingStep::Complete) => return self.complete(),
            Err(failure) if self.mapping.is_lost(&failure) => {
                let ConversationKind { owner, noun, .. } = self.kind;
                let reason = format!("{owner} does not know the stored {noun}");
                return self.start_over(failure, &reason);
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    fn send(&mut self) -> Mapped {
        match self.run.sent_history {
            messages if messages > 0 && self.run.history.is_empty() => {
                self.run.answer.out.push(MachineOutput::History(messages));
                Ok(())
            }
            _ => self.send_files(),
        }
    }

    /// Uploads the next file, or sends the message if none is left.
    fn send_files(&mut self) -> Mapped {
        while let Some(file) = self.run.turn.files.get(self.run.files.len()) {
            match self.mapping.file(file, &self.run)? {
                FileReference::Inline(reference) => self.run.files.push(reference),
                FileReference::Upload(request) => {
                    self.is_uploading = true;
                    self.run.answer.out.call(request);
                    return Ok(());
                }
            }
        }
        self.is_uploading = false;
        let request = self.mapping.request(&mut self.run)?;
        self.run.answer.out.call(request);
        Ok(())
    }

    fn uploaded(&mut self, event: &UpstreamEvent) -> Mapped {
        let Some(file) = self.run.turn.files.get(self.run.files.len()) else {
            return Ok(());
        };
        let unreadable = || ConnectorFailure::unreadable(&event.text);
        let read = event
            .json()
            .and_then(|payload| self.mapping.uploaded(file, &payload));
        let reference = read.and_then(|reference| reference.ok_or_else(unreadable));
        let reference = reference.map_err(|failure| self.of_upload(failure))?;
        self.run.files.push(reference);
        self.send_files()
    }

    fn refused(&mut self, refusal: &ErrorStatus) -> Mapped {
        let failure = ConnectorFailure::from(refusal);
        let failure = match self.mapping.refusal_code(&refusal.json()) {
            Some(code) => failure.detail("code", code),
            None => failure,
        };
        if self.is_uploading {
            return Err(self.of_upload(failure));
        }
        let step = self.mapping.refused(refusal, failure, &mut self.run);
        self.follow(step)
    }

    fn failed(&mut self, error: TransportError) -> Mapped {
        // The answer is complete, so a later failure does not matter.
        if self.mapping.is_complete() {
            return self.complete();
        }
        if self.is_uploading {
            return Err(self.of_upload(error.into()));
        }
        // Some platforms hang for lost conversations, so a retry with a new one may succeed.
        if error == TransportError::Idle && self.kind.hangs_if_lost {
            let ConversationKind { owner, noun, .. } = self.kind;
            let reason = format!("{owner} was silent about a stored {noun}");
            return self.start_over(error.into(), &reason);
        }
        let step = self.mapping.failed(error, &mut self.run);
        self.follow(step)
    }

    fn answered(&mut self, answer: AwaitedInteraction) -> Mapped<MappingStep> {
        match answer {
            AwaitedInteraction::Submitted {
                action_id, values, ..
            } => {
                let action = action_id;
                let answer = PersonAnswer { action, values };
                self.mapping.answered(answer, &mut self.run)
            }
            AwaitedInteraction::Expired | AwaitedInteraction::Open => {
                self.mapping.expired(&mut self.run)
            }
            AwaitedInteraction::Cancelled => Err(ConnectorFailure::new(
                FailureKind::Cancelled,
                "the run was cancelled",
            )),
        }
    }

    /// Adds the file's name to the failure of an upload.
    fn of_upload(&self, failure: ConnectorFailure) -> ConnectorFailure {
        match self.run.turn.files.get(self.run.files.len()) {
            Some(file) => failure.of_upload(&file.name),
            None => failure,
        }
    }

    /// Sends the message once more, in a new conversation. Returns the failure if the run must not be repeated.
    fn start_over(&mut self, failure: ConnectorFailure, reason: &str) -> Mapped {
        let answer = &mut self.run.answer;
        let conversation = &mut self.run.conversation;
        // A repeated call after first results would duplicate them for the client.
        if answer.has_begun() || !conversation.start_over(reason, &mut answer.out) {
            return Err(failure);
        }
        // Remains of the failed stream must not reach the new answer.
        (answer.usage, answer.finish_reason) = (None, None);
        self.run.task = None;
        self.mapping.reset();
        match self.run.resent_history {
            0 => return self.send_files(),
            messages => self.run.answer.out.push(MachineOutput::History(messages)),
        }
        Ok(())
    }

    fn complete(&mut self) -> Mapped {
        // Finished work needs no stop call.
        self.run.task = None;
        self.mapping.finish(&mut self.run)?;
        let answer = &mut self.run.answer;
        if !answer.complete() {
            return Err(self.mapping.silence());
        }
        let reason = answer.finish_reason.as_deref().unwrap_or("stop");
        answer.out.finish(reason, answer.usage.take());
        Ok(())
    }
}
