//! Applications on Dify: chat, chatflow, agent and workflow.

mod config;
mod events;
mod forms;
mod outputs;
mod request;

use protocol::interaction::AwaitedInteraction;
use serde_json::{Value, json};

use crate::catalogue::Platform;
use crate::dify_agent::config::{Config, DifyAppType};
use crate::dify_agent::events::{DifyProgress, DifyStep};
use crate::dify_agent::forms::DifyForm;
use crate::machine::{HistoryMessage, Machine, MachineInput, MachineOutput, OutputQueue};
use crate::request::PlatformRequest;
use crate::turn::ConnectorTurn;
use crate::upstream::config::ConfigReader;
use crate::upstream::conversation::PlatformConversation;
use crate::upstream::failure::{ConnectorFailure, ErrorStatus, FailureKind, TransportError};
use crate::upstream::json::filled;
use crate::upstream::reader::UpstreamEvent;

pub(crate) const PLATFORM: Platform = Platform {
    name: "dify-agent",
    prefix: "dify",
    label: "Dify",
    description: "An application on Dify: chat, chatflow, agent or workflow",
    legacy: &[
        "plugin:langbot/dify-agent/default",
        "plugin:langbot-team/DifyAgent/default",
    ],
    takes_files: true,
    asks: true,
    form: include_str!("dify_agent/form.json"),
    start,
};

const CONVERSATION: &str = "external.conversation_id";
/// The form that waits for its answer, for the case that the run ends first.
const PENDING_FORM: &str = "external.pending_form";
/// Maximum times that the stream is opened again for one form.
const MAX_REOPENED: u32 = 3;

fn start(
    turn: ConnectorTurn,
    reader: &mut ConfigReader<'_>,
) -> Result<Box<dyn Machine>, ConnectorFailure> {
    let config = Config::read(reader)?;
    // Dify hangs for ids that are not UUIDs.
    let is_valid = |id: &str| config.app != DifyAppType::Workflow && is_uuid(id);
    Ok(Box::new(Dify {
        conversation: PlatformConversation::of(&turn, CONVERSATION, is_valid),
        progress: DifyProgress::new(&turn, &config),
        files: Vec::new(),
        history: Vec::new(),
        stage: DifyStage::Uploading,
        reopened: 0,
        turn,
        config,
    }))
}

fn is_uuid(text: &str) -> bool {
    let is_digit = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(is_digit)
}

struct Dify {
    config: Config,
    turn: ConnectorTurn,
    conversation: PlatformConversation,
    progress: DifyProgress,
    files: Vec<Value>,
    history: Vec<HistoryMessage>,
    stage: DifyStage,
    reopened: u32,
}

enum DifyStage {
    Uploading,
    Streaming,
    Asking(DifyForm),
    /// The answer to the form is being posted.
    Submitting,
    Resumed,
}

impl Machine for Dify {
    fn on(&mut self, input: MachineInput, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        match input {
            MachineInput::Begin => self.begin(out),
            MachineInput::History(messages) => {
                self.history = messages;
                self.stream(out);
                Ok(())
            }
            MachineInput::Event(event) => self.event(&event, out),
            MachineInput::Ended => self.ended(out),
            MachineInput::Refused(refusal) => self.refused(refusal, out),
            MachineInput::Failed(error) => self.failed(error, out),
            MachineInput::Answered(answer) => self.answered(answer, out),
            MachineInput::Opened(_) => Ok(()),
        }
    }

    fn is_ping(&self, event: &UpstreamEvent) -> bool {
        event.name.as_deref() == Some("ping")
            || event.text.contains("\"ping\"")
                && event.json().is_ok_and(|payload| payload["event"] == "ping")
    }

    fn is_answered(&self) -> bool {
        self.progress.is_complete()
    }

    fn stop(&self) -> Option<PlatformRequest> {
        let task = self.progress.task_id.as_deref()?;
        Some(request::stop(&self.config, &self.turn.user, task))
    }
}

impl Dify {
    fn begin(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        let Some(answer) = self.turn.submission.clone() else {
            return self.upload(out);
        };
        let form = self
            .turn
            .state
            .get(PENDING_FORM)
            .and_then(DifyForm::restore);
        let form = form.filter(|form| form.interaction_id() == answer.interaction_id);
        let Some(form) = form else {
            let message =
                "the form that was answered is not known any more: start the application again";
            return Err(ConnectorFailure::new(FailureKind::ApiError, message));
        };
        self.submit(&form, answer.action_id.as_deref(), &answer.values, out)
    }

    /// Uploads the next file, or starts the application if none is left.
    fn upload(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        while let Some(file) = self.turn.files.get(self.files.len()) {
            let Some(entry) = request::remote_file(file) else {
                out.call(request::upload(&self.config, &self.turn.user, file)?);
                return Ok(());
            };
            self.files.push(entry);
        }
        self.stream(out);
        Ok(())
    }

    fn stream(&mut self, out: &mut OutputQueue) {
        self.stage = DifyStage::Streaming;
        let request = match self.config.app {
            DifyAppType::Workflow => request::workflow(&self.config, &self.turn, &self.files, out),
            DifyAppType::Chat | DifyAppType::Agent => request::chat(
                &self.config,
                &self.turn,
                &self.files,
                &self.history,
                self.conversation.id(),
            ),
        };
        out.call(request);
    }

    fn event(
        &mut self,
        event: &UpstreamEvent,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        match &self.stage {
            DifyStage::Uploading => {
                let Some(file) = self.turn.files.get(self.files.len()) else {
                    return Ok(());
                };
                let payload = event
                    .json()
                    .map_err(|failure| failure.of_upload(&file.name))?;
                let id = filled(&payload["id"]).ok_or_else(|| {
                    ConnectorFailure::unreadable(&event.text).of_upload(&file.name)
                })?;
                self.files.push(request::local_file(file, id));
                self.upload(out)
            }
            DifyStage::Streaming | DifyStage::Resumed => self.streamed(event, out),
            DifyStage::Asking(_) | DifyStage::Submitting => Ok(()),
        }
    }

    fn streamed(
        &mut self,
        event: &UpstreamEvent,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let payload = event.json()?;
        if event.is_document && payload.get("event").is_none() {
            return Err(ConnectorFailure::unreadable(&event.text));
        }
        if let Some(id) =
            filled(&payload["conversation_id"]).filter(|_| self.config.app != DifyAppType::Workflow)
        {
            self.conversation.learn(id, out);
        }
        match self.progress.event(&payload, out) {
            Ok(DifyStep::Next) => Ok(()),
            Ok(DifyStep::Over) => self.progress.complete(out),
            Ok(DifyStep::Paused) => self.ask(out),
            Err(failure) => self.lost(failure, out),
        }
    }

    fn ended(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        match self.stage {
            DifyStage::Uploading => {
                let name = self
                    .turn
                    .files
                    .get(self.files.len())
                    .map_or("", |file| file.name.as_str());
                Err(ConnectorFailure::ended_early().of_upload(name))
            }
            DifyStage::Submitting => {
                self.reopen(out);
                Ok(())
            }
            _ if self.progress.is_complete() => self.progress.complete(out),
            _ if self.progress.has_form() => self.ask(out),
            // The pause of the answered form may end the second stream again.
            DifyStage::Resumed if self.reopened < MAX_REOPENED => {
                self.reopen(out);
                Ok(())
            }
            _ => Err(ConnectorFailure::ended_early()),
        }
    }

    /// Asks the next form. The stream is closed during the wait.
    fn ask(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        let form = self.progress.next_form().ok_or_else(forms::unanswerable)?;
        out.remember(PENDING_FORM, form.stored());
        out.push(MachineOutput::Ask(Box::new(form.question())));
        self.stage = DifyStage::Asking(form);
        Ok(())
    }

    fn answered(
        &mut self,
        answer: AwaitedInteraction,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let DifyStage::Asking(form) = std::mem::replace(&mut self.stage, DifyStage::Submitting)
        else {
            return Err(ConnectorFailure::ended_early());
        };
        match answer {
            AwaitedInteraction::Submitted {
                action_id, values, ..
            } => self.submit(&form, action_id.as_deref(), &values, out),
            // Dify continues along the form's branch for timeouts.
            AwaitedInteraction::Expired | AwaitedInteraction::Open => {
                self.progress.resume(&form);
                self.reopen(out);
                Ok(())
            }
            AwaitedInteraction::Cancelled => Err(ConnectorFailure::new(
                FailureKind::Cancelled,
                "the run was cancelled",
            )),
        }
    }

    fn submit(
        &mut self,
        form: &DifyForm,
        action: Option<&str>,
        values: &protocol::JsonObject,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let body = form.submission(action, values, &self.turn.user)?;
        self.progress.resume(form);
        self.stage = DifyStage::Submitting;
        // Clear the form first: a second answer would be refused by Dify.
        out.remember(PENDING_FORM, Value::Null);
        out.call(request::submit(&self.config, form.token(), body));
        Ok(())
    }

    /// Opens the stream of the paused workflow run again.
    fn reopen(&mut self, out: &mut OutputQueue) {
        self.reopened += 1;
        self.stage = DifyStage::Resumed;
        let run = self.progress.run_id.as_deref().unwrap_or_default();
        out.call(request::resume(&self.config, &self.turn.user, run));
    }

    fn refused(
        &mut self,
        refusal: ErrorStatus,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let code = refusal.json()["code"].as_str().map(str::to_owned);
        let failure = ConnectorFailure::from(refusal);
        let failure = match code {
            Some(code) => failure.detail("code", code),
            None => failure,
        };
        match &self.stage {
            DifyStage::Uploading => {
                let name = self
                    .turn
                    .files
                    .get(self.files.len())
                    .map_or("", |file| file.name.as_str());
                Err(failure.of_upload(name))
            }
            DifyStage::Streaming => self.lost(failure, out),
            // The form was answered elsewhere, or has expired: the workflow continues without this answer.
            DifyStage::Submitting if failure.details.get("status") == Some(&json!(412)) => {
                out.log(
                    "warning",
                    "the form takes no answer any more; the workflow continues without this one",
                );
                self.reopen(out);
                Ok(())
            }
            // Send no stop call for a paused workflow: its form can still be answered on Dify.
            DifyStage::Submitting => {
                self.progress.task_id = None;
                Err(failure)
            }
            _ => Err(failure),
        }
    }

    fn failed(
        &mut self,
        error: TransportError,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        match self.stage {
            DifyStage::Streaming | DifyStage::Resumed if self.progress.is_complete() => {
                self.progress.complete(out)
            }
            // Dify hangs for some lost conversations, so a retry with a new one may succeed.
            DifyStage::Streaming if error == TransportError::Idle => self.start_over(
                error.into(),
                "Dify was silent about a stored conversation",
                out,
            ),
            _ => Err(error.into()),
        }
    }

    /// Starts over if Dify lost the stored conversation; otherwise returns the failure.
    fn lost(
        &mut self,
        failure: ConnectorFailure,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let is_lost = ["not_found", "conversation_not_exists"]
            .iter()
            .any(|code| failure.details.get("code") == Some(&json!(code)))
            || failure.details.get("status") == Some(&json!(404));
        if is_lost {
            return self.start_over(failure, "Dify does not know the stored conversation", out);
        }
        Err(failure)
    }

    fn start_over(
        &mut self,
        failure: ConnectorFailure,
        reason: &str,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        if !self
            .conversation
            .start_over(self.progress.has_begun(), reason, out)
        {
            return Err(failure);
        }
        self.progress = DifyProgress::new(&self.turn, &self.config);
        match self.config.resend_history {
            0 => self.stream(out),
            messages => out.push(MachineOutput::History(messages)),
        }
        Ok(())
    }
}
