//! Workflows on n8n, called by a webhook or a chat trigger.

mod config;
mod events;
mod request;

use crate::mapping::{MappingStep, PlatformMapping};
use crate::n8n_agent::config::{Config, Handling};
use crate::n8n_agent::events::N8nReply;
use crate::platform::{ConversationKind, FileSupport, HistoryUse, Platform};
use crate::request::PlatformRequest;
use crate::run::ConnectorRun;
use crate::upstream::failure::Mapped;
use crate::upstream::reader::UpstreamEvent;

pub(crate) const PLATFORM: Platform = Platform {
    name: "n8n-agent",
    prefix: "n8n",
    label: "n8n",
    description: "A workflow on n8n behind a webhook or a chat trigger",
    legacy: &[
        "plugin:langbot/n8n-agent/default",
        "plugin:langbot-team/N8nAgent/default",
    ],
    files: FileSupport::Refused("n8n takes no files"),
    asks: false,
    conversation: ConversationKind::new("external.conversation_id", "n8n", "conversation"),
    history: HistoryUse::Unused,
    form: include_str!("n8n_agent/form.json"),
    start: |_, reader| {
        Ok(Box::new(N8n {
            config: Config::read(reader)?,
            reply: N8nReply::default(),
        }))
    },
};

struct N8n {
    config: Config,
    reply: N8nReply,
}

impl PlatformMapping for N8n {
    fn request(&mut self, run: &mut ConnectorRun) -> Mapped<PlatformRequest> {
        request::call(&self.config, run)
    }

    fn event(&mut self, event: &UpstreamEvent, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        if self.config.handling == Handling::Reply {
            let key = &self.config.output_key;
            self.reply.event(event, key, &mut run.answer)?;
        }
        Ok(MappingStep::Read)
    }

    fn ended(&mut self, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        if self.config.handling == Handling::Ignore {
            // The run has no message.
            run.answer.out.finish("stop", None);
            return Ok(MappingStep::Read);
        }
        self.reply.end(&self.config.output_key, run)?;
        Ok(MappingStep::Complete)
    }
}
