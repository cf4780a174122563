//! Agents on LangGraph servers, and DeerFlow on top of one.

mod config;
mod events;
mod interrupts;
mod messages;
mod request;

use serde_json::Value;

use crate::langgraph_agent::config::Config;
use crate::langgraph_agent::events::{LangGraphProgress, Settled};
use crate::langgraph_agent::interrupts::Interrupt;
use crate::langgraph_agent::request::RunInput;
use crate::mapping::{FileReference, MappingStep, PlatformMapping};
use crate::platform::{ConversationKind, FileSupport, HistoryUse, Platform};
use crate::request::{PlatformRequest, PlatformResponseHead};
use crate::run::ConnectorRun;
use crate::turn::{ConnectorTurn, TurnFile};
use crate::upstream::failure::{
    ConnectorFailure, ErrorStatus, FailureKind, Mapped, TransportError,
};
use crate::upstream::json::filled;
use crate::upstream::question_queue::QuestionQueue;
use crate::upstream::reader::UpstreamEvent;

pub(crate) const PLATFORM: Platform = Platform {
    name: "langgraph-agent",
    prefix: "langgraph",
    label: "LangGraph",
    description: "An assistant on a LangGraph server, or on one that speaks its API",
    legacy: &[],
    files: FileSupport::Accepted,
    asks: true,
    conversation: ConversationKind::new("external.thread_id", "the server", "thread"),
    history: HistoryUse::Resent(0),
    form: include_str!("langgraph_agent/form.json"),
    start: |turn, reader| Ok(start(turn, Config::langgraph(reader)?)),
};

/// The preset for DeerFlow.
pub(crate) const DEERFLOW: Platform = Platform {
    name: "deerflow-agent",
    prefix: "deerflow",
    label: "DeerFlow",
    description: "The lead agent of DeerFlow",
    legacy: &[
        "plugin:langbot/deerflow-agent/default",
        "plugin:langbot-team/DeerFlowAgent/default",
    ],
    form: include_str!("langgraph_agent/deerflow.json"),
    start: |turn, reader| Ok(start(turn, Config::deerflow(reader)?)),
    ..PLATFORM
};

/// Maximum times that a run is joined after its stream ended early.
const MAX_JOINED: u32 = 2;

fn start(turn: &ConnectorTurn, config: Config) -> Box<dyn PlatformMapping> {
    Box::new(LangGraph {
        progress: LangGraphProgress::new(config.server, turn.submission.is_some()),
        resume: None,
        stage: LangGraphStage::Creating,
        questions: QuestionQueue::new(interrupts::FORM),
        joined: 0,
        config,
    })
}

struct LangGraph {
    config: Config,
    progress: LangGraphProgress,
    /// The value that resumes the graph; absent for a new message.
    resume: Option<Value>,
    stage: LangGraphStage,
    questions: QuestionQueue,
    joined: u32,
}

/// The open call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LangGraphStage {
    Creating,
    Running,
    /// The stream ended without an end mark, so the thread's state is read.
    Checking,
    /// The run continues without a stream.
    Joining,
}

impl PlatformMapping for LangGraph {
    /// Creates a thread, or runs the graph on it.
    fn request(&mut self, run: &mut ConnectorRun) -> Mapped<PlatformRequest> {
        let Some(thread) = run.conversation.id() else {
            self.stage = LangGraphStage::Creating;
            return Ok(request::thread(&self.config));
        };
        self.stage = LangGraphStage::Running;
        let work = match &self.resume {
            Some(answers) => RunInput::Resume(answers.clone()),
            None => RunInput::Messages(request::input(run)),
        };
        Ok(request::run(&self.config, &run.turn, thread, work))
    }

    fn event(&mut self, event: &UpstreamEvent, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        match self.stage {
            LangGraphStage::Creating => {
                let payload = event.json()?;
                let id = filled(&payload["thread_id"]);
                run.learn(id.ok_or_else(|| ConnectorFailure::unreadable(&event.text))?);
                Ok(MappingStep::Send)
            }
            LangGraphStage::Running => self.streamed(event, run),
            LangGraphStage::Checking => match self.progress.state(&event.json()?, run) {
                Ok(Settled::Over) => Ok(self.over(run)),
                Ok(Settled::Running) => self.join(run),
                Err(failure) => {
                    run.task = None;
                    Err(failure)
                }
            },
            // The state reports the run's end, so the joined values are not needed.
            LangGraphStage::Joining => Ok(MappingStep::Read),
        }
    }

    fn file(&self, file: &TurnFile, _run: &ConnectorRun) -> Mapped<FileReference> {
        request::part(&self.config, file).map(FileReference::Inline)
    }

    fn is_lost(&self, failure: &ConnectorFailure) -> bool {
        let names_thread = failure.names("thread") || failure.names("badly formed hexadecimal");
        let is_invalid = failure.has_status(400) || failure.has_status(422);
        failure.has_status(404) || is_invalid && names_thread
    }

    fn reset(&mut self) {
        self.progress = LangGraphProgress::new(self.config.server, false);
    }

    fn opened(&mut self, head: &PlatformResponseHead, run: &mut ConnectorRun) {
        if self.stage != LangGraphStage::Running {
            return;
        }
        // The accepted run confirms the stored thread.
        run.confirm();
        let location = head.header("content-location").or(head.header("location"));
        let id = location.and_then(|location| location.split("/runs/").nth(1)?.split('/').next());
        run.task = id.filter(|id| !id.is_empty()).map(str::to_owned);
    }

    fn ended(&mut self, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        match self.stage {
            LangGraphStage::Running if !self.progress.interrupts.is_empty() => Ok(self.over(run)),
            LangGraphStage::Running | LangGraphStage::Joining => self.check(run),
            LangGraphStage::Creating | LangGraphStage::Checking => {
                Err(ConnectorFailure::ended_early())
            }
        }
    }

    fn refused(
        &mut self,
        refusal: &ErrorStatus,
        failure: ConnectorFailure,
        run: &mut ConnectorRun,
    ) -> Mapped<MappingStep> {
        let status = refusal.head.status;
        match self.stage {
            LangGraphStage::Checking | LangGraphStage::Joining if status == 404 => {
                run.task = None;
                let message = "the run vanished: its stream ended before its answer, and the server does not know it any more";
                let failure = ConnectorFailure::new(FailureKind::ResponseInvalid, message);
                Err(failure.detail("status", status))
            }
            _ => Err(failure),
        }
    }

    fn failed(&mut self, error: TransportError, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        match (self.stage, error) {
            (LangGraphStage::Running, TransportError::Broken) => self.ended(run),
            _ => Err(error.into()),
        }
    }

    fn questions(&mut self) -> Option<&mut QuestionQueue> {
        Some(&mut self.questions)
    }

    fn resume(&mut self, answers: Vec<Value>) {
        self.resume = Some(interrupts::resume(answers));
    }

    fn finish(&mut self, run: &mut ConnectorRun) -> Mapped {
        self.progress.finish(&mut run.answer);
        Ok(())
    }

    fn silence(&self) -> ConnectorFailure {
        self.progress.silence()
    }

    fn stop(&self, task: &str, run: &ConnectorRun) -> Option<PlatformRequest> {
        Some(request::cancel(&self.config, run.conversation.id()?, task))
    }
}

impl LangGraph {
    fn streamed(&mut self, event: &UpstreamEvent, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        if event.is_document {
            return Err(ConnectorFailure::unreadable(&event.text));
        }
        let name = event.name.as_deref().unwrap_or_default();
        let payload = if name == "end" {
            Value::Null
        } else {
            event.json()?
        };
        let read = self.progress.event(name, &payload, run);
        if read.is_err() {
            // A failed run needs no stop call.
            run.task = None;
        }
        Ok(if read? {
            self.over(run)
        } else {
            MappingStep::Read
        })
    }

    /// Completes the run, or asks the questions at which it stopped.
    fn over(&mut self, run: &mut ConnectorRun) -> MappingStep {
        if self.progress.interrupts.is_empty() {
            return MappingStep::Complete;
        }
        // A stopped graph needs no stop call.
        run.task = None;
        let interrupts = std::mem::take(&mut self.progress.interrupts);
        let interrupts = interrupts.iter().map(Interrupt::stored);
        self.questions.open(interrupts.collect(), run)
    }

    /// Reads the thread's state. Servers end streams without a mark, also those of cancelled runs; the state has the
    /// difference.
    fn check(&mut self, run: &ConnectorRun) -> Mapped<MappingStep> {
        let (Some(_), Some(thread)) = (&run.task, run.conversation.id()) else {
            return Err(ConnectorFailure::ended_early());
        };
        self.stage = LangGraphStage::Checking;
        Ok(MappingStep::call(request::state(&self.config, thread)))
    }

    fn join(&mut self, run: &ConnectorRun) -> Mapped<MappingStep> {
        let (Some(task), Some(thread)) = (&run.task, run.conversation.id()) else {
            return Err(ConnectorFailure::ended_early());
        };
        if self.joined >= MAX_JOINED {
            return Err(ConnectorFailure::ended_early());
        }
        self.joined += 1;
        self.stage = LangGraphStage::Joining;
        Ok(MappingStep::call(request::join(&self.config, thread, task)))
    }
}
