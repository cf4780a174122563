//! Agents on LangGraph servers, and DeerFlow on top of one.

mod config;
mod events;
mod interrupts;
mod messages;
mod questions;
mod request;

use protocol::JsonObject;
use protocol::interaction::{AwaitedInteraction, InteractionSubmission};
use serde_json::{Value, json};

use crate::catalogue::Platform;
use crate::langgraph_agent::config::Config;
use crate::langgraph_agent::events::{LangGraphProgress, Settled};
use crate::langgraph_agent::questions::LangGraphQuestions;
use crate::machine::{
    HistoryMessage, Machine, MachineInput, MachineOutput, OutputQueue, PlatformResponseHead,
};
use crate::request::PlatformRequest;
use crate::turn::ConnectorTurn;
use crate::upstream::conversation::PlatformConversation;
use crate::upstream::failure::{ConnectorFailure, ErrorStatus, FailureKind, TransportError};
use crate::upstream::json::filled;
use crate::upstream::reader::UpstreamEvent;

pub(crate) const PLATFORM: Platform = Platform {
    name: "langgraph-agent",
    prefix: "langgraph",
    label: "LangGraph",
    description: "An assistant on a LangGraph server, or on one that speaks its API",
    legacy: &[],
    takes_files: true,
    asks: true,
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

const THREAD: &str = "external.thread_id";
/// Maximum times that a run is joined after its stream ended early.
const MAX_JOINED: u32 = 2;

fn start(turn: ConnectorTurn, config: Config) -> Box<dyn Machine> {
    Box::new(LangGraph {
        thread: PlatformConversation::of(&turn, THREAD, |_| true),
        progress: LangGraphProgress::new(&turn, config.server, turn.submission.is_some()),
        work: None,
        history: Vec::new(),
        stage: LangGraphStage::Creating,
        questions: LangGraphQuestions::default(),
        joined: 0,
        turn,
        config,
    })
}

struct LangGraph {
    config: Config,
    turn: ConnectorTurn,
    thread: PlatformConversation,
    progress: LangGraphProgress,
    /// The value that resumes the graph; absent for a new message.
    work: Option<Value>,
    history: Vec<HistoryMessage>,
    stage: LangGraphStage,
    questions: LangGraphQuestions,
    joined: u32,
}

/// The open call, or the awaited answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LangGraphStage {
    Creating,
    Running,
    Asking,
    /// The stream ended without an end mark, so the thread's state is read.
    Checking,
    /// The run continues without a stream.
    Joining,
}

impl Machine for LangGraph {
    fn on(&mut self, input: MachineInput, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        match input {
            MachineInput::Begin => self.begin(out),
            MachineInput::History(messages) => {
                self.history = messages;
                self.create(out);
                Ok(())
            }
            MachineInput::Opened(head) => {
                self.opened(&head, out);
                Ok(())
            }
            MachineInput::Event(event) => self.event(&event, out),
            MachineInput::Ended => self.ended(out),
            MachineInput::Refused(refusal) => self.refused(refusal, out),
            MachineInput::Failed(error) => self.failed(error, out),
            MachineInput::Answered(answer) => self.answered(answer, out),
        }
    }

    fn stop(&self) -> Option<PlatformRequest> {
        let (thread, run) = (self.thread.id()?, self.progress.run_id.as_deref()?);
        Some(request::cancel(&self.config, thread, run))
    }
}

impl LangGraph {
    fn begin(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        // Fail for unsupported files before a thread is created for them.
        request::input(&self.config, &self.turn, &[])?;
        match self.turn.submission.clone() {
            Some(answer) => self.submitted(&answer, out),
            None => self.open(out),
        }
    }

    fn open(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        if self.thread.id().is_some() {
            return self.run(out);
        }
        self.create(out);
        Ok(())
    }

    fn create(&mut self, out: &mut OutputQueue) {
        self.stage = LangGraphStage::Creating;
        out.call(request::thread(&self.config));
    }

    fn run(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        self.stage = LangGraphStage::Running;
        let work = if let Some(resume) = &self.work {
            ("command", json!({"resume": resume}))
        } else {
            let input = request::input(&self.config, &self.turn, &self.history)?;
            ("input", input)
        };
        let thread = self.thread.id().unwrap_or_default();
        out.call(request::run(&self.config, &self.turn, thread, work));
        Ok(())
    }

    fn opened(&mut self, head: &PlatformResponseHead, out: &mut OutputQueue) {
        if self.stage != LangGraphStage::Running {
            return;
        }
        // The accepted run confirms the stored thread.
        if let Some(id) = self.thread.id().map(str::to_owned) {
            self.thread.learn(&id, out);
        }
        let location = head.header("content-location").or(head.header("location"));
        let run = location.and_then(|location| location.split("/runs/").nth(1)?.split('/').next());
        self.progress.run_id = run.filter(|run| !run.is_empty()).map(str::to_owned);
    }

    fn event(
        &mut self,
        event: &UpstreamEvent,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        match self.stage {
            LangGraphStage::Creating => {
                let payload = event.json()?;
                let id = filled(&payload["thread_id"])
                    .ok_or_else(|| ConnectorFailure::unreadable(&event.text))?;
                self.thread.learn(id, out);
                self.run(out)
            }
            LangGraphStage::Running => self.streamed(event, out),
            LangGraphStage::Checking => {
                let payload = event.json()?;
                match self.progress.state(&payload, out) {
                    Ok(Settled::Over) => self.finish(out),
                    Ok(Settled::Running) => self.join(out),
                    Err(failure) => {
                        self.progress.run_id = None;
                        Err(failure)
                    }
                }
            }
            // The state reports the run's end, so the joined values are not needed.
            LangGraphStage::Joining | LangGraphStage::Asking => Ok(()),
        }
    }

    fn streamed(
        &mut self,
        event: &UpstreamEvent,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        if event.is_document {
            return Err(ConnectorFailure::unreadable(&event.text));
        }
        let name = event.name.as_deref().unwrap_or_default();
        let payload = if name == "end" {
            Value::Null
        } else {
            event.json()?
        };
        let read = self.progress.event(name, &payload, out);
        if read.is_err() {
            // A failed run needs no stop call.
            self.progress.run_id = None;
        }
        if read? { self.finish(out) } else { Ok(()) }
    }

    /// Completes the run, or asks the questions at which it stopped.
    fn finish(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        if self.progress.interrupts.is_empty() {
            return self.progress.complete(out);
        }
        let interrupts = std::mem::take(&mut self.progress.interrupts);
        self.questions.open(interrupts);
        self.progress.resume();
        self.stage = LangGraphStage::Asking;
        self.questions.ask(out);
        Ok(())
    }

    fn ended(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        match self.stage {
            LangGraphStage::Running if !self.progress.interrupts.is_empty() => self.finish(out),
            LangGraphStage::Running | LangGraphStage::Joining => self.check(out),
            LangGraphStage::Creating | LangGraphStage::Checking | LangGraphStage::Asking => {
                Err(ConnectorFailure::ended_early())
            }
        }
    }

    /// Reads the thread's state. Servers end streams without a mark, also those of cancelled runs; the state has the
    /// difference.
    fn check(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        if self.progress.run_id.is_none() {
            return Err(ConnectorFailure::ended_early());
        }
        self.stage = LangGraphStage::Checking;
        let thread = self.thread.id().unwrap_or_default();
        out.call(request::state(&self.config, thread));
        Ok(())
    }

    fn join(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        let Some(run) = self
            .progress
            .run_id
            .as_deref()
            .filter(|_| self.joined < MAX_JOINED)
        else {
            return Err(ConnectorFailure::ended_early());
        };
        self.joined += 1;
        self.stage = LangGraphStage::Joining;
        let thread = self.thread.id().unwrap_or_default();
        out.call(request::join(&self.config, thread, run));
        Ok(())
    }

    fn failed(
        &mut self,
        error: TransportError,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        match (self.stage, error) {
            (LangGraphStage::Running, TransportError::Broken) => self.ended(out),
            _ => Err(error.into()),
        }
    }

    fn refused(
        &mut self,
        refusal: ErrorStatus,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let text = refusal.message().unwrap_or_default().to_ascii_lowercase();
        let names_thread = text.contains("thread") || text.contains("badly formed hexadecimal");
        let status = refusal.head.status;
        let is_lost = status == 404 || (matches!(status, 400 | 422) && names_thread);
        match self.stage {
            LangGraphStage::Running if is_lost => self.lost(refusal.into(), out),
            LangGraphStage::Checking | LangGraphStage::Joining if status == 404 => {
                self.progress.run_id = None;
                let message = "the run vanished: its stream ended before its answer, and the server does not know it any more";
                Err(ConnectorFailure::new(FailureKind::ResponseInvalid, message)
                    .detail("status", status))
            }
            _ => Err(refusal.into()),
        }
    }

    fn lost(
        &mut self,
        failure: ConnectorFailure,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let reason = "the server does not know the stored thread";
        // A resumed run depends on its thread, so a new thread cannot continue it.
        let may_retry = self.work.is_none();
        if !may_retry
            || !self
                .thread
                .start_over(self.progress.has_begun(), reason, out)
        {
            return Err(failure);
        }
        self.progress = LangGraphProgress::new(&self.turn, self.config.server, false);
        match self.config.resend_history {
            0 => self.create(out),
            messages => out.push(MachineOutput::History(messages)),
        }
        Ok(())
    }

    fn answered(
        &mut self,
        answer: AwaitedInteraction,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        match answer {
            AwaitedInteraction::Submitted {
                action_id, values, ..
            } => self.answer(action_id.as_deref(), &values, out),
            AwaitedInteraction::Expired | AwaitedInteraction::Open => {
                // An expired question cannot be answered, so drop its stored form.
                LangGraphQuestions::forget(out);
                let message =
                    "the agent's question was not answered in time: send the message again";
                Err(ConnectorFailure::new(FailureKind::Timeout, message))
            }
            AwaitedInteraction::Cancelled => Err(ConnectorFailure::new(
                FailureKind::Cancelled,
                "the run was cancelled",
            )),
        }
    }

    /// Handles the answer to a question of an earlier run.
    fn submitted(
        &mut self,
        answer: &InteractionSubmission,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let questions = LangGraphQuestions::restore(&self.turn.state, answer);
        let Some(questions) = questions.filter(|_| self.thread.id().is_some()) else {
            let message =
                "the question that was answered is not known any more: send the message again";
            return Err(ConnectorFailure::new(FailureKind::ApiError, message));
        };
        self.questions = questions;
        self.answer(answer.action_id.as_deref(), &answer.values, out)
    }

    fn answer(
        &mut self,
        action: Option<&str>,
        values: &JsonObject,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        match self.questions.answer(action, values, out) {
            None => Ok(()),
            work => {
                self.work = work;
                self.run(out)
            }
        }
    }
}
