//! Any agent over HTTP: a mapping of the operator says what is sent and what the answer means.

mod config;
mod events;
mod filter;
mod request;

use std::cell::RefCell;

use crate::catalogue::Platform;
use crate::http_agent::config::Config;
use crate::http_agent::events::{Reply, Told};
use crate::machine::{HistoryMessage, Input, Machine, Outbox, Output};
use crate::turn::Turn;
use crate::upstream::config::ConfigReader;
use crate::upstream::conversation::Conversation;
use crate::upstream::failure::{Failure, TransportError};
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

fn start(turn: Turn, reader: &mut ConfigReader<'_>) -> Result<Box<dyn Machine>, Failure> {
    let config = Config::read(reader)?;
    Ok(Box::new(HttpAgent {
        session: Conversation::of(&turn, SESSION, |_| config.keeps_session()),
        reply: Reply::new(&turn),
        history: Vec::new(),
        mapped: RefCell::new(None),
        turn,
        config,
    }))
}

struct HttpAgent {
    config: Config,
    turn: Turn,
    session: Conversation,
    history: Vec<HistoryMessage>,
    reply: Reply,
    /// The meaning of the event that comes next: it is found once, by the question whether it is a ping.
    mapped: RefCell<Option<Result<Told, Failure>>>,
}

impl Machine for HttpAgent {
    fn on(&mut self, input: Input, out: &mut Outbox) -> Result<(), Failure> {
        match input {
            Input::Begin => self.begin(out),
            Input::History(messages) => {
                self.history = messages;
                self.call(out)
            }
            Input::Event(event) => self.event(&event, out),
            // Nothing behind the end of an answer can fail it.
            Input::Ended | Input::Failed(_) if self.reply.is_final => self.reply.complete(out),
            Input::Ended if self.config.ends_with_body() => self.reply.complete(out),
            Input::Ended => Err(Failure::ended_early()),
            Input::Refused(refusal) if refusal.head.status == 404 => self.lost(
                refusal.into(),
                "the agent does not know the stored session",
                out,
            ),
            Input::Refused(refusal) => Err(refusal.into()),
            Input::Failed(TransportError::Idle) => self.lost(
                TransportError::Idle.into(),
                "the agent was silent about a stored session",
                out,
            ),
            Input::Failed(error) => Err(error.into()),
            Input::Opened(_) | Input::Answered(_) => Ok(()),
        }
    }

    /// An event that means nothing.
    fn is_ping(&self, event: &UpstreamEvent) -> bool {
        let mapped = events::map(&self.config, event);
        let is_ping = !event.is_document && mapped.as_ref().is_ok_and(Told::is_nothing);
        self.mapped.replace(Some(mapped));
        is_ping
    }
}

impl HttpAgent {
    fn begin(&mut self, out: &mut Outbox) -> Result<(), Failure> {
        if let Some(file) = self.turn.files.first().filter(|_| !self.config.takes_files) {
            let fault = "is not sent: say `files = true` once the filter /body uses .input.files";
            return Err(Failure::upload(&file.name, fault));
        }
        match self.config.history {
            0 => self.call(out),
            messages => {
                out.push(Output::History(messages));
                Ok(())
            }
        }
    }

    fn call(&mut self, out: &mut Outbox) -> Result<(), Failure> {
        let id = self.session.id();
        out.call(request::request(
            &self.config,
            &self.turn,
            &self.history,
            id,
        )?);
        Ok(())
    }

    fn event(&mut self, event: &UpstreamEvent, out: &mut Outbox) -> Result<(), Failure> {
        let mapped = self.mapped.take();
        let told = mapped.unwrap_or_else(|| events::map(&self.config, event))?;
        if let Some(failure) = told.error {
            return Err(failure);
        }
        if let Some(id) = &told.session {
            self.session.learn(id, out);
        }
        self.reply.tell(told, out)
    }

    /// The same call once more without the stored session, unless something was told.
    fn lost(&mut self, failure: Failure, reason: &str, out: &mut Outbox) -> Result<(), Failure> {
        let has_begun = self.reply.has_begun();
        if !self.session.start_over(has_begun, reason, out) {
            return Err(failure);
        }
        self.reply = Reply::new(&self.turn);
        self.call(out)
    }
}
