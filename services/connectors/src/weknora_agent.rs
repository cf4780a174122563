//! Agents and knowledge chats on WeKnora.

mod config;
mod events;
mod request;

use crate::catalogue::Platform;
use crate::machine::{HistoryMessage, Machine, MachineInput, MachineOutput, OutputQueue};
use crate::request::PlatformRequest;
use crate::turn::ConnectorTurn;
use crate::upstream::config::ConfigReader;
use crate::upstream::conversation::PlatformConversation;
use crate::upstream::failure::{ConnectorFailure, ErrorStatus, message_of};
use crate::upstream::json::filled;
use crate::upstream::reader::UpstreamEvent;
use crate::weknora_agent::config::Config;
use crate::weknora_agent::events::WeKnoraProgress;

pub(crate) const PLATFORM: Platform = Platform {
    name: "weknora-agent",
    prefix: "weknora",
    label: "WeKnora",
    description: "An agent or a knowledge chat on WeKnora",
    legacy: &[
        "plugin:langbot/weknora-agent/default",
        "plugin:langbot-team/WeKnoraAgent/default",
    ],
    takes_files: true,
    asks: false,
    form: include_str!("weknora_agent/form.json"),
    start,
};

const SESSION: &str = "external.session_id";

fn start(
    turn: ConnectorTurn,
    reader: &mut ConfigReader<'_>,
) -> Result<Box<dyn Machine>, ConnectorFailure> {
    let config = Config::read(reader)?;
    // Fail for unsupported files before a session is created for them.
    request::images(&turn)?;
    Ok(Box::new(WeKnora {
        session: PlatformConversation::of(&turn, SESSION, |_| true),
        progress: WeKnoraProgress::new(&turn),
        history: Vec::new(),
        is_creating: false,
        turn,
        config,
    }))
}

struct WeKnora {
    config: Config,
    turn: ConnectorTurn,
    session: PlatformConversation,
    history: Vec<HistoryMessage>,
    progress: WeKnoraProgress,
    /// The open call creates a session.
    is_creating: bool,
}

impl Machine for WeKnora {
    fn on(&mut self, input: MachineInput, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        match input {
            MachineInput::Begin if self.session.id().is_some() => self.chat(out),
            MachineInput::Begin => {
                self.create(out);
                Ok(())
            }
            MachineInput::History(messages) => {
                self.history = messages;
                self.create(out);
                Ok(())
            }
            MachineInput::Opened(_) => {
                self.opened(out);
                Ok(())
            }
            MachineInput::Event(event) => self.event(&event, out),
            // Servers omit the end mark of the run, or send it late.
            MachineInput::Ended | MachineInput::Failed(_) if self.progress.is_done => {
                self.progress.complete(out)
            }
            MachineInput::Ended => Err(ConnectorFailure::ended_early()),
            MachineInput::Refused(refusal) => self.refused(refusal, out),
            MachineInput::Failed(error) => Err(error.into()),
            MachineInput::Answered(_) => Ok(()),
        }
    }

    fn stop(&self) -> Option<PlatformRequest> {
        let message = self.progress.message_id.as_deref()?;
        Some(request::stop(&self.config, self.session.id()?, message))
    }
}

impl WeKnora {
    fn create(&mut self, out: &mut OutputQueue) {
        self.is_creating = true;
        out.call(request::session(&self.config, &self.turn.user));
    }

    fn chat(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        self.is_creating = false;
        let session = self.session.id().unwrap_or_default();
        out.call(request::chat(
            &self.config,
            &self.turn,
            &self.history,
            session,
        )?);
        Ok(())
    }

    fn opened(&mut self, out: &mut OutputQueue) {
        // The accepted chat confirms the stored session.
        if let Some(id) = self.session.id().map(str::to_owned) {
            self.session.learn(&id, out);
        }
    }

    fn event(
        &mut self,
        event: &UpstreamEvent,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let payload = event.json()?;
        if payload["success"] == false {
            let message = message_of(&payload).unwrap_or_default();
            return Err(ConnectorFailure::reported(None, None, message));
        }
        if self.is_creating {
            let id = filled(&payload["data"]["id"]);
            let id = id.ok_or_else(|| ConnectorFailure::unreadable(&event.text))?;
            self.session.learn(id, out);
            return self.chat(out);
        }
        if event.is_document && payload.get("response_type").is_none() {
            return Err(ConnectorFailure::unreadable(&event.text));
        }
        if self.progress.event(&payload, out)? {
            return self.progress.complete(out);
        }
        Ok(())
    }

    fn refused(
        &mut self,
        refusal: ErrorStatus,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let message = refusal.message().unwrap_or_default().to_ascii_lowercase();
        let is_unknown = message.contains("session") && message.contains("not found");
        let is_lost = !self.is_creating && (refusal.head.status == 404 || is_unknown);
        let reason = "WeKnora does not know the stored session";
        if !is_lost
            || !self
                .session
                .start_over(self.progress.has_begun(), reason, out)
        {
            return Err(refusal.into());
        }
        match self.config.resend_history {
            0 => self.create(out),
            messages => out.push(MachineOutput::History(messages)),
        }
        Ok(())
    }
}
