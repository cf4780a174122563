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
use crate::ag_ui_agent::events::{AgUiProgress, AgUiStep};
use crate::ag_ui_agent::interrupts::AgUiQuestions;
use crate::catalogue::Platform;
use crate::machine::{HistoryMessage, Machine, MachineInput, MachineOutput, OutputQueue};
use crate::turn::ConnectorTurn;
use crate::upstream::config::ConfigReader;
use crate::upstream::conversation::PlatformConversation;
use crate::upstream::failure::{ConnectorFailure, ErrorStatus, FailureKind};
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
/// Maximum bytes of an event that may be a keep-alive.
const PING_BYTES: usize = 1_024;

fn start(
    turn: ConnectorTurn,
    reader: &mut ConfigReader<'_>,
) -> Result<Box<dyn Machine>, ConnectorFailure> {
    let config = Config::read(reader)?;
    Ok(Box::new(AgUi {
        thread: PlatformConversation::of(&turn, THREAD, |_| true),
        progress: AgUiProgress::new(&turn),
        questions: AgUiQuestions::default(),
        resume: None,
        history: Vec::new(),
        runs: 0,
        turn,
        config,
    }))
}

struct AgUi {
    config: Config,
    turn: ConnectorTurn,
    thread: PlatformConversation,
    progress: AgUiProgress,
    questions: AgUiQuestions,
    /// The answers with which the next run resumes.
    resume: Option<Value>,
    history: Vec<HistoryMessage>,
    runs: u32,
}

impl Machine for AgUi {
    fn on(&mut self, input: MachineInput, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        match input {
            MachineInput::Begin => self.begin(out),
            MachineInput::History(messages) => {
                self.history = messages;
                self.run(out)
            }
            MachineInput::Event(event) => self.event(&event, out),
            MachineInput::Ended => Err(ConnectorFailure::ended_early()),
            MachineInput::Refused(refusal) => self.refused(refusal, out),
            MachineInput::Failed(error) => Err(error.into()),
            MachineInput::Answered(answer) => self.answered(answer, out),
            MachineInput::Opened(_) => Ok(()),
        }
    }

    /// Agents send empty text deltas as keep-alives.
    fn is_ping(&self, event: &UpstreamEvent) -> bool {
        // Check the size and the name first: parsing each event twice would be expensive.
        event.text.len() <= PING_BYTES
            && event.text.contains("_CONTENT")
            && event.json().is_ok_and(|payload| payload["delta"] == "")
    }
}

impl AgUi {
    fn begin(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        let Some(answer) = self.turn.submission.clone() else {
            return self.open(out);
        };
        let questions = AgUiQuestions::restore(&self.turn.state, &answer);
        // Without a stored thread the agent cannot match the answer to its interrupt.
        let Some(questions) = questions.filter(|_| self.thread.id().is_some()) else {
            let message =
                "the question that was answered is not known any more: send the message again";
            return Err(ConnectorFailure::new(FailureKind::ApiError, message));
        };
        self.questions = questions;
        self.answer(answer.action_id.as_deref(), &answer.values, out)
    }

    /// Reads the history first: agents are stateless and receive the conversation with each run.
    fn open(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        if self.config.history == 0 || !self.history.is_empty() {
            return self.run(out);
        }
        out.push(MachineOutput::History(self.config.history));
        Ok(())
    }

    fn run(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        if self.thread.id().is_none() {
            self.thread
                .learn(&format!("runnel_{}", self.turn.run_id), out);
        }
        self.runs += 1;
        // A protocol run has one outcome, so a resumed one needs another id.
        let id = match self.runs {
            1 => self.turn.run_id.clone(),
            run => format!("{}_{run}", self.turn.run_id),
        };
        let run = request::AgUiRun {
            thread: self.thread.id().unwrap_or_default(),
            id,
            state: &self.progress.state,
            history: &self.history,
            resume: self.resume.clone(),
        };
        out.call(request::run(&self.config, &self.turn, run)?);
        Ok(())
    }

    fn event(
        &mut self,
        event: &UpstreamEvent,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let payload = event.json()?;
        // An error page in JSON has no event type.
        if event.is_document && payload["type"].as_str().is_none() {
            return Err(ConnectorFailure::unreadable(&event.text));
        }
        if payload["type"] == "RUN_STARTED"
            && let Some(id) = filled(&payload["threadId"])
        {
            self.thread.learn(id, out);
        }
        match self.progress.event(&payload, out)? {
            AgUiStep::Next => Ok(()),
            AgUiStep::Over => {
                // Store the state before the completion: nothing may follow the terminal event.
                self.progress.keep_state(out);
                self.progress.complete(out)
            }
            AgUiStep::Paused(interrupts) => self.ask(&interrupts, out),
        }
    }

    fn ask(&mut self, interrupts: &Value, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        // A paused agent resumes from this state, perhaps in another run.
        self.progress.keep_state(out);
        let Some(questions) = AgUiQuestions::of(interrupts, self.questions.question_count()) else {
            let message = "the agent waits for an answer that it does not name: update the agent";
            return Err(ConnectorFailure::new(FailureKind::ResponseInvalid, message));
        };
        self.questions = questions;
        self.questions.ask(out);
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
                AgUiQuestions::forget(out);
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

    fn answer(
        &mut self,
        action: Option<&str>,
        values: &JsonObject,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        match self.questions.answer(action, values, out) {
            None => Ok(()),
            resume => {
                self.resume = resume;
                self.open(out)
            }
        }
    }

    fn refused(
        &mut self,
        refusal: ErrorStatus,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let message = refusal.message().unwrap_or_default().to_ascii_lowercase();
        let is_lost = refusal.head.status == 404 && message.contains("thread");
        let reason = "the agent does not know the stored thread";
        // A resumed run depends on its thread, so a new thread cannot continue it.
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
