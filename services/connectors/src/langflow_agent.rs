//! Flows on Langflow. Streamed runs have no stop call: a closed connection stops them.

mod config;
mod events;
mod request;

use crate::catalogue::Platform;
use crate::langflow_agent::config::{Config, LangflowApi};
use crate::langflow_agent::events::LangflowProgress;
use crate::machine::{Machine, MachineInput, OutputQueue};
use crate::turn::ConnectorTurn;
use crate::upstream::config::ConfigReader;
use crate::upstream::conversation::PlatformConversation;
use crate::upstream::failure::{ConnectorFailure, ErrorStatus};
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

fn start(
    turn: ConnectorTurn,
    reader: &mut ConfigReader<'_>,
) -> Result<Box<dyn Machine>, ConnectorFailure> {
    let config = Config::read(reader)?;
    if let Some(file) = turn.files.first() {
        let fault = "cannot be handed over: flows take no files here";
        return Err(ConnectorFailure::upload(&file.name, fault));
    }
    let is_chat = config.input_type == "chat" && config.output_type == "chat";
    // The new API accepts flow ids only, no names, and chat messages only.
    let fits = is_chat && is_uuid(&config.flow);
    let api = config.api.unwrap_or(if fits {
        LangflowApi::V2
    } else {
        LangflowApi::V1
    });
    Ok(Box::new(LangflowAgent {
        session: PlatformConversation::of(&turn, SESSION, |_| true),
        progress: LangflowProgress::new(&turn),
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

struct LangflowAgent {
    config: Config,
    turn: ConnectorTurn,
    session: PlatformConversation,
    progress: LangflowProgress,
    api: LangflowApi,
}

impl Machine for LangflowAgent {
    fn on(&mut self, input: MachineInput, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        match input {
            MachineInput::Begin => {
                self.run(out);
                Ok(())
            }
            MachineInput::Event(event) => self.event(&event, out),
            MachineInput::Ended => Err(ConnectorFailure::ended_early()),
            MachineInput::Refused(refusal) => self.refused(refusal, out),
            MachineInput::Failed(error) => Err(error.into()),
            MachineInput::Opened(_) | MachineInput::History(_) | MachineInput::Answered(_) => {
                Ok(())
            }
        }
    }

    /// True for comment lines and event ids.
    fn is_ping(&self, event: &UpstreamEvent) -> bool {
        !event.is_document && !event.data_line().starts_with('{')
    }
}

impl LangflowAgent {
    fn run(&mut self, out: &mut OutputQueue) {
        if self.session.id().is_none() {
            let id = format!("runnel_{}", self.turn.run_id);
            self.session.learn(&id, out);
        }
        let session = self.session.id().unwrap_or_default();
        out.call(request::run(&self.config, self.api, &self.turn, session));
    }

    fn event(
        &mut self,
        event: &UpstreamEvent,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let unreadable = || ConnectorFailure::unreadable(&event.text);
        let payload = crate::upstream::json::parse(event.data_line()).ok_or_else(unreadable)?;
        let is_over = self.progress.event(&payload, out)?;
        if is_over {
            // Learn the id at the end only: a failed flow must not confirm the session.
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

    fn refused(
        &mut self,
        refusal: ErrorStatus,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        // With a configured API the operator's choice is final.
        let may_fall_back = self.api == LangflowApi::V2 && self.config.api.is_none();
        if may_fall_back && is_missing(&refusal) {
            self.api = LangflowApi::V1;
            self.run(out);
            return Ok(());
        }
        Err(refusal.into())
    }
}

/// True for servers without the new API, with it disabled, or with an earlier form of it.
fn is_missing(refusal: &ErrorStatus) -> bool {
    let code = refusal.json()["detail"]["code"].as_str().map(str::to_owned);
    match refusal.head.status {
        404 => code.is_none(),
        403 => code.as_deref() == Some("DEVELOPER_API_DISABLED"),
        405 | 422 | 501 => true,
        _ => false,
    }
}
