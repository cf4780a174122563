//! Applications on Tbox.

mod config;
mod events;
mod request;

use serde_json::Value;

use crate::catalogue::Platform;
use crate::machine::{HistoryMessage, Machine, MachineInput, MachineOutput, OutputQueue};
use crate::tbox_agent::config::Config;
use crate::tbox_agent::events::{TboxProgress, failure_of, is_lost};
use crate::turn::ConnectorTurn;
use crate::upstream::config::ConfigReader;
use crate::upstream::conversation::PlatformConversation;
use crate::upstream::failure::{ConnectorFailure, ErrorStatus, TransportError};
use crate::upstream::json::text_of;
use crate::upstream::reader::UpstreamEvent;

pub(crate) const PLATFORM: Platform = Platform {
    name: "tbox-agent",
    prefix: "tbox",
    label: "Tbox",
    description: "An application on Tbox (tbox.cn)",
    legacy: &[
        "plugin:langbot/tbox-agent/default",
        "plugin:langbot-team/TboxAgent/default",
    ],
    takes_files: true,
    asks: false,
    form: include_str!("tbox_agent/form.json"),
    start,
};

const CONVERSATION: &str = "external.conversation_id";

fn start(
    turn: ConnectorTurn,
    reader: &mut ConfigReader<'_>,
) -> Result<Box<dyn Machine>, ConnectorFailure> {
    let config = Config::read(reader)?;
    Ok(Box::new(Tbox {
        conversation: PlatformConversation::of(&turn, CONVERSATION, |_| true),
        progress: TboxProgress::new(&turn),
        files: Vec::new(),
        history: Vec::new(),
        stage: TboxStage::Uploading,
        turn,
        config,
    }))
}

struct Tbox {
    config: Config,
    turn: ConnectorTurn,
    conversation: PlatformConversation,
    progress: TboxProgress,
    /// The turn's files in Tbox's form.
    files: Vec<Value>,
    history: Vec<HistoryMessage>,
    stage: TboxStage,
}

/// The open call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TboxStage {
    Uploading,
    Streaming,
}

impl Machine for Tbox {
    fn on(&mut self, input: MachineInput, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        match input {
            MachineInput::Begin => self.upload(out),
            MachineInput::History(messages) => {
                self.history = messages;
                self.chat(out);
                Ok(())
            }
            MachineInput::Event(event) if self.stage == TboxStage::Uploading => {
                self.uploaded(&event, out)
            }
            MachineInput::Event(event) => self.event(&event, out),
            MachineInput::Ended if self.stage == TboxStage::Streaming => self.progress.ended(out),
            MachineInput::Ended => Err(self.of_stage(ConnectorFailure::ended_early())),
            MachineInput::Refused(refusal) => self.refused(refusal, out),
            MachineInput::Failed(error) => self.failed(error, out),
            MachineInput::Opened(_) | MachineInput::Answered(_) => Ok(()),
        }
    }

    fn is_ping(&self, event: &UpstreamEvent) -> bool {
        matches!(event.name.as_deref(), Some("ping" | "heartbeat"))
    }
}

impl Tbox {
    /// Uploads the next file, or begins the chat if none is left.
    fn upload(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        match self.turn.files.get(self.files.len()) {
            Some(file) => out.call(request::upload(&self.config, file)?),
            None => self.chat(out),
        }
        Ok(())
    }

    fn uploaded(
        &mut self,
        event: &UpstreamEvent,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let Some(file) = self.turn.files.get(self.files.len()) else {
            return Ok(());
        };
        let payload = event.json().map_err(|failure| self.of_stage(failure))?;
        if let Some(failure) = failure_of(&payload) {
            return Err(self.of_stage(failure));
        }
        let id = text_of(&payload["data"]).filter(|id| !id.trim().is_empty());
        let id = id.ok_or_else(|| self.of_stage(ConnectorFailure::unreadable(&event.text)))?;
        self.files.push(request::part(file, &id));
        self.upload(out)
    }

    fn chat(&mut self, out: &mut OutputQueue) {
        self.stage = TboxStage::Streaming;
        out.call(request::chat(
            &self.config,
            &self.turn,
            &self.files,
            &self.history,
            self.conversation.id(),
        ));
    }

    fn event(
        &mut self,
        event: &UpstreamEvent,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        if event.text.trim() == "[DONE]" {
            return self.progress.complete(out);
        }
        let payload = event.json()?;
        let read = if event.is_document {
            self.progress.document(&payload, out)
        } else {
            let name = event.name.as_deref().unwrap_or_default();
            self.progress.event(name, &payload, out)
        };
        if let Err(failure) = read {
            return self.lost(failure, out);
        }
        if let Some(id) = self.progress.conversation.take() {
            self.conversation.learn(&id, out);
        }
        if event.is_document {
            return self.progress.complete(out);
        }
        Ok(())
    }

    fn refused(
        &mut self,
        refusal: ErrorStatus,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let code = text_of(&refusal.json()["errorCode"]);
        let failure = ConnectorFailure::from(refusal);
        let failure = match code {
            Some(code) => failure.detail("code", code),
            None => failure,
        };
        match self.stage {
            TboxStage::Uploading => Err(self.of_stage(failure)),
            TboxStage::Streaming => self.lost(failure, out),
        }
    }

    fn failed(
        &mut self,
        error: TransportError,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        // The answer is complete, so a later failure does not matter.
        if self.progress.is_done() {
            return self.progress.complete(out);
        }
        let failure = self.of_stage(error.into());
        if self.stage == TboxStage::Streaming && error == TransportError::Idle {
            let reason = "Tbox was silent about a stored conversation";
            return self.start_over(failure, reason, out);
        }
        Err(failure)
    }

    /// Adds the file's name to the failure of an upload.
    fn of_stage(&self, failure: ConnectorFailure) -> ConnectorFailure {
        match self.turn.files.get(self.files.len()) {
            Some(file) if self.stage == TboxStage::Uploading => failure.of_upload(&file.name),
            _ => failure,
        }
    }

    /// Starts over if Tbox lost the stored conversation; otherwise returns the failure.
    fn lost(
        &mut self,
        failure: ConnectorFailure,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        if is_lost(&failure) {
            let reason = "Tbox does not know the stored conversation";
            return self.start_over(failure, reason, out);
        }
        Err(failure)
    }

    fn start_over(
        &mut self,
        failure: ConnectorFailure,
        reason: &str,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let has_begun = self.progress.has_begun();
        if !self.conversation.start_over(has_begun, reason, out) {
            return Err(failure);
        }
        // Remains of the failed stream must not reach the new answer.
        self.progress = TboxProgress::new(&self.turn);
        match self.config.resend_history {
            0 => self.chat(out),
            messages => out.push(MachineOutput::History(messages)),
        }
        Ok(())
    }
}
