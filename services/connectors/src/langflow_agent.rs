//! Flows on Langflow. Streamed runs have no stop call: closing the connection stops them.

mod config;
mod events;
mod request;

use crate::catalogue::Platform;
use crate::langflow_agent::config::{Api, Config};
use crate::langflow_agent::events::Progress;
use crate::machine::{Input, Machine, Outbox};
use crate::turn::Turn;
use crate::upstream::config::ConfigReader;
use crate::upstream::conversation::Conversation;
use crate::upstream::failure::{Failure, Refusal};
use crate::upstream::reader::UpstreamEvent;

pub(crate) const PLATFORM: Platform = Platform {
    name: "langflow-agent",
    prefix: "langflow",
    label: "Langflow",
    description: "A flow on Langflow",
    legacy: &[
        "plugin:langbot/langflow-agent/default",
        "plugin:langbot-team/LangflowAgent/default",
    ],
    takes_files: false,
    asks: false,
    form: include_str!("langflow_agent/form.json"),
    start,
};

const SESSION: &str = "external.session_id";

fn start(turn: Turn, reader: &mut ConfigReader<'_>) -> Result<Box<dyn Machine>, Failure> {
    let config = Config::read(reader)?;
    if let Some(file) = turn.files.first() {
        let fault = "cannot be handed over: flows take no files here";
        return Err(Failure::upload(&file.name, fault));
    }
    let is_chat = config.input_type == "chat" && config.output_type == "chat";
    // The new API takes ids alone, and messages alone.
    let fits = is_chat && is_uuid(&config.flow);
    let api = config.api.unwrap_or(if fits { Api::V2 } else { Api::V1 });
    Ok(Box::new(Langflow {
        session: Conversation::of(&turn, SESSION, |_| true),
        progress: Progress::new(&turn),
        api,
        turn,
        config,
    }))
}

fn is_uuid(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_hexdigit).count();
    let dashes = text.bytes().filter(|byte| *byte == b'-').count();
    digits == 32 && digits + dashes == text.len()
}

struct Langflow {
    config: Config,
    turn: Turn,
    session: Conversation,
    progress: Progress,
    api: Api,
}

impl Machine for Langflow {
    fn on(&mut self, input: Input, out: &mut Outbox) -> Result<(), Failure> {
        match input {
            Input::Begin => {
                self.run(out);
                Ok(())
            }
            Input::Event(event) => self.event(&event, out),
            Input::Ended => Err(Failure::ended_early()),
            Input::Refused(refusal) => self.refused(refusal, out),
            Input::Failed(error) => Err(error.into()),
            Input::Opened(_) | Input::History(_) | Input::Answered(_) => Ok(()),
        }
    }

    /// Lines of comments and ids.
    fn is_ping(&self, event: &UpstreamEvent) -> bool {
        !event.is_document && !event.data_line().starts_with('{')
    }
}

impl Langflow {
    fn run(&mut self, out: &mut Outbox) {
        if self.session.id().is_none() {
            let id = format!("runnel_{}", self.turn.run_id);
            self.session.learn(&id, out);
        }
        let session = self.session.id().unwrap_or_default();
        out.call(request::run(&self.config, self.api, &self.turn, session));
    }

    fn event(&mut self, event: &UpstreamEvent, out: &mut Outbox) -> Result<(), Failure> {
        let unreadable = || Failure::unreadable(&event.text);
        let told = crate::upstream::json::parse(event.data_line()).ok_or_else(unreadable)?;
        let is_over = self.progress.event(&told, out)?;
        if is_over {
            if let Some(id) = self.progress.session.take() {
                self.session.learn(&id, out);
            }
            return self.progress.complete(out);
        }
        if event.is_document {
            return Err(unreadable());
        }
        Ok(())
    }

    fn refused(&mut self, refusal: Refusal, out: &mut Outbox) -> Result<(), Failure> {
        let may_fall_back = self.api == Api::V2 && self.config.api.is_none();
        if may_fall_back && is_missing(&refusal) {
            self.api = Api::V1;
            self.run(out);
            return Ok(());
        }
        Err(refusal.into())
    }
}

/// True for servers without the new API, with it switched off, or with an earlier form of it.
fn is_missing(refusal: &Refusal) -> bool {
    let code = refusal.json()["detail"]["code"].as_str().map(str::to_owned);
    match refusal.head.status {
        404 => code.is_none(),
        403 => code.as_deref() == Some("DEVELOPER_API_DISABLED"),
        405 | 422 | 501 => true,
        _ => false,
    }
}
