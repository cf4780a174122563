//! Applications on Tbox.

mod config;
mod events;
mod request;

use serde_json::Value;

use crate::mapping::{FileReference, MappingStep, PlatformMapping};
use crate::platform::{ConversationKind, FileSupport, HistoryUse, Platform};
use crate::request::PlatformRequest;
use crate::run::ConnectorRun;
use crate::tbox_agent::config::Config;
use crate::tbox_agent::events::{TboxProgress, failure_of};
use crate::turn::TurnFile;
use crate::upstream::failure::{ConnectorFailure, FailureKind, Mapped};
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
    files: FileSupport::Accepted,
    asks: false,
    conversation: ConversationKind::new("external.conversation_id", "Tbox", "conversation")
        .hanging_if_lost(),
    history: HistoryUse::Resent(0),
    form: include_str!("tbox_agent/form.json"),
    start: |_, reader| {
        Ok(Box::new(Tbox {
            config: Config::read(reader)?,
            progress: TboxProgress::default(),
        }))
    },
};

struct Tbox {
    config: Config,
    progress: TboxProgress,
}

impl PlatformMapping for Tbox {
    fn request(&mut self, run: &mut ConnectorRun) -> Mapped<PlatformRequest> {
        Ok(request::chat(&self.config, run))
    }

    fn event(&mut self, event: &UpstreamEvent, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        if event.text.trim() == "[DONE]" {
            return Ok(MappingStep::Complete);
        }
        let payload = event.json()?;
        if event.is_document {
            events::document(&payload, run)?;
            return Ok(MappingStep::Complete);
        }
        let name = event.name.as_deref().unwrap_or_default();
        self.progress.event(name, &payload, run)?;
        Ok(MappingStep::Read)
    }

    fn file(&self, file: &TurnFile, _run: &ConnectorRun) -> Mapped<FileReference> {
        request::upload(&self.config, file).map(FileReference::Upload)
    }

    fn uploaded(&self, file: &TurnFile, response: &Value) -> Mapped<Option<Value>> {
        if let Some(failure) = failure_of(response) {
            return Err(failure);
        }
        let id = text_of(&response["data"]).filter(|id| !id.trim().is_empty());
        Ok(id.map(|id| request::part(file, &id)))
    }

    fn is_ping(&mut self, event: &UpstreamEvent) -> bool {
        matches!(event.name.as_deref(), Some("ping" | "heartbeat"))
    }

    fn refusal_code(&self, body: &Value) -> Option<String> {
        text_of(&body["errorCode"])
    }

    /// Tbox documents no code for these failures.
    fn is_lost(&self, failure: &ConnectorFailure) -> bool {
        failure.names("conversation") || failure.names("会话") || failure.has_status(404)
    }

    fn reset(&mut self) {
        self.progress = TboxProgress::default();
    }

    /// True after the end mark; only further lanes can follow.
    fn is_complete(&self) -> bool {
        self.progress.has_end
    }

    /// The end of the body ends an answer even without a mark.
    fn ended(&mut self, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        if run.answer.has_begun() {
            return Ok(MappingStep::Complete);
        }
        Err(ConnectorFailure::ended_early())
    }

    fn silence(&self) -> ConnectorFailure {
        if self.progress.is_revoked {
            let message = "Tbox withdrew its answer: ask in other words";
            return ConnectorFailure::new(FailureKind::ApiError, message);
        }
        ConnectorFailure::empty()
    }
}
