//! Any agent over HTTP: the operator maps the request and the answer by filters.

mod config;
mod events;
mod filter;
mod request;

use std::cell::RefCell;

use crate::catalogue::Platform;
use crate::http_agent::config::Config;
use crate::http_agent::events::{EventMeaning, HttpReply};
use crate::machine::{HistoryMessage, Machine, MachineInput, MachineOutput, OutputQueue};
use crate::turn::ConnectorTurn;
use crate::upstream::config::ConfigReader;
use crate::upstream::conversation::PlatformConversation;
use crate::upstream::failure::{ConnectorFailure, TransportError};
use crate::upstream::reader::UpstreamEvent;

pub(crate) const PLATFORM: Platform = Platform {
    name: "http-agent",
    prefix: "http_agent",
    label: "HTTP agent",
    description: "Any agent over HTTP: jq filters map the request and the events of its answer",
    legacy: &[],
    takes_files: true,
    asks: false,
    form: include_str!("http_agent/form.json"),
    start,
};

const SESSION: &str = "external.session_id";

fn start(
    turn: ConnectorTurn,
    reader: &mut ConfigReader<'_>,
) -> Result<Box<dyn Machine>, ConnectorFailure> {
    let config = Config::read(reader)?;
    Ok(Box::new(HttpAgent {
        session: PlatformConversation::of(&turn, SESSION, |_| config.keeps_session()),
        reply: HttpReply::new(&turn),
        history: Vec::new(),
        mapped: RefCell::new(None),
        turn,
        config,
    }))
}

struct HttpAgent {
    config: Config,
    turn: ConnectorTurn,
    session: PlatformConversation,
    history: Vec<HistoryMessage>,
    reply: HttpReply,
    /// The meaning of the next event. `is_ping` maps it, and `event` uses it: filters are expensive.
    mapped: RefCell<Option<Result<EventMeaning, ConnectorFailure>>>,
}

impl Machine for HttpAgent {
    fn on(&mut self, input: MachineInput, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        match input {
            MachineInput::Begin => self.begin(out),
            MachineInput::History(messages) => {
                self.history = messages;
                self.call(out)
            }
            MachineInput::Event(event) => self.event(&event, out),
            // The answer is complete, so a later failure does not matter.
            MachineInput::Ended | MachineInput::Failed(_) if self.reply.is_final => {
                self.reply.complete(out)
            }
            MachineInput::Ended if self.config.ends_with_body() => self.reply.complete(out),
            MachineInput::Ended => Err(ConnectorFailure::ended_early()),
            MachineInput::Refused(refusal) if refusal.head.status == 404 => self.lost(
                refusal.into(),
                "the agent does not know the stored session",
                out,
            ),
            MachineInput::Refused(refusal) => Err(refusal.into()),
            MachineInput::Failed(TransportError::Idle) => self.lost(
                TransportError::Idle.into(),
                "the agent was silent about a stored session",
                out,
            ),
            MachineInput::Failed(error) => Err(error.into()),
            MachineInput::Opened(_) | MachineInput::Answered(_) => Ok(()),
        }
    }

    /// True for an event without meaning.
    fn is_ping(&self, event: &UpstreamEvent) -> bool {
        let mapped = events::map(&self.config, event);
        let is_ping = !event.is_document && mapped.as_ref().is_ok_and(EventMeaning::is_nothing);
        // The session asks for the ping first, then passes the same event.
        self.mapped.replace(Some(mapped));
        is_ping
    }
}

impl HttpAgent {
    fn begin(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        if let Some(file) = self.turn.files.first().filter(|_| !self.config.takes_files) {
            let fault = "is not sent: say `files = true` once the filter /body uses .input.files";
            return Err(ConnectorFailure::upload(&file.name, fault));
        }
        match self.config.history {
            0 => self.call(out),
            messages => {
                out.push(MachineOutput::History(messages));
                Ok(())
            }
        }
    }

    fn call(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        let id = self.session.id();
        out.call(request::request(
            &self.config,
            &self.turn,
            &self.history,
            id,
        )?);
        Ok(())
    }

    fn event(
        &mut self,
        event: &UpstreamEvent,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let mapped = self.mapped.take();
        let meaning = mapped.unwrap_or_else(|| events::map(&self.config, event))?;
        if let Some(failure) = meaning.error {
            return Err(failure);
        }
        if let Some(id) = &meaning.session {
            self.session.learn(id, out);
        }
        self.reply.tell(meaning, out)
    }

    /// Repeats the call without the stored session, unless results exist.
    fn lost(
        &mut self,
        failure: ConnectorFailure,
        reason: &str,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let has_begun = self.reply.has_begun();
        if !self.session.start_over(has_begun, reason, out) {
            return Err(failure);
        }
        self.reply = HttpReply::new(&self.turn);
        self.call(out)
    }
}
