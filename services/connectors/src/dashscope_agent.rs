//! Applications on Alibaba Cloud Model Studio (Bailian): agents and workflows.

mod config;
mod events;
mod references;
mod request;

use serde_json::Value;

use crate::dashscope_agent::config::Config;
use crate::dashscope_agent::events::{DashScopeProgress, failure_of};
use crate::mapping::{MappingStep, PlatformMapping};
use crate::platform::{ConversationKind, FileSupport, HistoryUse, Platform};
use crate::request::PlatformRequest;
use crate::run::ConnectorRun;
use crate::upstream::failure::{ConnectorFailure, Mapped};
use crate::upstream::json::filled;
use crate::upstream::reader::UpstreamEvent;

pub(crate) const PLATFORM: Platform = Platform {
    name: "dashscope-agent",
    prefix: "dashscope",
    label: "DashScope",
    description: "An application on Alibaba Cloud Model Studio (Bailian): agent or workflow",
    legacy: &[
        "plugin:langbot/dashscope-agent/default",
        "plugin:langbot-team/DashScopeAgent/default",
    ],
    files: FileSupport::Refused("DashScope takes no files"),
    asks: false,
    // Model Studio deletes sessions after an hour.
    conversation: ConversationKind::new("external.conversation_id", "DashScope", "session")
        .hanging_if_lost(),
    history: HistoryUse::Resent(10),
    form: include_str!("dashscope_agent/form.json"),
    start: |_, reader| {
        Ok(Box::new(DashScope {
            config: Config::read(reader)?,
            progress: DashScopeProgress::default(),
        }))
    },
};

struct DashScope {
    config: Config,
    progress: DashScopeProgress,
}

impl PlatformMapping for DashScope {
    fn request(&mut self, run: &mut ConnectorRun) -> Mapped<PlatformRequest> {
        Ok(request::call(&self.config, run))
    }

    fn event(&mut self, event: &UpstreamEvent, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        let payload = event.json()?;
        // Model Studio reports errors within the stream too.
        if let Some(failure) = failure_of(event.name.as_deref(), &payload) {
            return Err(failure);
        }
        let output = &payload["output"];
        if event.is_document && !output.is_object() {
            return Err(ConnectorFailure::unreadable(&event.text));
        }
        // Compare before learning: after that the stored id is replaced.
        if let Some(id) = filled(&output["session_id"]) {
            if is_forgotten(id, run) {
                let reason = "DashScope began a new session instead of the stored one";
                return Ok(MappingStep::StartOver(reason));
            }
            run.learn(id);
        }
        let is_done = self.progress.event(&payload, &mut run.answer);
        Ok(if event.is_document || is_done {
            MappingStep::Complete
        } else {
            MappingStep::Read
        })
    }

    fn refusal_code(&self, body: &Value) -> Option<String> {
        filled(&body["code"]).map(str::to_owned)
    }

    fn is_lost(&self, failure: &ConnectorFailure) -> bool {
        let code = failure.code().to_ascii_lowercase();
        code.contains("session") || failure.names("session") || failure.has_status(404)
    }

    fn reset(&mut self) {
        self.progress = DashScopeProgress::default();
    }

    fn finish(&mut self, run: &mut ConnectorRun) -> Mapped {
        self.progress
            .list_references(&self.config.references, &mut run.answer);
        Ok(())
    }
}

/// True if the response names another session than the request: that session has no history.
fn is_forgotten(id: &str, run: &ConnectorRun) -> bool {
    let is_other = run.conversation.id().is_some_and(|sent| sent != id);
    let can_start_over = run.conversation.is_unconfirmed() && !run.answer.has_begun();
    is_other && can_start_over && run.resent_history > 0
}
