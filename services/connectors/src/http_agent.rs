//! Any agent over HTTP: the operator maps the request and the answer by filters.

mod config;
mod events;
mod request;

use serde_json::json;

use crate::http_agent::config::{Config, SESSION};
use crate::http_agent::events::EventMeaning;
use crate::mapping::{FileReference, MappingStep, PlatformMapping};
use crate::platform::{ConversationKind, FileSupport, HistoryUse, Platform};
use crate::request::PlatformRequest;
use crate::run::ConnectorRun;
use crate::turn::TurnFile;
use crate::upstream::failure::{ConnectorFailure, FailureKind, Mapped};
use crate::upstream::reader::UpstreamEvent;

pub(crate) const PLATFORM: Platform = Platform {
    name: "http-agent",
    prefix: "http_agent",
    label: "HTTP agent",
    description: "Any agent over HTTP: jq filters map the request and the events of its answer",
    legacy: &[],
    files: FileSupport::Accepted,
    asks: false,
    conversation: ConversationKind::new(SESSION, "the agent", "session").hanging_if_lost(),
    history: HistoryUse::Sent(0),
    form: include_str!("http_agent/form.json"),
    start: |_, reader| {
        Ok(Box::new(HttpAgent {
            config: Config::read(reader)?,
            mapped: None,
            is_final: false,
        }))
    },
};

struct HttpAgent {
    config: Config,
    /// The meaning of the next event. `is_ping` maps it, and `event` uses it: filters are expensive.
    mapped: Option<Mapped<EventMeaning>>,
    /// The full text was received.
    is_final: bool,
}

impl PlatformMapping for HttpAgent {
    fn request(&mut self, run: &mut ConnectorRun) -> Mapped<PlatformRequest> {
        request::request(&self.config, run)
    }

    fn event(&mut self, event: &UpstreamEvent, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        let mapped = self.mapped.take();
        let mapped = mapped.unwrap_or_else(|| events::map(&self.config, event));
        let mut meaning = mapped?;
        if let Some(failure) = meaning.error.take() {
            return Err(failure);
        }
        if let Some(id) = &meaning.session {
            run.learn(id);
        }
        self.is_final |= meaning.end.is_some();
        Ok(meaning.tell(&mut run.answer))
    }

    fn accepts(&self, _id: &str) -> bool {
        self.config.keeps_session()
    }

    fn file(&self, file: &TurnFile, _run: &ConnectorRun) -> Mapped<FileReference> {
        if !self.config.takes_files {
            let fault = "is not sent: say `files = true` once the filter /body uses .input.files";
            return Err(ConnectorFailure::upload(&file.name, fault));
        }
        let url = file.url()?;
        let reference = json!({"name": file.name, "mime_type": file.mime_type, "url": url});
        Ok(FileReference::Inline(reference))
    }

    /// True for an event without meaning.
    fn is_ping(&mut self, event: &UpstreamEvent) -> bool {
        // The session asks for the ping first, then passes the same event.
        let mapped = self.mapped.insert(events::map(&self.config, event));
        !event.is_document && mapped.as_ref().is_ok_and(EventMeaning::is_nothing)
    }

    /// True for a response with this status; errors within a response have no such meaning.
    fn is_lost(&self, failure: &ConnectorFailure) -> bool {
        failure.kind == FailureKind::HttpError && failure.has_status(404)
    }

    fn is_complete(&self) -> bool {
        self.is_final
    }

    fn ended(&mut self, _run: &mut ConnectorRun) -> Mapped<MappingStep> {
        if self.config.ends_with_body() {
            return Ok(MappingStep::Complete);
        }
        Err(ConnectorFailure::ended_early())
    }
}
