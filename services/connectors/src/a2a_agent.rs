//! Agents that speak A2A 1.x.

mod card;
mod config;
mod events;
mod faults;
mod request;

use protocol::interaction::InteractionSubmission;
use serde_json::{Value, json};

use crate::a2a_agent::card::Interface;
use crate::a2a_agent::config::Config;
use crate::a2a_agent::events::{A2aProgress, A2aStep};
use crate::a2a_agent::faults::A2aFault;
use crate::mapping::{FileReference, MappingStep, PersonAnswer, PlatformMapping};
use crate::platform::{ConversationKind, FileSupport, HistoryUse, Platform};
use crate::request::PlatformRequest;
use crate::run::ConnectorRun;
use crate::turn::{ConnectorTurn, TurnFile};
use crate::upstream::config::ConfigReader;
use crate::upstream::failure::{
    ConnectorFailure, ErrorStatus, FailureKind, Mapped, TransportError,
};
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
    files: FileSupport::Accepted,
    asks: true,
    conversation: ConversationKind::new("external.conversation_id", "the agent", "context"),
    history: HistoryUse::Resent(0),
    form: include_str!("a2a_agent/form.json"),
    start,
};

const INTERFACE: &str = "external.a2a_interface";
/// The task that waits for input, for the case that the run ends first.
const PENDING: &str = "external.pending_task";
/// Maximum reads of a task after its stream ended early.
const MAX_CHECKS: u32 = 3;

fn start(turn: &ConnectorTurn, reader: &mut ConfigReader<'_>) -> Mapped<Box<dyn PlatformMapping>> {
    let config = Config::read(reader)?;
    let stored = turn.state.get(INTERFACE);
    let cached = stored.and_then(|stored| Interface::restore(&config, stored));
    let pending = turn.state.get(PENDING);
    let task = pending.and_then(|pending| filled(&pending["task_id"]));
    Ok(Box::new(A2a {
        is_cached: cached.is_some() && config.endpoint.is_none(),
        interface: Interface::configured(&config).or(cached),
        has_pending: task.is_some(),
        task: task.map(str::to_owned),
        input: None,
        progress: A2aProgress::default(),
        stage: A2aStage::Card,
        messages: 0,
        checks: 0,
        is_completed: false,
        config,
    }))
}

struct A2a {
    config: Config,
    interface: Option<Interface>,
    /// The interface comes from the state: the agent may have moved since then.
    is_cached: bool,
    /// The state has a task that waits for input.
    has_pending: bool,
    /// The task that the next message continues.
    task: Option<String>,
    /// The answer to a question; absent for the message of the turn.
    input: Option<String>,
    progress: A2aProgress,
    stage: A2aStage,
    messages: u32,
    checks: u32,
    /// The task is complete without a text: its artifacts may follow, or must be read.
    is_completed: bool,
}

/// The open call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum A2aStage {
    Card,
    Sending,
    /// The stream ended without a final state, so the task is read.
    Checking,
    Subscribed,
}

impl PlatformMapping for A2a {
    /// Reads the card, or sends the message to the interface.
    fn request(&mut self, run: &mut ConnectorRun) -> Mapped<PlatformRequest> {
        if std::mem::take(&mut self.has_pending) {
            run.answer.out.remember(PENDING, Value::Null);
        }
        let Some(interface) = &self.interface else {
            self.stage = A2aStage::Card;
            return Ok(card::request(&self.config));
        };
        self.messages += 1;
        self.stage = A2aStage::Sending;
        let message = request::A2aMessage {
            id: format!("{}_{}", run.turn.run_id, self.messages),
            text: run.query(self.input.as_ref().unwrap_or(&run.turn.text)),
            task: self.task.as_deref(),
            // The files belong to the message of the event.
            files: if self.input.is_none() {
                &run.files
            } else {
                &[]
            },
        };
        Ok(request::send(&self.config, interface, run, &message))
    }

    fn event(&mut self, event: &UpstreamEvent, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        let payload = event.json()?;
        if self.stage == A2aStage::Card {
            let (interface, stored) = Interface::of_card(&self.config, &payload)?;
            self.interface = Some(interface);
            run.answer.out.remember(INTERFACE, stored);
            return Ok(MappingStep::Send);
        }
        if payload["error"].is_object() {
            return self.fault(faults::of_rpc(&payload["error"]), run);
        }
        let payload = if payload["result"].is_object() {
            &payload["result"]
        } else {
            &payload
        };
        let names = ["task", "message", "statusUpdate", "artifactUpdate"];
        let mut members = names.iter().map(|name| &payload[*name]).chain([payload]);
        if let Some(id) = members.find_map(|member| filled(&member["contextId"])) {
            run.learn(id);
        }
        match self.progress.event(payload, run)? {
            A2aStep::Next => Ok(MappingStep::Read),
            A2aStep::Over => Ok(self.over(run)),
            A2aStep::Ask(text) => Ok(self.ask(&text, run)),
        }
    }

    fn file(&self, file: &TurnFile, _run: &ConnectorRun) -> Mapped<FileReference> {
        request::part(file).map(FileReference::Inline)
    }

    fn refusal_code(&self, body: &Value) -> Option<String> {
        let mut details = body["error"]["details"].as_array()?.iter();
        let reason = details.find_map(|detail| detail["reason"].as_str());
        reason.map(str::to_owned)
    }

    fn is_lost(&self, failure: &ConnectorFailure) -> bool {
        self.stage == A2aStage::Sending && A2aFault::of(failure) == A2aFault::TaskUnknown
    }

    fn is_answered(&self) -> bool {
        self.is_completed
    }

    fn ended(&mut self, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        match self.stage {
            A2aStage::Sending | A2aStage::Subscribed => self.check(run),
            A2aStage::Checking if self.is_completed => Ok(MappingStep::Complete),
            A2aStage::Checking => self.subscribe(run),
            A2aStage::Card => Err(ConnectorFailure::ended_early()),
        }
    }

    fn refused(
        &mut self,
        refusal: &ErrorStatus,
        failure: ConnectorFailure,
        run: &mut ConnectorRun,
    ) -> Mapped<MappingStep> {
        // Servers answer these for an endpoint that no longer exists.
        let has_moved = matches!(refusal.head.status, 404 | 405 | 410)
            && A2aFault::of(&failure) == A2aFault::Other;
        if has_moved && self.is_cached && self.stage == A2aStage::Sending {
            return Ok(self.read_card_again());
        }
        self.fault(failure, run)
    }

    fn failed(&mut self, error: TransportError, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        match (self.stage, error) {
            (A2aStage::Sending | A2aStage::Subscribed, error)
                if self.is_completed || error == TransportError::Broken =>
            {
                self.check(run)
            }
            (A2aStage::Checking, _) if self.is_completed => Ok(MappingStep::Complete),
            (A2aStage::Sending, TransportError::Connect) if self.is_cached => {
                Ok(self.read_card_again())
            }
            _ => Err(error.into()),
        }
    }

    fn submitted(
        &mut self,
        answer: InteractionSubmission,
        run: &mut ConnectorRun,
    ) -> Mapped<MappingStep> {
        let pending = run.turn.state.get(PENDING);
        let id = pending.map(|pending| &pending["interaction_id"]);
        // The answer may belong to an older question: another task must not receive it.
        if id.is_none_or(|id| *id != answer.interaction_id.as_str()) {
            return Err(ConnectorFailure::question_unknown());
        }
        self.input = Some(request::answer_of(&answer.values));
        Ok(MappingStep::Send)
    }

    fn answered(&mut self, answer: PersonAnswer, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        self.input = Some(request::answer_of(&answer.values));
        self.has_pending = true;
        run.history.clear();
        run.task.clone_from(&self.task);
        Ok(MappingStep::Send)
    }

    /// The task stays: the next message continues it.
    fn expired(&mut self, _run: &mut ConnectorRun) -> Mapped<MappingStep> {
        let message = "the agent's question was not answered in time: send the answer as a message";
        Err(ConnectorFailure::new(FailureKind::Timeout, message))
    }

    fn stop(&self, task: &str, _run: &ConnectorRun) -> Option<PlatformRequest> {
        let interface = self.interface.as_ref()?;
        Some(request::cancel(&self.config, interface, task))
    }
}

impl A2a {
    /// Handles the final state. Agents send it before the artifact, or leave the artifact out of the stream.
    fn over(&mut self, run: &ConnectorRun) -> MappingStep {
        let is_stream = matches!(self.stage, A2aStage::Sending | A2aStage::Subscribed);
        if is_stream && run.answer.has_no_content() && run.task.is_some() {
            // Wait for late artifacts; the stream's end or the usage timeout reads the task.
            self.is_completed = true;
        }
        if is_stream && self.is_completed {
            return MappingStep::Read;
        }
        MappingStep::Complete
    }

    fn ask(&mut self, text: &str, run: &mut ConnectorRun) -> MappingStep {
        // A task that waits for input needs no stop call.
        self.task = run.task.take();
        let task = self.task.as_deref().unwrap_or_default();
        let id = cut(&format!("a2a_{task}_{}", self.messages), 255);
        // Store the task before the question: this run may end while the person thinks.
        let pending = json!({"task_id": task, "interaction_id": id});
        run.answer.out.remember(PENDING, pending);
        let question = question(&id, text, fields_of(&Value::Null), Vec::new());
        MappingStep::Ask(Box::new(question))
    }

    fn check(&mut self, run: &ConnectorRun) -> Mapped<MappingStep> {
        let (Some(task), Some(interface)) = (&run.task, &self.interface) else {
            return Err(ConnectorFailure::ended_early());
        };
        if self.checks >= MAX_CHECKS {
            return Err(ConnectorFailure::ended_early());
        }
        self.checks += 1;
        self.stage = A2aStage::Checking;
        Ok(MappingStep::call(request::task(
            &self.config,
            interface,
            task,
        )))
    }

    fn subscribe(&mut self, run: &ConnectorRun) -> Mapped<MappingStep> {
        let (Some(task), Some(interface)) = (&run.task, &self.interface) else {
            return Err(ConnectorFailure::ended_early());
        };
        self.stage = A2aStage::Subscribed;
        let request = request::subscribe(&self.config, interface, task);
        Ok(MappingStep::call(request))
    }

    fn read_card_again(&mut self) -> MappingStep {
        (self.is_cached, self.interface) = (false, None);
        MappingStep::Send
    }

    fn fault(&mut self, failure: ConnectorFailure, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        match self.stage {
            // A task that ended in the meantime accepts no subscription.
            A2aStage::Subscribed => self.check(run),
            A2aStage::Checking if self.is_completed => Ok(MappingStep::Complete),
            A2aStage::Sending if !run.answer.has_begun() => self.unsent(failure, run),
            _ => Err(failure),
        }
    }

    /// Handles a refused message: it may be sent once more in another form.
    fn unsent(&mut self, failure: ConnectorFailure, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        let fault = A2aFault::of(&failure);
        let is_old = matches!(fault, A2aFault::TaskUnknown | A2aFault::Unsupported);
        if is_old && run.turn.submission.is_none() && self.task.take().is_some() {
            let text = "the agent's task takes no more input; a new task is started";
            run.answer.out.log("warning", text);
            return Ok(MappingStep::Send);
        }
        match (fault, run.turn.files.first(), &mut self.interface) {
            (A2aFault::ContentType, Some(file), _) => Err(failure.of_upload(&file.name)),
            // Agents may announce streaming in their card and then refuse it.
            (A2aFault::Unsupported, _, Some(interface)) if interface.streams => {
                interface.streams = false;
                Ok(MappingStep::Send)
            }
            _ => Err(failure),
        }
    }
}
