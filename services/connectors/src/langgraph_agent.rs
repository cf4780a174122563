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
use crate::langgraph_agent::events::{Progress, Settled};
use crate::langgraph_agent::questions::Questions;
use crate::machine::{Head, HistoryMessage, Input, Machine, Outbox, Output};
use crate::request::Request;
use crate::turn::Turn;
use crate::upstream::conversation::Conversation;
use crate::upstream::failure::{Failure, FailureKind, Refusal, TransportError};
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
/// Times that a run is waited for whose stream ended early.
const MOST_JOINED: u32 = 2;

fn start(turn: Turn, config: Config) -> Box<dyn Machine> {
    Box::new(LangGraph {
        thread: Conversation::of(&turn, THREAD, |_| true),
        progress: Progress::new(&turn, config.server, turn.submission.is_some()),
        work: None,
        history: Vec::new(),
        stage: Stage::Creating,
        questions: Questions::default(),
        joined: 0,
        turn,
        config,
    })
}

struct LangGraph {
    config: Config,
    turn: Turn,
    thread: Conversation,
    progress: Progress,
    /// The value that resumes the graph; absent for a new message.
    work: Option<Value>,
    history: Vec<HistoryMessage>,
    stage: Stage,
    questions: Questions,
    joined: u32,
}

/// The call that is open, or the answer that is awaited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Creating,
    Running,
    Asking,
    /// The stream ended without an end mark: the thread's state is read.
    Checking,
    /// The run goes on without a stream.
    Joining,
}

impl Machine for LangGraph {
    fn on(&mut self, input: Input, out: &mut Outbox) -> Result<(), Failure> {
        match input {
            Input::Begin => self.begin(out),
            Input::History(messages) => {
                self.history = messages;
                self.create(out);
                Ok(())
            }
            Input::Opened(head) => {
                self.opened(&head, out);
                Ok(())
            }
            Input::Event(event) => self.event(&event, out),
            Input::Ended => self.ended(out),
            Input::Refused(refusal) => self.refused(refusal, out),
            Input::Failed(error) => self.failed(error, out),
            Input::Answered(answer) => self.answered(answer, out),
        }
    }

    fn stop(&self) -> Option<Request> {
        let (thread, run) = (self.thread.id()?, self.progress.run_id.as_deref()?);
        Some(request::cancel(&self.config, thread, run))
    }
}

impl LangGraph {
    fn begin(&mut self, out: &mut Outbox) -> Result<(), Failure> {
        // Files that cannot be handed over fail before a thread is made for them.
        request::input(&self.config, &self.turn, &[])?;
        match self.turn.submission.clone() {
            Some(answer) => self.submitted(&answer, out),
            None => self.open(out),
        }
    }

    fn open(&mut self, out: &mut Outbox) -> Result<(), Failure> {
        if self.thread.id().is_some() {
            return self.run(out);
        }
        self.create(out);
        Ok(())
    }

    fn create(&mut self, out: &mut Outbox) {
        self.stage = Stage::Creating;
        out.call(request::thread(&self.config));
    }

    fn run(&mut self, out: &mut Outbox) -> Result<(), Failure> {
        self.stage = Stage::Running;
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

    fn opened(&mut self, head: &Head, out: &mut Outbox) {
        if self.stage != Stage::Running {
            return;
        }
        if let Some(id) = self.thread.id().map(str::to_owned) {
            self.thread.learn(&id, out);
        }
        let place = head.header("content-location").or(head.header("location"));
        let run = place.and_then(|place| place.split("/runs/").nth(1)?.split('/').next());
        self.progress.run_id = run.filter(|run| !run.is_empty()).map(str::to_owned);
    }

    fn event(&mut self, event: &UpstreamEvent, out: &mut Outbox) -> Result<(), Failure> {
        match self.stage {
            Stage::Creating => {
                let told = event.json()?;
                let id =
                    filled(&told["thread_id"]).ok_or_else(|| Failure::unreadable(&event.text))?;
                self.thread.learn(id, out);
                self.run(out)
            }
            Stage::Running => self.streamed(event, out),
            Stage::Checking => {
                let told = event.json()?;
                match self.progress.state(&told, out) {
                    Ok(Settled::Over) => self.finish(out),
                    Ok(Settled::Running) => self.join(out),
                    Err(failure) => {
                        self.progress.run_id = None;
                        Err(failure)
                    }
                }
            }
            // The state says how the run ended.
            Stage::Joining | Stage::Asking => Ok(()),
        }
    }

    fn streamed(&mut self, event: &UpstreamEvent, out: &mut Outbox) -> Result<(), Failure> {
        if event.is_document {
            return Err(Failure::unreadable(&event.text));
        }
        let name = event.name.as_deref().unwrap_or_default();
        let told = if name == "end" {
            Value::Null
        } else {
            event.json()?
        };
        let read = self.progress.event(name, &told, out);
        if read.is_err() {
            // A run that failed by itself needs no stop.
            self.progress.run_id = None;
        }
        if read? { self.finish(out) } else { Ok(()) }
    }

    /// The run is over, or stopped at a question.
    fn finish(&mut self, out: &mut Outbox) -> Result<(), Failure> {
        if self.progress.interrupts.is_empty() {
            return self.progress.complete(out);
        }
        let interrupts = std::mem::take(&mut self.progress.interrupts);
        self.questions.open(interrupts);
        self.progress.resume();
        self.stage = Stage::Asking;
        self.questions.ask(out);
        Ok(())
    }

    fn ended(&mut self, out: &mut Outbox) -> Result<(), Failure> {
        match self.stage {
            Stage::Running if !self.progress.interrupts.is_empty() => self.finish(out),
            Stage::Running | Stage::Joining => self.check(out),
            Stage::Creating | Stage::Checking | Stage::Asking => Err(Failure::ended_early()),
        }
    }

    /// Servers end streams without a mark, also those of runs that were cancelled: the state tells them apart.
    fn check(&mut self, out: &mut Outbox) -> Result<(), Failure> {
        if self.progress.run_id.is_none() {
            return Err(Failure::ended_early());
        }
        self.stage = Stage::Checking;
        let thread = self.thread.id().unwrap_or_default();
        out.call(request::state(&self.config, thread));
        Ok(())
    }

    fn join(&mut self, out: &mut Outbox) -> Result<(), Failure> {
        let Some(run) = self
            .progress
            .run_id
            .as_deref()
            .filter(|_| self.joined < MOST_JOINED)
        else {
            return Err(Failure::ended_early());
        };
        self.joined += 1;
        self.stage = Stage::Joining;
        let thread = self.thread.id().unwrap_or_default();
        out.call(request::join(&self.config, thread, run));
        Ok(())
    }

    fn failed(&mut self, error: TransportError, out: &mut Outbox) -> Result<(), Failure> {
        match (self.stage, error) {
            (Stage::Running, TransportError::Broken) => self.ended(out),
            _ => Err(error.into()),
        }
    }

    fn refused(&mut self, refusal: Refusal, out: &mut Outbox) -> Result<(), Failure> {
        let told = refusal.message().unwrap_or_default().to_ascii_lowercase();
        let names_thread = told.contains("thread") || told.contains("badly formed hexadecimal");
        let status = refusal.head.status;
        let is_lost = status == 404 || (matches!(status, 400 | 422) && names_thread);
        match self.stage {
            Stage::Running if is_lost => self.lost(refusal.into(), out),
            Stage::Checking | Stage::Joining if status == 404 => {
                self.progress.run_id = None;
                let message = "the run vanished: its stream ended before its answer, and the server does not know it any more";
                Err(Failure::new(FailureKind::ResponseInvalid, message).detail("status", status))
            }
            _ => Err(refusal.into()),
        }
    }

    fn lost(&mut self, failure: Failure, out: &mut Outbox) -> Result<(), Failure> {
        let reason = "the server does not know the stored thread";
        let may_retry = self.work.is_none();
        if !may_retry
            || !self
                .thread
                .start_over(self.progress.has_begun(), reason, out)
        {
            return Err(failure);
        }
        self.progress = Progress::new(&self.turn, self.config.server, false);
        match self.config.resend_history {
            0 => self.create(out),
            messages => out.push(Output::History(messages)),
        }
        Ok(())
    }

    fn answered(&mut self, answer: AwaitedInteraction, out: &mut Outbox) -> Result<(), Failure> {
        match answer {
            AwaitedInteraction::Submitted {
                action_id, values, ..
            } => self.answer(action_id.as_deref(), &values, out),
            AwaitedInteraction::Expired | AwaitedInteraction::Open => {
                Questions::forget(out);
                let message =
                    "the agent's question was not answered in time: send the message again";
                Err(Failure::new(FailureKind::Timeout, message))
            }
            AwaitedInteraction::Cancelled => Err(Failure::new(
                FailureKind::Cancelled,
                "the run was cancelled",
            )),
        }
    }

    /// The answer to a question of an earlier run.
    fn submitted(
        &mut self,
        answer: &InteractionSubmission,
        out: &mut Outbox,
    ) -> Result<(), Failure> {
        let questions = Questions::restore(&self.turn.state, answer);
        let Some(questions) = questions.filter(|_| self.thread.id().is_some()) else {
            let message =
                "the question that was answered is not known any more: send the message again";
            return Err(Failure::new(FailureKind::ApiError, message));
        };
        self.questions = questions;
        self.answer(answer.action_id.as_deref(), &answer.values, out)
    }

    fn answer(
        &mut self,
        action: Option<&str>,
        values: &JsonObject,
        out: &mut Outbox,
    ) -> Result<(), Failure> {
        match self.questions.answer(action, values, out) {
            None => Ok(()),
            work => {
                self.work = work;
                self.run(out)
            }
        }
    }
}
