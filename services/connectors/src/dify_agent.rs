//! Applications on Dify: chat, chatflow, agent and workflow.

mod config;
mod events;
mod forms;
mod outputs;
mod request;

use protocol::interaction::InteractionSubmission;
use serde_json::Value;

use crate::dify_agent::config::{Config, DifyAppType};
use crate::dify_agent::events::{DifyProgress, DifyStep};
use crate::dify_agent::forms::DifyForm;
use crate::mapping::{FileReference, MappingStep, PersonAnswer, PlatformMapping};
use crate::platform::{ConversationKind, FileSupport, HistoryUse, Platform};
use crate::request::PlatformRequest;
use crate::run::ConnectorRun;
use crate::turn::TurnFile;
use crate::upstream::failure::{ConnectorFailure, ErrorStatus, FailureKind, Mapped};
use crate::upstream::json::filled;
use crate::upstream::reader::UpstreamEvent;

pub(crate) const PLATFORM: Platform = Platform {
    name: "dify-agent",
    prefix: "dify",
    label: "Dify",
    description: "An application on Dify: chat, chatflow, agent or workflow",
    legacy: &[
        "plugin:langbot/dify-agent/default",
        "plugin:langbot-team/DifyAgent/default",
    ],
    files: FileSupport::Accepted,
    asks: true,
    conversation: ConversationKind::new("external.conversation_id", "Dify", "conversation")
        .hanging_if_lost(),
    history: HistoryUse::Resent(0),
    form: include_str!("dify_agent/form.json"),
    start: |_, reader| {
        let config = Config::read(reader)?;
        Ok(Box::new(Dify {
            progress: DifyProgress::new(&config),
            form: None,
            is_submitting: false,
            reopened: 0,
            config,
        }))
    },
};

/// The form that waits for its answer, for the case that the run ends first.
const PENDING_FORM: &str = "external.pending_form";
/// Maximum times that the stream is opened again for one form.
const MAX_REOPENED: u32 = 3;

struct Dify {
    config: Config,
    progress: DifyProgress,
    /// The form that the person answers.
    form: Option<DifyForm>,
    /// The open call submits the answer to a form.
    is_submitting: bool,
    reopened: u32,
}

impl PlatformMapping for Dify {
    fn request(&mut self, run: &mut ConnectorRun) -> Mapped<PlatformRequest> {
        Ok(match self.config.app {
            DifyAppType::Workflow => request::workflow(&self.config, run),
            DifyAppType::Chat | DifyAppType::Agent => request::chat(&self.config, run),
        })
    }

    fn event(&mut self, event: &UpstreamEvent, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        if self.is_submitting {
            return Ok(MappingStep::Read);
        }
        let payload = event.json()?;
        if event.is_document && payload.get("event").is_none() {
            return Err(ConnectorFailure::unreadable(&event.text));
        }
        if let Some(id) = filled(&payload["conversation_id"])
            && self.config.app != DifyAppType::Workflow
        {
            run.learn(id);
        }
        match self.progress.event(&payload, run)? {
            DifyStep::Next => Ok(MappingStep::Read),
            DifyStep::Over => Ok(MappingStep::Complete),
            DifyStep::Paused => self.ask(run),
        }
    }

    /// Dify hangs for ids that are not UUIDs.
    fn accepts(&self, id: &str) -> bool {
        self.config.app != DifyAppType::Workflow && is_uuid(id)
    }

    fn file(&self, file: &TurnFile, run: &ConnectorRun) -> Mapped<FileReference> {
        Ok(match file.address() {
            Some(url) => FileReference::Inline(request::remote_file(file, url)),
            None => FileReference::Upload(request::upload(&self.config, &run.turn.user, file)?),
        })
    }

    fn uploaded(&self, file: &TurnFile, response: &Value) -> Mapped<Option<Value>> {
        let id = filled(&response["id"]);
        Ok(id.map(|id| request::local_file(file, id)))
    }

    fn is_ping(&mut self, event: &UpstreamEvent) -> bool {
        event.name.as_deref() == Some("ping")
            || event.text.contains("\"ping\"")
                && event.json().is_ok_and(|payload| payload["event"] == "ping")
    }

    fn refusal_code(&self, body: &Value) -> Option<String> {
        body["code"].as_str().map(str::to_owned)
    }

    fn is_lost(&self, failure: &ConnectorFailure) -> bool {
        let is_named = matches!(failure.code(), "not_found" | "conversation_not_exists");
        is_named || failure.has_status(404)
    }

    fn reset(&mut self) {
        self.progress = DifyProgress::new(&self.config);
    }

    fn is_complete(&self) -> bool {
        self.progress.is_complete()
    }

    fn is_answered(&self) -> bool {
        self.progress.is_complete()
    }

    fn ended(&mut self, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        if self.is_submitting {
            return Ok(self.reopen(run));
        }
        if self.progress.has_form() {
            return self.ask(run);
        }
        // The pause of the answered form may end the second stream again.
        if (1..MAX_REOPENED).contains(&self.reopened) {
            return Ok(self.reopen(run));
        }
        Err(ConnectorFailure::ended_early())
    }

    fn refused(
        &mut self,
        _refusal: &ErrorStatus,
        failure: ConnectorFailure,
        run: &mut ConnectorRun,
    ) -> Mapped<MappingStep> {
        if self.is_submitting {
            // The form was answered elsewhere, or has expired: the workflow continues without this answer.
            if failure.has_status(412) {
                let text =
                    "the form takes no answer any more; the workflow continues without this one";
                run.answer.out.log("warning", text);
                return Ok(self.reopen(run));
            }
            // Send no stop call for a paused workflow: its form can still be answered on Dify.
            run.task = None;
        }
        Err(failure)
    }

    fn submitted(
        &mut self,
        answer: InteractionSubmission,
        run: &mut ConnectorRun,
    ) -> Mapped<MappingStep> {
        let form = run.turn.state.get(PENDING_FORM).and_then(DifyForm::read);
        self.form = form.filter(|form| form.interaction_id() == answer.interaction_id);
        if self.form.is_none() {
            let message =
                "the form that was answered is not known any more: start the application again";
            return Err(ConnectorFailure::new(FailureKind::ApiError, message));
        }
        self.answered(answer.into(), run)
    }

    fn answered(&mut self, answer: PersonAnswer, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        let form = self.form.take().ok_or_else(ConnectorFailure::ended_early)?;
        let body = form.submission(answer.action.as_deref(), &answer.values, &run.turn.user)?;
        self.resume(&form, run);
        self.is_submitting = true;
        // Clear the form first: a second answer would be refused by Dify.
        run.answer.out.remember(PENDING_FORM, Value::Null);
        let request = request::submit(&self.config, form.token(), body);
        Ok(MappingStep::call(request))
    }

    /// Dify continues along the form's branch for timeouts.
    fn expired(&mut self, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        let form = self.form.take().ok_or_else(ConnectorFailure::ended_early)?;
        self.resume(&form, run);
        Ok(self.reopen(run))
    }

    fn finish(&mut self, run: &mut ConnectorRun) -> Mapped {
        self.progress.outputs.add_missing(&mut run.answer);
        Ok(())
    }

    fn stop(&self, task: &str, run: &ConnectorRun) -> Option<PlatformRequest> {
        Some(request::stop(&self.config, &run.turn.user, task))
    }
}

impl Dify {
    /// Asks the next form.
    fn ask(&mut self, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        let form = self.progress.next_form().ok_or_else(forms::unanswerable)?;
        run.answer.out.remember(PENDING_FORM, form.stored());
        let question = form.question();
        self.form = Some(form);
        Ok(MappingStep::Ask(Box::new(question)))
    }

    /// Continues after a form, in this run or a later one.
    fn resume(&mut self, form: &DifyForm, run: &mut ConnectorRun) {
        self.progress.resume(form);
        // A form belongs to its conversation, so the run cannot start over.
        run.confirm();
    }

    /// Opens the stream of the paused workflow run again.
    fn reopen(&mut self, run: &ConnectorRun) -> MappingStep {
        self.reopened += 1;
        self.is_submitting = false;
        let id = self.progress.run_id.as_deref().unwrap_or_default();
        MappingStep::call(request::resume(&self.config, &run.turn.user, id))
    }
}

fn is_uuid(text: &str) -> bool {
    let is_digit = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(is_digit)
}
