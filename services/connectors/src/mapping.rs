//! The interface of a platform: requests from a turn, results from the events of a response. Pure.

use protocol::JsonObject;
use protocol::interaction::{InteractionRequest, InteractionSubmission};
use serde_json::Value;

use crate::request::PlatformRequest;
use crate::request::PlatformResponseHead;
use crate::run::ConnectorRun;
use crate::turn::TurnFile;
use crate::upstream::failure::{ConnectorFailure, ErrorStatus, Mapped, TransportError};
use crate::upstream::question_queue::QuestionQueue;
use crate::upstream::reader::UpstreamEvent;

/// The next step of a run.
#[derive(Debug)]
pub enum MappingStep {
    /// Read more of the response.
    Read,
    /// Send the message: the history, the files, then [`PlatformMapping::request`].
    Send,
    /// Send another request.
    Call(Box<PlatformRequest>),
    /// Ask a person. The response is closed during the wait.
    Ask(Box<InteractionRequest>),
    /// Send the message in a new conversation, for this reason.
    StartOver(&'static str),
    /// The answer is complete.
    Complete,
}

impl MappingStep {
    pub(crate) fn call(request: PlatformRequest) -> Self {
        Self::Call(Box::new(request))
    }
}

/// A file of the turn in the platform's form.
pub enum FileReference {
    Inline(Value),
    /// The file must be uploaded; [`PlatformMapping::uploaded`] reads the response.
    Upload(PlatformRequest),
}

/// One run on one platform. Total: no input causes a panic.
///
/// The loop uploads files, sends the message, keeps the conversation's id, starts over once if the platform lost it,
/// and completes or fails the run. A mapping has the platform's requests, and the meaning of its events.
pub trait PlatformMapping: Send {
    /// The request of the message, in the conversation of the run or in a new one.
    fn request(&mut self, run: &mut ConnectorRun) -> Mapped<PlatformRequest>;

    /// Handles one event of a response, uploads excluded.
    fn event(&mut self, event: &UpstreamEvent, run: &mut ConnectorRun) -> Mapped<MappingStep>;

    /// True if a stored conversation id can be used.
    fn accepts(&self, _id: &str) -> bool {
        true
    }

    /// A file of the turn. Fails with `upload_error` if the platform does not accept it.
    fn file(&self, file: &TurnFile, _run: &ConnectorRun) -> Mapped<FileReference> {
        Err(ConnectorFailure::upload(
            &file.name,
            "cannot be handed over",
        ))
    }

    /// The reference of an uploaded file. `None` if the response has none.
    fn uploaded(&self, _file: &TurnFile, _response: &Value) -> Mapped<Option<Value>> {
        Ok(None)
    }

    /// True for a keep-alive. The session drops it and does not reset the idle timer.
    fn is_ping(&mut self, _event: &UpstreamEvent) -> bool {
        false
    }

    /// The platform's error code in the body of an error response.
    fn refusal_code(&self, _body: &Value) -> Option<String> {
        None
    }

    /// True for failures about the conversation's id.
    fn is_lost(&self, _failure: &ConnectorFailure) -> bool {
        false
    }

    /// Drops the state of a failed attempt before the message is sent in a new conversation.
    fn reset(&mut self) {}

    /// True if the end of the response, or a failure, completes the answer.
    fn is_complete(&self) -> bool {
        false
    }

    /// True if the answer is complete and only its usage can follow. The driver waits a few seconds for that and then
    /// passes [`TransportError::Idle`], which must complete the run.
    fn is_answered(&self) -> bool {
        false
    }

    /// The response of a call began with a status from 200 to 299.
    fn opened(&mut self, _head: &PlatformResponseHead, _run: &mut ConnectorRun) {}

    /// The response ended without an end mark.
    fn ended(&mut self, _run: &mut ConnectorRun) -> Mapped<MappingStep> {
        Err(ConnectorFailure::ended_early())
    }

    /// The response has another status.
    fn refused(
        &mut self,
        _refusal: &ErrorStatus,
        failure: ConnectorFailure,
        _run: &mut ConnectorRun,
    ) -> Mapped<MappingStep> {
        Err(failure)
    }

    /// The call failed before or within its response.
    fn failed(&mut self, error: TransportError, _run: &mut ConnectorRun) -> Mapped<MappingStep> {
        Err(error.into())
    }

    /// The queue of a platform that resumes with answers to interrupts.
    fn questions(&mut self) -> Option<&mut QuestionQueue> {
        None
    }

    /// Resumes the platform with these answers by the next [`PlatformMapping::request`].
    fn resume(&mut self, _answers: Vec<Value>) {}

    /// The turn answers a question of an earlier run.
    fn submitted(
        &mut self,
        answer: InteractionSubmission,
        run: &mut ConnectorRun,
    ) -> Mapped<MappingStep> {
        let Some(questions) = self.questions() else {
            return Ok(MappingStep::Send);
        };
        questions.restore(&answer, run)?;
        self.answered(answer.into(), run)
    }

    /// A person answered the question of [`MappingStep::Ask`].
    fn answered(&mut self, answer: PersonAnswer, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        let questions = self.questions().ok_or_else(ConnectorFailure::ended_early)?;
        match questions.answered(&answer, run) {
            Err(question) => Ok(question),
            Ok(answers) => {
                self.resume(answers);
                Ok(MappingStep::Send)
            }
        }
    }

    /// No person answered the question in time.
    fn expired(&mut self, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        Err(QuestionQueue::expired(run))
    }

    /// Adds the rest of the answer before its message is completed.
    fn finish(&mut self, _run: &mut ConnectorRun) -> Mapped {
        Ok(())
    }

    /// The failure of a complete answer without content.
    fn silence(&self) -> ConnectorFailure {
        ConnectorFailure::empty()
    }

    /// The request that stops a task; sent on cancellation, deadline and failure.
    fn stop(&self, _task: &str, _run: &ConnectorRun) -> Option<PlatformRequest> {
        None
    }
}

/// The answer of a person.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PersonAnswer {
    pub action: Option<String>,
    /// Values by field id.
    pub values: JsonObject,
}

impl From<InteractionSubmission> for PersonAnswer {
    fn from(submission: InteractionSubmission) -> Self {
        Self {
            action: submission.action_id,
            values: submission.values,
        }
    }
}
