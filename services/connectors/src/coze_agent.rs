//! Agents on Coze: coze.cn, coze.com, and Coze Studio.

mod config;
mod events;
mod request;

use serde_json::Value;

use crate::catalogue::Platform;
use crate::coze_agent::config::Config;
use crate::coze_agent::events::{CozeProgress, failure_of, is_lost};
use crate::machine::{HistoryMessage, Machine, MachineInput, MachineOutput, OutputQueue};
use crate::request::PlatformRequest;
use crate::turn::ConnectorTurn;
use crate::upstream::config::ConfigReader;
use crate::upstream::conversation::PlatformConversation;
use crate::upstream::failure::{ConnectorFailure, ErrorStatus, TransportError};
use crate::upstream::json::filled;
use crate::upstream::reader::UpstreamEvent;

pub(crate) const PLATFORM: Platform = Platform {
    name: "coze-agent",
    prefix: "coze",
    label: "Coze",
    description: "An agent on coze.cn, coze.com or Coze Studio",
    legacy: &[
        "plugin:langbot/coze-agent/default",
        "plugin:langbot-team/CozeAgent/default",
    ],
    takes_files: true,
    asks: false,
    form: include_str!("coze_agent/form.json"),
    start,
};

const CONVERSATION: &str = "external.conversation_id";

fn start(
    turn: ConnectorTurn,
    reader: &mut ConfigReader<'_>,
) -> Result<Box<dyn Machine>, ConnectorFailure> {
    let config = Config::read(reader)?;
    Ok(Box::new(Coze {
        conversation: PlatformConversation::of(&turn, CONVERSATION, |_| true),
        progress: CozeProgress::new(&turn),
        files: Vec::new(),
        history: Vec::new(),
        stage: CozeStage::Uploading,
        turn,
        config,
    }))
}

struct Coze {
    config: Config,
    turn: ConnectorTurn,
    conversation: PlatformConversation,
    progress: CozeProgress,
    /// The turn's files as parts of its message.
    files: Vec<Value>,
    history: Vec<HistoryMessage>,
    stage: CozeStage,
}

/// The open call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CozeStage {
    Uploading,
    Streaming,
}

impl Machine for Coze {
    fn on(&mut self, input: MachineInput, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        match input {
            MachineInput::Begin => self.upload(out),
            MachineInput::History(messages) => {
                self.history = messages;
                self.chat(out);
                Ok(())
            }
            MachineInput::Event(event) if self.stage == CozeStage::Uploading => {
                self.uploaded(&event, out)
            }
            MachineInput::Event(event) => self.event(&event, out),
            MachineInput::Ended => Err(self.of_stage(ConnectorFailure::ended_early())),
            MachineInput::Refused(refusal) => self.refused(refusal, out),
            MachineInput::Failed(error) => self.failed(error, out),
            MachineInput::Opened(_) | MachineInput::Answered(_) => Ok(()),
        }
    }

    fn is_ping(&self, event: &UpstreamEvent) -> bool {
        event.name.as_deref() == Some("ping")
    }

    fn stop(&self) -> Option<PlatformRequest> {
        let chat = self.progress.chat_id.as_deref()?;
        Some(request::cancel(&self.config, self.conversation.id()?, chat))
    }
}

impl Coze {
    /// Uploads the next file, or begins the chat if none is left.
    fn upload(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        while let Some(file) = self.turn.files.get(self.files.len()) {
            let Some(part) = request::remote_part(file) else {
                out.call(request::upload(&self.config, file)?);
                return Ok(());
            };
            self.files.push(part);
        }
        self.chat(out);
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
        let id = filled(&payload["data"]["id"])
            .ok_or_else(|| self.of_stage(ConnectorFailure::unreadable(&event.text)))?;
        self.files.push(request::part(file, "file_id", id));
        self.upload(out)
    }

    fn chat(&mut self, out: &mut OutputQueue) {
        self.stage = CozeStage::Streaming;
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
        let name = event.name.as_deref().unwrap_or_default();
        // This event has no JSON data.
        if name == "done" {
            return self.progress.complete(out);
        }
        let payload = event.json()?;
        // Coze reports early errors as a JSON document under status 200.
        if event.is_document {
            let failure =
                failure_of(&payload).unwrap_or_else(|| ConnectorFailure::unreadable(&event.text));
            return self.lost(failure, out);
        }
        if let Err(failure) = self.progress.event(name, &payload, out) {
            return self.lost(failure, out);
        }
        // Learn the id after the event was read: a failed chat must not confirm the conversation.
        if let Some(id) = filled(&payload["conversation_id"]) {
            self.conversation.learn(id, out);
        }
        if self.progress.is_done {
            return self.progress.complete(out);
        }
        Ok(())
    }

    fn refused(
        &mut self,
        refusal: ErrorStatus,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let code = refusal.json()["code"].as_i64();
        let failure = ConnectorFailure::from(refusal);
        let failure = match code {
            Some(code) => failure.detail("code", code.to_string()),
            None => failure,
        };
        match self.stage {
            CozeStage::Uploading => Err(self.of_stage(failure)),
            CozeStage::Streaming => self.lost(failure, out),
        }
    }

    fn failed(
        &mut self,
        error: TransportError,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let failure = self.of_stage(error.into());
        // Coze hangs for some lost conversations, so a retry with a new one may succeed.
        if self.stage == CozeStage::Streaming && error == TransportError::Idle {
            let reason = "Coze was silent about a stored conversation";
            return self.start_over(failure, reason, out);
        }
        Err(failure)
    }

    /// Adds the file's name to the failure of an upload.
    fn of_stage(&self, failure: ConnectorFailure) -> ConnectorFailure {
        match self.turn.files.get(self.files.len()) {
            Some(file) if self.stage == CozeStage::Uploading => failure.of_upload(&file.name),
            _ => failure,
        }
    }

    /// Starts over if Coze lost the stored conversation; otherwise returns the failure.
    fn lost(
        &mut self,
        failure: ConnectorFailure,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        if is_lost(&failure) {
            let reason = "Coze does not know the stored conversation";
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
        self.progress = CozeProgress::new(&self.turn);
        match self.config.resend_history {
            0 => self.chat(out),
            messages => out.push(MachineOutput::History(messages)),
        }
        Ok(())
    }
}
