//! Flows on Langflow. Streamed runs have no stop call: a closed connection stops them.

mod config;
mod events;
mod request;

use crate::langflow_agent::config::{Config, LangflowApi};
use crate::langflow_agent::events::LangflowProgress;
use crate::mapping::{MappingStep, PlatformMapping};
use crate::platform::{ConversationKind, FileSupport, HistoryUse, Platform};
use crate::request::PlatformRequest;
use crate::run::ConnectorRun;
use crate::upstream::failure::{ConnectorFailure, ErrorStatus, Mapped};
use crate::upstream::json::parse;
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
    files: FileSupport::Refused("flows take no files here"),
    asks: false,
    conversation: ConversationKind::new("external.session_id", "Langflow", "session"),
    history: HistoryUse::Unused,
    form: include_str!("langflow_agent/form.json"),
    start: |_, reader| {
        let config = Config::read(reader)?;
        let is_chat = config.input_type == "chat" && config.output_type == "chat";
        // The new API accepts flow ids only, no names, and chat messages only.
        let default = if is_chat && is_uuid(&config.flow) {
            LangflowApi::V2
        } else {
            LangflowApi::V1
        };
        Ok(Box::new(LangflowAgent {
            progress: LangflowProgress::default(),
            api: config.api.unwrap_or(default),
            config,
        }))
    },
};

struct LangflowAgent {
    config: Config,
    progress: LangflowProgress,
    api: LangflowApi,
}

impl PlatformMapping for LangflowAgent {
    fn request(&mut self, run: &mut ConnectorRun) -> Mapped<PlatformRequest> {
        let session = run.own_conversation();
        Ok(request::run(&self.config, self.api, &run.turn, &session))
    }

    fn event(&mut self, event: &UpstreamEvent, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        let unreadable = || ConnectorFailure::unreadable(&event.text);
        let payload = parse(event.data_line()).ok_or_else(unreadable)?;
        if self.progress.event(&payload, &mut run.answer)? {
            // Learn the id at the end only: a failed flow must not confirm the session.
            if let Some(id) = self.progress.session.take() {
                run.learn(&id);
            }
            return Ok(MappingStep::Complete);
        }
        if event.is_document {
            return Err(unreadable());
        }
        Ok(MappingStep::Read)
    }

    /// True for comment lines and event ids.
    fn is_ping(&mut self, event: &UpstreamEvent) -> bool {
        !event.is_document && !event.data_line().starts_with('{')
    }

    fn refused(
        &mut self,
        refusal: &ErrorStatus,
        failure: ConnectorFailure,
        _run: &mut ConnectorRun,
    ) -> Mapped<MappingStep> {
        // With a configured API the operator's choice is final.
        let may_fall_back = self.api == LangflowApi::V2 && self.config.api.is_none();
        if may_fall_back && is_missing(refusal) {
            self.api = LangflowApi::V1;
            return Ok(MappingStep::Send);
        }
        Err(failure)
    }

    fn finish(&mut self, run: &mut ConnectorRun) -> Mapped {
        self.progress.finish(&mut run.answer);
        Ok(())
    }
}

fn is_uuid(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_hexdigit).count();
    let dashes = text.bytes().filter(|byte| *byte == b'-').count();
    digits == 32 && digits + dashes == text.len()
}

/// True for servers without the new API, with it disabled, or with an earlier form of it.
fn is_missing(refusal: &ErrorStatus) -> bool {
    let body = refusal.json();
    let code = body["detail"]["code"].as_str();
    match refusal.head.status {
        404 => code.is_none(),
        403 => code == Some("DEVELOPER_API_DISABLED"),
        405 | 422 | 501 => true,
        _ => false,
    }
}
