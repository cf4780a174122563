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
use crate::a2a_agent::events::{A2aProgress, A2aStep};
use crate::a2a_agent::faults::A2aFault;
use crate::catalogue::Platform;
use crate::machine::{HistoryMessage, Machine, MachineInput, MachineOutput, OutputQueue};
use crate::request::PlatformRequest;
use crate::turn::ConnectorTurn;
use crate::upstream::config::ConfigReader;
use crate::upstream::conversation::{PlatformConversation, with_history};
use crate::upstream::failure::{ConnectorFailure, ErrorStatus, FailureKind, TransportError};
use crate::upstream::json::filled;
use crate::upstream::question::{fields_of, question};
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
const INTERFACE: &str = "external.a2a_interface";
/// The task that waits for input, for the case that the run ends first.
const PENDING: &str = "external.pending_task";
/// Maximum reads of a task after its stream ended early.
const MAX_CHECKS: u32 = 3;

fn start(
    turn: ConnectorTurn,
    reader: &mut ConfigReader<'_>,
) -> Result<Box<dyn Machine>, ConnectorFailure> {
    let config = Config::read(reader)?;
    let stored = turn.state.get(INTERFACE);
    let cached = stored.and_then(|stored| Interface::restore(&config, stored));
    let pending = turn.state.get(PENDING).cloned().unwrap_or_default();
    Ok(Box::new(A2a {
        is_cached: cached.is_some() && config.endpoint.is_none(),
        interface: Interface::configured(&config).or(cached),
        context: PlatformConversation::of(&turn, CONTEXT, |_| true),
        task: filled(&pending["task_id"]).map(str::to_owned),
        text: turn.text.clone(),
        progress: A2aProgress::new(&turn),
        history: Vec::new(),
        stage: A2aStage::Card,
        is_answer: turn.submission.is_some(),
        messages: 0,
        checks: 0,
        is_completed: false,
        turn,
        config,
    }))
}

struct A2a {
    config: Config,
    turn: ConnectorTurn,
    interface: Option<Interface>,
    /// The interface comes from the state: the agent may have moved since then.
    is_cached: bool,
    context: PlatformConversation,
    /// The task that the next message continues.
    task: Option<String>,
    text: String,
    history: Vec<HistoryMessage>,
    progress: A2aProgress,
    stage: A2aStage,
    is_answer: bool,
    messages: u32,
    checks: u32,
    /// The task is complete without a text: its artifacts may follow, or must be read.
    is_completed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum A2aStage {
    Card,
    Sending,
    Asking,
    /// The stream ended without a final state, so the task is read.
    Checking,
    Subscribed,
}

impl Machine for A2a {
    fn on(&mut self, input: MachineInput, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        match input {
            MachineInput::Begin => self.begin(out),
            MachineInput::History(messages) => {
                self.history = messages;
                self.send(out)
            }
            MachineInput::Event(event) => self.event(&event, out),
            MachineInput::Ended => self.ended(out),
            MachineInput::Refused(refusal) => self.refused(refusal, out),
            MachineInput::Failed(error) => self.failed(error, out),
            MachineInput::Answered(answer) => self.answered(answer, out),
            MachineInput::Opened(_) => Ok(()),
        }
    }

    fn is_answered(&self) -> bool {
        self.is_completed
    }

    fn stop(&self) -> Option<PlatformRequest> {
        let task = self.progress.task_id.as_deref()?;
        let interface = self
            .interface
            .as_ref()
            .filter(|_| self.stage != A2aStage::Asking)?;
        Some(request::cancel(&self.config, interface, task))
    }
}

impl A2a {
    fn begin(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        if let Some(answer) = &self.turn.submission {
            let pending = self.turn.state.get(PENDING).cloned().unwrap_or_default();
            // The answer may belong to an older question: another task must not receive it.
            if pending["interaction_id"] != answer.interaction_id.as_str() {
                let message =
                    "the question that was answered is not known any more: send the message again";
                return Err(ConnectorFailure::new(FailureKind::ApiError, message));
            }
            self.text = request::answer_of(&answer.values);
        }
        if self.task.is_some() {
            out.remember(PENDING, Value::Null);
        }
        self.open(out)
    }

    fn open(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        if self.interface.is_some() {
            return self.send(out);
        }
        self.stage = A2aStage::Card;
        out.call(request::authorized(
            &self.config,
            card::request(&self.config),
        ));
        Ok(())
    }

    fn send(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        let Some(interface) = &self.interface else {
            return Err(ConnectorFailure::ended_early());
        };
        self.messages += 1;
        self.stage = A2aStage::Sending;
        let text = with_history(&self.history, &self.text);
        let input = request::A2aMessage {
            id: format!("{}_{}", self.turn.run_id, self.messages),
            text: &text,
            context: self.context.id(),
            task: self.task.as_deref(),
            with_files: !self.is_answer,
        };
        out.call(request::send(&self.config, interface, &self.turn, &input)?);
        Ok(())
    }

    fn event(
        &mut self,
        event: &UpstreamEvent,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let payload = event.json()?;
        if self.stage == A2aStage::Card {
            let (interface, stored) = Interface::of_card(&self.config, &payload)?;
            self.interface = Some(interface);
            out.remember(INTERFACE, stored);
            return self.send(out);
        }
        if payload["error"].is_object() {
            let (fault, failure) = faults::of_rpc(&payload["error"]);
            return self.fault(fault, failure, out);
        }
        let payload = if payload["result"].is_object() {
            &payload["result"]
        } else {
            &payload
        };
        self.learn(payload, out);
        match self.progress.event(payload, out)? {
            A2aStep::Next => Ok(()),
            A2aStep::Over => self.over(out),
            A2aStep::Ask(text) => {
                self.ask(&text, out);
                Ok(())
            }
        }
    }

    /// Handles the final state. Agents send it before the artifact, or leave the artifact out of the stream.
    fn over(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        let is_stream = matches!(self.stage, A2aStage::Sending | A2aStage::Subscribed);
        if is_stream && self.progress.is_empty() && self.progress.task_id.is_some() {
            // Wait for late artifacts; the stream's end or the usage timeout reads the task.
            self.is_completed = true;
        }
        if is_stream && self.is_completed {
            return Ok(());
        }
        self.progress.complete(out)
    }

    fn learn(&mut self, payload: &Value, out: &mut OutputQueue) {
        let names = ["task", "message", "statusUpdate", "artifactUpdate"];
        let mut members = names.iter().map(|name| &payload[*name]).chain([payload]);
        if let Some(id) = members.find_map(|member| filled(&member["contextId"])) {
            self.context.learn(id, out);
        }
    }

    fn ask(&mut self, text: &str, out: &mut OutputQueue) {
        self.stage = A2aStage::Asking;
        self.task = self.progress.task_id.clone();
        let task = self.task.as_deref().unwrap_or_default();
        let id = cut(&format!("a2a_{task}_{}", self.messages), 255);
        // Store the task before the question: this run may end while the person thinks.
        out.remember(PENDING, json!({"task_id": task, "interaction_id": id}));
        let question = question(&id, text, fields_of(&Value::Null), Vec::new());
        out.push(MachineOutput::Ask(Box::new(question)));
    }

    fn answered(
        &mut self,
        answer: AwaitedInteraction,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        match answer {
            AwaitedInteraction::Submitted { values, .. } => {
                self.text = request::answer_of(&values);
                self.is_answer = true;
                self.history.clear();
                out.remember(PENDING, Value::Null);
                self.send(out)
            }
            // The task stays: the next message continues it.
            AwaitedInteraction::Expired | AwaitedInteraction::Open => {
                let message =
                    "the agent's question was not answered in time: send the answer as a message";
                Err(ConnectorFailure::new(FailureKind::Timeout, message))
            }
            AwaitedInteraction::Cancelled => Err(ConnectorFailure::new(
                FailureKind::Cancelled,
                "the run was cancelled",
            )),
        }
    }

    fn ended(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        match self.stage {
            A2aStage::Sending | A2aStage::Subscribed => self.check(out),
            A2aStage::Checking if self.is_completed => self.progress.complete(out),
            A2aStage::Checking => self.subscribe(out),
            A2aStage::Card | A2aStage::Asking => Err(ConnectorFailure::ended_early()),
        }
    }

    fn check(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        let (Some(task), Some(interface)) = (&self.progress.task_id, &self.interface) else {
            return Err(ConnectorFailure::ended_early());
        };
        if self.checks >= MAX_CHECKS {
            return Err(ConnectorFailure::ended_early());
        }
        self.checks += 1;
        self.stage = A2aStage::Checking;
        out.call(request::task(&self.config, interface, task));
        Ok(())
    }

    fn subscribe(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        let (Some(task), Some(interface)) = (&self.progress.task_id, &self.interface) else {
            return Err(ConnectorFailure::ended_early());
        };
        self.stage = A2aStage::Subscribed;
        out.call(request::subscribe(&self.config, interface, task));
        Ok(())
    }

    fn failed(
        &mut self,
        error: TransportError,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        match (self.stage, error) {
            (A2aStage::Sending | A2aStage::Subscribed, error)
                if self.is_completed || error == TransportError::Broken =>
            {
                self.check(out)
            }
            (A2aStage::Checking, _) if self.is_completed => self.progress.complete(out),
            (A2aStage::Sending, TransportError::Connect) if self.is_cached => {
                self.read_card_again(out)
            }
            _ => Err(error.into()),
        }
    }

    fn refused(
        &mut self,
        refusal: ErrorStatus,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        // Servers answer these for an endpoint that no longer exists.
        let has_moved = matches!(refusal.head.status, 404 | 405 | 410);
        let (fault, failure) = faults::of_refusal(refusal);
        if has_moved
            && fault == A2aFault::Other
            && self.is_cached
            && self.stage == A2aStage::Sending
        {
            return self.read_card_again(out);
        }
        self.fault(fault, failure, out)
    }

    fn read_card_again(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        (self.is_cached, self.interface) = (false, None);
        self.open(out)
    }

    fn fault(
        &mut self,
        fault: A2aFault,
        failure: ConnectorFailure,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        match self.stage {
            // A task that ended in the meantime accepts no subscription.
            A2aStage::Subscribed => self.check(out),
            A2aStage::Checking if self.is_completed => self.progress.complete(out),
            A2aStage::Sending if !self.progress.has_begun() => self.unsent(fault, failure, out),
            _ => Err(failure),
        }
    }

    /// Handles a refused message: it may be sent once more in another form.
    fn unsent(
        &mut self,
        fault: A2aFault,
        failure: ConnectorFailure,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let is_old = matches!(fault, A2aFault::TaskUnknown | A2aFault::Unsupported);
        if is_old && self.turn.submission.is_none() && self.task.take().is_some() {
            out.log(
                "warning",
                "the agent's task takes no more input; a new task is started",
            );
            return self.send(out);
        }
        let reason = "the agent does not know the stored context";
        if fault == A2aFault::TaskUnknown && self.context.start_over(false, reason, out) {
            return match self.config.resend_history {
                0 => self.send(out),
                messages => {
                    out.push(MachineOutput::History(messages));
                    Ok(())
                }
            };
        }
        if let (A2aFault::ContentType, Some(file)) = (fault, self.turn.files.first()) {
            return Err(failure.of_upload(&file.name));
        }
        match &mut self.interface {
            // Agents may announce streaming in their card and then refuse it.
            Some(interface) if fault == A2aFault::Unsupported && interface.streams => {
                interface.streams = false;
                self.send(out)
            }
            _ => Err(failure),
        }
    }
}
