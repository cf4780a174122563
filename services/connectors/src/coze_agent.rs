//! Agents on Coze: coze.cn, coze.com, and Coze Studio.

mod config;
mod events;
mod request;

use serde_json::Value;

use crate::coze_agent::config::Config;
use crate::coze_agent::events::{CozeProgress, failure_of};
use crate::mapping::{FileReference, MappingStep, PlatformMapping};
use crate::platform::{ConversationKind, FileSupport, HistoryUse, Platform};
use crate::request::PlatformRequest;
use crate::run::ConnectorRun;
use crate::turn::TurnFile;
use crate::upstream::failure::{ConnectorFailure, Mapped};
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
    files: FileSupport::Accepted,
    asks: false,
    conversation: ConversationKind::new("external.conversation_id", "Coze", "conversation")
        .hanging_if_lost(),
    history: HistoryUse::Resent(0),
    form: include_str!("coze_agent/form.json"),
    start: |_, reader| {
        Ok(Box::new(Coze {
            config: Config::read(reader)?,
            progress: CozeProgress::default(),
        }))
    },
};

struct Coze {
    config: Config,
    progress: CozeProgress,
}

impl PlatformMapping for Coze {
    fn request(&mut self, run: &mut ConnectorRun) -> Mapped<PlatformRequest> {
        Ok(request::chat(&self.config, run))
    }

    fn event(&mut self, event: &UpstreamEvent, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        let name = event.name.as_deref().unwrap_or_default();
        // This event has no JSON data.
        if name == "done" {
            return Ok(MappingStep::Complete);
        }
        let payload = event.json()?;
        // Coze reports early errors as a JSON document under status 200.
        if event.is_document {
            let unreadable = || ConnectorFailure::unreadable(&event.text);
            return Err(failure_of(&payload).unwrap_or_else(unreadable));
        }
        let step = self.progress.event(name, &payload, run)?;
        // Learn the id after the event was read: a failed chat must not confirm the conversation.
        if let Some(id) = filled(&payload["conversation_id"]) {
            run.learn(id);
        }
        Ok(step)
    }

    fn file(&self, file: &TurnFile, _run: &ConnectorRun) -> Mapped<FileReference> {
        Ok(match file.address() {
            Some(url) => FileReference::Inline(request::part(file, "file_url", url)),
            None => FileReference::Upload(request::upload(&self.config, file)?),
        })
    }

    fn uploaded(&self, file: &TurnFile, response: &Value) -> Mapped<Option<Value>> {
        if let Some(failure) = failure_of(response) {
            return Err(failure);
        }
        let id = filled(&response["data"]["id"]);
        Ok(id.map(|id| request::part(file, "file_id", id)))
    }

    fn is_ping(&mut self, event: &UpstreamEvent) -> bool {
        event.name.as_deref() == Some("ping")
    }

    fn refusal_code(&self, body: &Value) -> Option<String> {
        Some(body["code"].as_i64()?.to_string())
    }

    /// Code 4000 is used for wrong parameters of any kind.
    fn is_lost(&self, failure: &ConnectorFailure) -> bool {
        match failure.code() {
            "4002" | "4200" => true,
            "4000" => failure.names("conversation") || failure.has_status(404),
            _ => failure.has_status(404),
        }
    }

    fn reset(&mut self) {
        self.progress = CozeProgress::default();
    }

    fn stop(&self, task: &str, run: &ConnectorRun) -> Option<PlatformRequest> {
        Some(request::cancel(&self.config, run.conversation.id()?, task))
    }
}
