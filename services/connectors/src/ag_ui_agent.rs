//! Agents that speak AG-UI 1.0.

mod config;
mod events;
mod interrupts;
mod patch;
mod request;

use protocol::JsonObject;
use protocol::interaction::AwaitedInteraction;
use serde_json::Value;

use crate::ag_ui_agent::config::Config;
use crate::ag_ui_agent::events::{Progress, Step};
use crate::ag_ui_agent::interrupts::Questions;
use crate::catalogue::Platform;
use crate::machine::{HistoryMessage, Input, Machine, Outbox, Output};
use crate::turn::Turn;
use crate::upstream::config::ConfigReader;
use crate::upstream::conversation::Conversation;
use crate::upstream::failure::{Failure, FailureKind, Refusal};
use crate::upstream::json::filled;
use crate::upstream::reader::UpstreamEvent;

pub(crate) const PLATFORM: Platform = Platform {
    name: "ag-ui-agent",
    prefix: "ag_ui",
    label: "AG-UI agent",
    description: "An agent that speaks AG-UI 1.0",
    legacy: &[],
    takes_files: true,
    asks: true,
    form: include_str!("ag_ui_agent/form.json"),
    start,
};

const THREAD: &str = "external.thread_id";
/// Bytes of an event that may be a keep-alive.
const PING_BYTES: usize = 1_024;

fn start(turn: Turn, reader: &mut ConfigReader<'_>) -> Result<Box<dyn Machine>, Failure> {
    let config = Config::read(reader)?;
    Ok(Box::new(AgUi {
        thread: Conversation::of(&turn, THREAD, |_| true),
        progress: Progress::new(&turn),
        questions: Questions::default(),
        resume: None,
        history: Vec::new(),
        runs: 0,
        turn,
        config,
    }))
}

struct AgUi {
    config: Config,
    turn: Turn,
    thread: Conversation,
    progress: Progress,
    questions: Questions,
    /// The answers that the next run resumes with.
    resume: Option<Value>,
    history: Vec<HistoryMessage>,
    runs: u32,
}

impl Machine for AgUi {
    fn on(&mut self, input: Input, out: &mut Outbox) -> Result<(), Failure> {
        match input {
            Input::Begin => self.begin(out),
            Input::History(messages) => {
                self.history = messages;
                self.run(out)
            }
            Input::Event(event) => self.event(&event, out),
            Input::Ended => Err(Failure::ended_early()),
            Input::Refused(refusal) => self.refused(refusal, out),
            Input::Failed(error) => Err(error.into()),
            Input::Answered(answer) => self.answered(answer, out),
            Input::Opened(_) => Ok(()),
        }
    }

    /// Agents send empty pieces of text as keep-alives.
    fn is_ping(&self, event: &UpstreamEvent) -> bool {
        event.text.len() <= PING_BYTES
            && event.text.contains("_CONTENT")
            && event.json().is_ok_and(|told| told["delta"] == "")
    }
}

impl AgUi {
    fn begin(&mut self, out: &mut Outbox) -> Result<(), Failure> {
        let Some(answer) = self.turn.submission.clone() else {
            return self.open(out);
        };
        let questions = Questions::restore(&self.turn.state, &answer);
        let Some(questions) = questions.filter(|_| self.thread.id().is_some()) else {
            let message =
                "the question that was answered is not known any more: send the message again";
            return Err(Failure::new(FailureKind::ApiError, message));
        };
        self.questions = questions;
        self.answer(answer.action_id.as_deref(), &answer.values, out)
    }

    /// Agents get the conversation with each run.
    fn open(&mut self, out: &mut Outbox) -> Result<(), Failure> {
        if self.config.history == 0 || !self.history.is_empty() {
            return self.run(out);
        }
        out.push(Output::History(self.config.history));
        Ok(())
    }

    fn run(&mut self, out: &mut Outbox) -> Result<(), Failure> {
        if self.thread.id().is_none() {
            self.thread
                .learn(&format!("runnel_{}", self.turn.run_id), out);
        }
        self.runs += 1;
        let id = match self.runs {
            1 => self.turn.run_id.clone(),
            run => format!("{}_{run}", self.turn.run_id),
        };
        let run = request::Run {
            thread: self.thread.id().unwrap_or_default(),
            id,
            state: &self.progress.state,
            history: &self.history,
            resume: self.resume.clone(),
        };
        out.call(request::run(&self.config, &self.turn, run)?);
        Ok(())
    }

    fn event(&mut self, event: &UpstreamEvent, out: &mut Outbox) -> Result<(), Failure> {
        let told = event.json()?;
        if event.is_document && told["type"].as_str().is_none() {
            return Err(Failure::unreadable(&event.text));
        }
        if told["type"] == "RUN_STARTED"
            && let Some(id) = filled(&told["threadId"])
        {
            self.thread.learn(id, out);
        }
        match self.progress.event(&told, out)? {
            Step::Next => Ok(()),
            Step::Over => {
                self.progress.keep_state(out);
                self.progress.complete(out)
            }
            Step::Paused(interrupts) => self.ask(&interrupts, out),
        }
    }

    fn ask(&mut self, interrupts: &Value, out: &mut Outbox) -> Result<(), Failure> {
        self.progress.keep_state(out);
        let Some(questions) = Questions::of(interrupts, self.questions.asked()) else {
            let message = "the agent waits for an answer that it does not name: update the agent";
            return Err(Failure::new(FailureKind::ResponseInvalid, message));
        };
        self.questions = questions;
        self.questions.ask(out);
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

    fn answer(
        &mut self,
        action: Option<&str>,
        values: &JsonObject,
        out: &mut Outbox,
    ) -> Result<(), Failure> {
        match self.questions.answer(action, values, out) {
            None => Ok(()),
            resume => {
                self.resume = resume;
                self.open(out)
            }
        }
    }

    fn refused(&mut self, refusal: Refusal, out: &mut Outbox) -> Result<(), Failure> {
        let told = refusal.message().unwrap_or_default().to_ascii_lowercase();
        let is_lost = refusal.head.status == 404 && told.contains("thread");
        let reason = "the agent does not know the stored thread";
        let may_retry = is_lost && self.resume.is_none();
        if may_retry
            && self
                .thread
                .start_over(self.progress.has_begun(), reason, out)
        {
            return self.run(out);
        }
        Err(refusal.into())
    }
}
