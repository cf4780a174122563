//! Applications on Tbox.

mod config;
mod events;
mod request;

use serde_json::Value;

use crate::catalogue::Platform;
use crate::machine::{HistoryMessage, Input, Machine, Outbox, Output};
use crate::tbox_agent::config::Config;
use crate::tbox_agent::events::{Progress, failure_of, is_lost};
use crate::turn::Turn;
use crate::upstream::config::ConfigReader;
use crate::upstream::conversation::Conversation;
use crate::upstream::failure::{Failure, Refusal, TransportError};
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

fn start(turn: Turn, reader: &mut ConfigReader<'_>) -> Result<Box<dyn Machine>, Failure> {
    let config = Config::read(reader)?;
    Ok(Box::new(Tbox {
        conversation: Conversation::of(&turn, CONVERSATION, |_| true),
        progress: Progress::new(&turn),
        files: Vec::new(),
        history: Vec::new(),
        stage: Stage::Uploading,
        turn,
        config,
    }))
}

struct Tbox {
    config: Config,
    turn: Turn,
    conversation: Conversation,
    progress: Progress,
    /// Files of the turn as Tbox refers to them.
    files: Vec<Value>,
    history: Vec<HistoryMessage>,
    stage: Stage,
}

/// The call that is open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Uploading,
    Streaming,
}

impl Machine for Tbox {
    fn on(&mut self, input: Input, out: &mut Outbox) -> Result<(), Failure> {
        match input {
            Input::Begin => self.upload(out),
            Input::History(messages) => {
                self.history = messages;
                self.chat(out);
                Ok(())
            }
            Input::Event(event) if self.stage == Stage::Uploading => self.uploaded(&event, out),
            Input::Event(event) => self.event(&event, out),
            Input::Ended if self.stage == Stage::Streaming => self.progress.ended(out),
            Input::Ended => Err(self.of_stage(Failure::ended_early())),
            Input::Refused(refusal) => self.refused(refusal, out),
            Input::Failed(error) => self.failed(error, out),
            Input::Opened(_) | Input::Answered(_) => Ok(()),
        }
    }

    fn is_ping(&self, event: &UpstreamEvent) -> bool {
        matches!(event.name.as_deref(), Some("ping" | "heartbeat"))
    }
}

impl Tbox {
    /// Uploads the next file, or begins the chat.
    fn upload(&mut self, out: &mut Outbox) -> Result<(), Failure> {
        match self.turn.files.get(self.files.len()) {
            Some(file) => out.call(request::upload(&self.config, file)?),
            None => self.chat(out),
        }
        Ok(())
    }

    fn uploaded(&mut self, event: &UpstreamEvent, out: &mut Outbox) -> Result<(), Failure> {
        let Some(file) = self.turn.files.get(self.files.len()) else {
            return Ok(());
        };
        let told = event.json().map_err(|failure| self.of_stage(failure))?;
        if let Some(failure) = failure_of(&told) {
            return Err(self.of_stage(failure));
        }
        let id = text_of(&told["data"]).filter(|id| !id.trim().is_empty());
        let id = id.ok_or_else(|| self.of_stage(Failure::unreadable(&event.text)))?;
        self.files.push(request::part(file, &id));
        self.upload(out)
    }

    fn chat(&mut self, out: &mut Outbox) {
        self.stage = Stage::Streaming;
        out.call(request::chat(
            &self.config,
            &self.turn,
            &self.files,
            &self.history,
            self.conversation.id(),
        ));
    }

    fn event(&mut self, event: &UpstreamEvent, out: &mut Outbox) -> Result<(), Failure> {
        if event.text.trim() == "[DONE]" {
            return self.progress.complete(out);
        }
        let told = event.json()?;
        let read = if event.is_document {
            self.progress.document(&told, out)
        } else {
            let name = event.name.as_deref().unwrap_or_default();
            self.progress.event(name, &told, out)
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

    fn refused(&mut self, refusal: Refusal, out: &mut Outbox) -> Result<(), Failure> {
        let code = text_of(&refusal.json()["errorCode"]);
        let failure = Failure::from(refusal);
        let failure = match code {
            Some(code) => failure.detail("code", code),
            None => failure,
        };
        match self.stage {
            Stage::Uploading => Err(self.of_stage(failure)),
            Stage::Streaming => self.lost(failure, out),
        }
    }

    fn failed(&mut self, error: TransportError, out: &mut Outbox) -> Result<(), Failure> {
        if self.progress.is_done() {
            return self.progress.complete(out);
        }
        let failure = self.of_stage(error.into());
        if self.stage == Stage::Streaming && error == TransportError::Idle {
            let reason = "Tbox was silent about a stored conversation";
            return self.start_over(failure, reason, out);
        }
        Err(failure)
    }

    /// A failure, which names the file where an upload failed.
    fn of_stage(&self, failure: Failure) -> Failure {
        match self.turn.files.get(self.files.len()) {
            Some(file) if self.stage == Stage::Uploading => failure.of_upload(&file.name),
            _ => failure,
        }
    }

    /// A failure, unless it is about a stored conversation that Tbox lost.
    fn lost(&mut self, failure: Failure, out: &mut Outbox) -> Result<(), Failure> {
        if is_lost(&failure) {
            let reason = "Tbox does not know the stored conversation";
            return self.start_over(failure, reason, out);
        }
        Err(failure)
    }

    fn start_over(
        &mut self,
        failure: Failure,
        reason: &str,
        out: &mut Outbox,
    ) -> Result<(), Failure> {
        let has_begun = self.progress.has_begun();
        if !self.conversation.start_over(has_begun, reason, out) {
            return Err(failure);
        }
        self.progress = Progress::new(&self.turn);
        match self.config.resend_history {
            0 => self.chat(out),
            messages => out.push(Output::History(messages)),
        }
        Ok(())
    }
}
