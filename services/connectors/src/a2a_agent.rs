//! Agents that speak A2A 1.x.

mod card;
mod config;
mod events;
mod faults;
mod request;

use protocol::interaction::AwaitedInteraction;
use serde_json::{Value, json};

use crate::a2a_agent::card::Interface;
use crate::a2a_agent::config::Config;
use crate::a2a_agent::events::{Progress, Step};
use crate::a2a_agent::faults::Fault;
use crate::catalogue::Platform;
use crate::machine::{HistoryMessage, Input, Machine, Outbox, Output};
use crate::request::Request;
use crate::turn::Turn;
use crate::upstream::config::ConfigReader;
use crate::upstream::conversation::{Conversation, with_history};
use crate::upstream::failure::{Failure, FailureKind, Refusal, TransportError};
use crate::upstream::json::filled;
use crate::upstream::question::{ANSWER, fields_of, question};
use crate::upstream::reader::UpstreamEvent;
use crate::upstream::results::cut;

pub(crate) const PLATFORM: Platform = Platform {
    name: "a2a-agent",
    prefix: "a2a",
    label: "A2A agent",
    description: "An agent that speaks A2A 1.0, over JSON-RPC or HTTP and JSON",
    legacy: &[],
    takes_files: true,
    asks: true,
    form: include_str!("a2a_agent/form.json"),
    start,
};

const CONTEXT: &str = "external.conversation_id";
/// The interface of the agent's card.
const INTERFACE: &str = "external.a2a_interface";
/// The task that waits for input, should the run end before it.
const PENDING: &str = "external.pending_task";
/// Times that a task is asked whose stream ended early.
const MOST_CHECKS: u32 = 3;

fn start(turn: Turn, reader: &mut ConfigReader<'_>) -> Result<Box<dyn Machine>, Failure> {
    let config = Config::read(reader)?;
    let kept = turn.state.get(INTERFACE);
    let cached = kept.and_then(|kept| Interface::restore(&config, kept));
    let pending = turn.state.get(PENDING).cloned().unwrap_or_default();
    Ok(Box::new(A2a {
        is_cached: cached.is_some() && config.endpoint.is_none(),
        interface: Interface::configured(&config).or(cached),
        context: Conversation::of(&turn, CONTEXT, |_| true),
        task: filled(&pending["task_id"]).map(str::to_owned),
        text: turn.text.clone(),
        progress: Progress::new(&turn),
        history: Vec::new(),
        stage: Stage::Card,
        is_answer: turn.submission.is_some(),
        messages: 0,
        checks: 0,
        turn,
        config,
    }))
}

struct A2a {
    config: Config,
    turn: Turn,
    interface: Option<Interface>,
    /// The interface comes from the state: the agent may have moved since.
    is_cached: bool,
    context: Conversation,
    /// The task that the next message goes on with.
    task: Option<String>,
    text: String,
    history: Vec<HistoryMessage>,
    progress: Progress,
    stage: Stage,
    /// The text answers a question.
    is_answer: bool,
    messages: u32,
    checks: u32,
}

/// The call that is open, or the answer that is awaited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Card,
    Sending,
    Asking,
    /// The stream ended without a final state: the task is read.
    Checking,
    /// The task goes on, and its stream is opened again.
    Subscribed,
}

impl Machine for A2a {
    fn on(&mut self, input: Input, out: &mut Outbox) -> Result<(), Failure> {
        match input {
            Input::Begin => self.begin(out),
            Input::History(messages) => {
                self.history = messages;
                self.send(out)
            }
            Input::Event(event) => self.event(&event, out),
            Input::Ended => self.ended(out),
            Input::Refused(refusal) => self.refused(refusal, out),
            Input::Failed(error) => self.failed(error, out),
            Input::Answered(answer) => self.answered(answer, out),
            Input::Opened(_) => Ok(()),
        }
    }

    fn stop(&self) -> Option<Request> {
        let task = self.progress.task_id.as_deref()?;
        let interface = self
            .interface
            .as_ref()
            .filter(|_| self.stage != Stage::Asking)?;
        Some(request::cancel(&self.config, interface, task))
    }
}

impl A2a {
    fn begin(&mut self, out: &mut Outbox) -> Result<(), Failure> {
        if let Some(answer) = &self.turn.submission {
            let pending = self.turn.state.get(PENDING).cloned().unwrap_or_default();
            if pending["interaction_id"] != answer.interaction_id.as_str() {
                let message =
                    "the question that was answered is not known any more: send the message again";
                return Err(Failure::new(FailureKind::ApiError, message));
            }
            self.text = answer_of(&answer.values);
        }
        if self.task.is_some() {
            out.remember(PENDING, Value::Null);
        }
        self.open(out)
    }

    fn open(&mut self, out: &mut Outbox) -> Result<(), Failure> {
        if self.interface.is_some() {
            return self.send(out);
        }
        self.stage = Stage::Card;
        out.call(request::authorized(
            &self.config,
            card::request(&self.config),
        ));
        Ok(())
    }

    fn send(&mut self, out: &mut Outbox) -> Result<(), Failure> {
        let Some(interface) = &self.interface else {
            return Err(Failure::ended_early());
        };
        self.messages += 1;
        self.stage = Stage::Sending;
        let text = with_history(&self.history, &self.text);
        let said = request::Message {
            id: format!("{}_{}", self.turn.run_id, self.messages),
            text: &text,
            context: self.context.id(),
            task: self.task.as_deref(),
            with_files: !self.is_answer,
        };
        out.call(request::send(&self.config, interface, &self.turn, &said)?);
        Ok(())
    }

    fn event(&mut self, event: &UpstreamEvent, out: &mut Outbox) -> Result<(), Failure> {
        let told = event.json()?;
        if self.stage == Stage::Card {
            let (interface, kept) = Interface::of_card(&self.config, &told)?;
            self.interface = Some(interface);
            out.remember(INTERFACE, kept);
            return self.send(out);
        }
        if told["error"].is_object() {
            let (fault, failure) = faults::of_rpc(&told["error"]);
            return self.fault(fault, failure, out);
        }
        let told = if told["result"].is_object() {
            &told["result"]
        } else {
            &told
        };
        self.learn(told, out);
        match self.progress.event(told, out)? {
            Step::Next => Ok(()),
            Step::Over => self.progress.complete(out),
            Step::Ask(text) => {
                self.ask(&text, out);
                Ok(())
            }
        }
    }

    fn learn(&mut self, told: &Value, out: &mut Outbox) {
        let names = ["task", "message", "statusUpdate", "artifactUpdate"];
        let mut places = names.iter().map(|name| &told[*name]).chain([told]);
        if let Some(id) = places.find_map(|place| filled(&place["contextId"])) {
            self.context.learn(id, out);
        }
    }

    fn ask(&mut self, text: &str, out: &mut Outbox) {
        self.stage = Stage::Asking;
        self.task = self.progress.task_id.clone();
        let task = self.task.as_deref().unwrap_or_default();
        let id = cut(&format!("a2a_{task}_{}", self.messages), 255);
        out.remember(PENDING, json!({"task_id": task, "interaction_id": id}));
        let asked = question(&id, text, fields_of(&Value::Null), Vec::new());
        out.push(Output::Ask(Box::new(asked)));
    }

    fn answered(&mut self, answer: AwaitedInteraction, out: &mut Outbox) -> Result<(), Failure> {
        match answer {
            AwaitedInteraction::Submitted { values, .. } => {
                self.text = answer_of(&values);
                self.is_answer = true;
                self.history.clear();
                out.remember(PENDING, Value::Null);
                self.send(out)
            }
            // The task stays: the next message goes on with it.
            AwaitedInteraction::Expired | AwaitedInteraction::Open => {
                let message =
                    "the agent's question was not answered in time: send the answer as a message";
                Err(Failure::new(FailureKind::Timeout, message))
            }
            AwaitedInteraction::Cancelled => Err(Failure::new(
                FailureKind::Cancelled,
                "the run was cancelled",
            )),
        }
    }

    fn ended(&mut self, out: &mut Outbox) -> Result<(), Failure> {
        match self.stage {
            Stage::Sending | Stage::Subscribed => self.check(out),
            Stage::Checking => self.subscribe(out),
            Stage::Card | Stage::Asking => Err(Failure::ended_early()),
        }
    }

    fn check(&mut self, out: &mut Outbox) -> Result<(), Failure> {
        let (Some(task), Some(interface)) = (&self.progress.task_id, &self.interface) else {
            return Err(Failure::ended_early());
        };
        if self.checks >= MOST_CHECKS {
            return Err(Failure::ended_early());
        }
        self.checks += 1;
        self.stage = Stage::Checking;
        out.call(request::task(&self.config, interface, task));
        Ok(())
    }

    fn subscribe(&mut self, out: &mut Outbox) -> Result<(), Failure> {
        let (Some(task), Some(interface)) = (&self.progress.task_id, &self.interface) else {
            return Err(Failure::ended_early());
        };
        self.stage = Stage::Subscribed;
        out.call(request::subscribe(&self.config, interface, task));
        Ok(())
    }

    fn failed(&mut self, error: TransportError, out: &mut Outbox) -> Result<(), Failure> {
        match (self.stage, error) {
            (Stage::Sending | Stage::Subscribed, TransportError::Broken) => self.check(out),
            (Stage::Sending, TransportError::Connect) if self.is_cached => {
                self.read_card_again(out)
            }
            _ => Err(error.into()),
        }
    }

    fn refused(&mut self, refusal: Refusal, out: &mut Outbox) -> Result<(), Failure> {
        let has_moved = matches!(refusal.head.status, 404 | 405 | 410);
        let (fault, failure) = faults::of_refusal(refusal);
        if has_moved && fault == Fault::Other && self.is_cached && self.stage == Stage::Sending {
            return self.read_card_again(out);
        }
        self.fault(fault, failure, out)
    }

    fn read_card_again(&mut self, out: &mut Outbox) -> Result<(), Failure> {
        (self.is_cached, self.interface) = (false, None);
        self.open(out)
    }

    fn fault(&mut self, fault: Fault, failure: Failure, out: &mut Outbox) -> Result<(), Failure> {
        match self.stage {
            // A task that ended meanwhile takes no subscription.
            Stage::Subscribed => self.check(out),
            Stage::Sending if !self.progress.has_begun() => self.unsent(fault, failure, out),
            _ => Err(failure),
        }
    }

    /// The message was refused: it may be sent once more in another way.
    fn unsent(&mut self, fault: Fault, failure: Failure, out: &mut Outbox) -> Result<(), Failure> {
        let is_old = matches!(fault, Fault::TaskUnknown | Fault::Unsupported);
        if is_old && self.turn.submission.is_none() && self.task.take().is_some() {
            out.log(
                "warning",
                "the agent's task takes no more input; a new task is started",
            );
            return self.send(out);
        }
        let reason = "the agent does not know the stored context";
        if fault == Fault::TaskUnknown && self.context.start_over(false, reason, out) {
            return match self.config.resend_history {
                0 => self.send(out),
                messages => {
                    out.push(Output::History(messages));
                    Ok(())
                }
            };
        }
        if let (Fault::ContentType, Some(file)) = (fault, self.turn.files.first()) {
            return Err(failure.of_upload(&file.name));
        }
        match &mut self.interface {
            Some(interface) if fault == Fault::Unsupported && interface.streams => {
                interface.streams = false;
                self.send(out)
            }
            _ => Err(failure),
        }
    }
}

fn answer_of(values: &protocol::JsonObject) -> String {
    let answer = values.get(ANSWER).and_then(Value::as_str);
    answer.unwrap_or_default().to_owned()
}
