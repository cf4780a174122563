//! Agents that speak AG-UI 1.0.

mod config;
mod events;
mod interrupts;
mod patch;
mod request;

use serde_json::Value;

use crate::ag_ui_agent::config::Config;
use crate::ag_ui_agent::events::{AgUiProgress, AgUiStep};
use crate::mapping::{FileReference, MappingStep, PlatformMapping};
use crate::platform::{ConversationKind, FileSupport, HistoryUse, Platform};
use crate::request::PlatformRequest;
use crate::run::ConnectorRun;
use crate::turn::TurnFile;
use crate::upstream::failure::{ConnectorFailure, FailureKind, Mapped};
use crate::upstream::json::filled;
use crate::upstream::question_queue::QuestionQueue;
use crate::upstream::reader::UpstreamEvent;

pub(crate) const PLATFORM: Platform = Platform {
    name: "ag-ui-agent",
    prefix: "ag_ui",
    label: "AG-UI agent",
    description: "An agent that speaks AG-UI 1.0",
    legacy: &[],
    files: FileSupport::Accepted,
    asks: true,
    conversation: ConversationKind::new("external.thread_id", "the agent", "thread"),
    history: HistoryUse::Sent(20),
    form: include_str!("ag_ui_agent/form.json"),
    start: |turn, reader| {
        Ok(Box::new(AgUi {
            config: Config::read(reader)?,
            progress: AgUiProgress::new(turn),
            questions: QuestionQueue::new(interrupts::FORM),
            resume: None,
            runs: 0,
        }))
    },
};

/// Maximum bytes of an event that may be a keep-alive.
const PING_BYTES: usize = 1_024;

struct AgUi {
    config: Config,
    progress: AgUiProgress,
    questions: QuestionQueue,
    /// The answers with which the next run resumes.
    resume: Option<Value>,
    runs: u32,
}

impl PlatformMapping for AgUi {
    fn request(&mut self, run: &mut ConnectorRun) -> Mapped<PlatformRequest> {
        let thread = run.own_conversation();
        self.runs += 1;
        // A protocol run has one outcome, so a resumed one needs another id.
        let id = match self.runs {
            1 => run.turn.run_id.clone(),
            number => format!("{}_{number}", run.turn.run_id),
        };
        let input = request::AgUiRun {
            thread,
            id,
            state: &self.progress.state,
            resume: self.resume.clone(),
        };
        Ok(request::run(&self.config, run, input))
    }

    fn event(&mut self, event: &UpstreamEvent, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        let payload = event.json()?;
        // An error page in JSON has no event type.
        if event.is_document && payload["type"].as_str().is_none() {
            return Err(ConnectorFailure::unreadable(&event.text));
        }
        if payload["type"] == "RUN_STARTED"
            && let Some(id) = filled(&payload["threadId"])
        {
            run.learn(id);
        }
        match self.progress.event(&payload, &mut run.answer)? {
            AgUiStep::Next => Ok(MappingStep::Read),
            AgUiStep::Over => Ok(MappingStep::Complete),
            AgUiStep::Paused(interrupts) => self.ask(&interrupts, run),
        }
    }

    fn file(&self, file: &TurnFile, _run: &ConnectorRun) -> Mapped<FileReference> {
        request::part(file).map(FileReference::Inline)
    }

    /// Agents send empty text deltas as keep-alives.
    fn is_ping(&mut self, event: &UpstreamEvent) -> bool {
        // Check the size and the name first: parsing each event twice would be expensive.
        event.text.len() <= PING_BYTES
            && event.text.contains("_CONTENT")
            && event.json().is_ok_and(|payload| payload["delta"] == "")
    }

    fn is_lost(&self, failure: &ConnectorFailure) -> bool {
        failure.has_status(404) && failure.names("thread")
    }

    fn questions(&mut self) -> Option<&mut QuestionQueue> {
        Some(&mut self.questions)
    }

    fn resume(&mut self, answers: Vec<Value>) {
        self.resume = Some(Value::Array(answers));
    }

    fn finish(&mut self, run: &mut ConnectorRun) -> Mapped {
        // Store the state before the completion: nothing may follow the terminal event.
        self.progress.store_state(&mut run.answer);
        self.progress.finish(&mut run.answer);
        Ok(())
    }

    fn silence(&self) -> ConnectorFailure {
        self.progress.silence()
    }
}

impl AgUi {
    fn ask(&mut self, interrupts: &Value, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        // A paused agent resumes from this state, perhaps in another run.
        self.progress.store_state(&mut run.answer);
        let open = interrupts::reduced(interrupts);
        if open.is_empty() {
            let message = "the agent waits for an answer that it does not name: update the agent";
            return Err(ConnectorFailure::new(FailureKind::ResponseInvalid, message));
        }
        Ok(self.questions.open(open, run))
    }
}
