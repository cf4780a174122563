//! Agents and knowledge chats on WeKnora.

mod config;
mod events;
mod request;

use crate::mapping::{FileReference, MappingStep, PlatformMapping};
use crate::platform::{ConversationKind, FileSupport, HistoryUse, Platform};
use crate::request::{PlatformRequest, PlatformResponseHead};
use crate::run::ConnectorRun;
use crate::turn::TurnFile;
use crate::upstream::failure::{ConnectorFailure, FailureKind, Mapped, message_of};
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
    files: FileSupport::Accepted,
    asks: false,
    conversation: ConversationKind::new("external.session_id", "WeKnora", "session"),
    history: HistoryUse::Resent(0),
    form: include_str!("weknora_agent/form.json"),
    start: |_, reader| {
        Ok(Box::new(WeKnora {
            config: Config::read(reader)?,
            progress: WeKnoraProgress::default(),
        }))
    },
};

struct WeKnora {
    config: Config,
    progress: WeKnoraProgress,
}

impl PlatformMapping for WeKnora {
    /// Creates a session, or sends the message to it.
    fn request(&mut self, run: &mut ConnectorRun) -> Mapped<PlatformRequest> {
        Ok(match run.conversation.id() {
            None => request::session(&self.config, &run.turn.user),
            Some(session) => request::chat(&self.config, run, session),
        })
    }

    fn event(&mut self, event: &UpstreamEvent, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        let payload = event.json()?;
        if payload["success"] == false {
            let message = message_of(&payload).unwrap_or_default();
            return Err(ConnectorFailure::reported(None, None, message));
        }
        if run.conversation.id().is_none() {
            let id = filled(&payload["data"]["id"]);
            run.learn(id.ok_or_else(|| ConnectorFailure::unreadable(&event.text))?);
            return Ok(MappingStep::Send);
        }
        if event.is_document && payload.get("response_type").is_none() {
            return Err(ConnectorFailure::unreadable(&event.text));
        }
        self.progress.event(&payload, run)
    }

    fn file(&self, file: &TurnFile, _run: &ConnectorRun) -> Mapped<FileReference> {
        request::image(file).map(FileReference::Inline)
    }

    fn is_lost(&self, failure: &ConnectorFailure) -> bool {
        let is_refusal = failure.kind != FailureKind::ApiError;
        let is_unknown = failure.names("session") && failure.names("not found");
        is_refusal && (failure.has_status(404) || is_unknown)
    }

    /// Servers omit the end mark of the run, or send it late.
    fn is_complete(&self) -> bool {
        self.progress.is_done
    }

    fn opened(&mut self, _head: &PlatformResponseHead, run: &mut ConnectorRun) {
        // The accepted chat confirms the stored session.
        run.confirm();
    }

    fn finish(&mut self, run: &mut ConnectorRun) -> Mapped {
        self.progress.tell_references(&mut run.answer);
        Ok(())
    }

    fn stop(&self, task: &str, run: &ConnectorRun) -> Option<PlatformRequest> {
        Some(request::stop(&self.config, run.conversation.id()?, task))
    }
}
