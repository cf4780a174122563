//! One run of a platform, between its loop and its driver. Pure: the driver does the I/O.

use protocol::JsonObject;
use protocol::interaction::AwaitedInteraction;
use protocol::result::ResultType;
use secrecy::ExposeSecret as _;
use serde_json::Value;

use crate::machine::{HistoryMessage, MachineInput, MachineOutput};
use crate::platform::Platform;
use crate::request::{PlatformResponseHead, ResponseFraming};
use crate::run_loop::RunLoop;
use crate::turn::ConnectorTurn;
use crate::upstream::config::{CallTimeouts, ConfigReader, SecretSource};
use crate::upstream::failure::{
    ConnectorFailure, ErrorStatus, FailureKind, Mapped, TransportError,
};
use crate::upstream::reader::{UpstreamEvent, UpstreamReader};
use crate::upstream::redact::SecretRedactor;

/// Maximum bytes of an error response's body that are stored.
pub(crate) const REFUSAL_BYTES: usize = 64 * 1024;

/// A run. Each method takes one input and returns the outputs, which the driver handles in order.
pub struct MachineSession {
    run: RunLoop,
    redactor: SecretRedactor,
    limits: CallTimeouts,
    phase: SessionPhase,
    has_progress: bool,
}

enum SessionPhase {
    New,
    /// A call without a response head.
    Calling(ResponseFraming),
    Reading(UpstreamReader),
    Refused(PlatformResponseHead, Vec<u8>),
    /// Waits for the history or for a person's answer.
    Waiting,
    Over,
}

impl MachineSession {
    /// Reads and validates the configuration. Nothing is sent before it is valid.
    pub fn new(
        platform: &Platform,
        mut turn: ConnectorTurn,
        config: &JsonObject,
        source: &SecretSource,
    ) -> Mapped<Self> {
        let mut reader = ConfigReader::new(config, source);
        let limits = reader.limits()?;
        turn.shows_reasoning = reader.flag("show-thoughts")?.unwrap_or_default();
        let run_token = turn.run_token.clone();
        let run = RunLoop::new(platform, turn, &mut reader)?;
        let mut secrets = reader.finish()?;
        // An empty secret would match everywhere; the token goes to the platform, so hide it in messages too.
        secrets.extend(run_token.filter(|token| !token.expose_secret().is_empty()));
        Ok(Self {
            run,
            redactor: SecretRedactor::new(secrets),
            limits,
            phase: SessionPhase::New,
            has_progress: false,
        })
    }

    /// The time limits of the run.
    pub fn limits(&self) -> CallTimeouts {
        self.limits
    }

    /// True after the last output.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, SessionPhase::Over)
    }

    /// True if content arrived since the last call of this method; then the driver restarts its idle timer.
    pub fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.has_progress)
    }

    /// True if only the usage of a complete answer can follow.
    pub fn is_answered(&self) -> bool {
        matches!(self.phase, SessionPhase::Reading(_)) && self.run.is_answered()
    }

    /// Begins the run.
    pub fn begin(&mut self) -> Vec<MachineOutput> {
        match self.phase {
            SessionPhase::New => self.give(MachineInput::Begin),
            _ => Vec::new(),
        }
    }

    /// The head of the response to the last call.
    pub fn head(&mut self, head: PlatformResponseHead) -> Vec<MachineOutput> {
        let SessionPhase::Calling(framing) = self.phase else {
            return Vec::new();
        };
        // A response head is progress: the idle timeout of the body starts here.
        self.has_progress = true;
        if !(200..300).contains(&head.status) {
            self.phase = SessionPhase::Refused(head, Vec::new());
            return Vec::new();
        }
        self.phase = SessionPhase::Reading(UpstreamReader::new(framing));
        self.give(MachineInput::Opened(head))
    }

    /// Bytes of the response's body, decoded by its transfer encoding.
    pub fn bytes(&mut self, bytes: &[u8]) -> Vec<MachineOutput> {
        let (mut events, mut read) = (Vec::new(), Ok(()));
        match &mut self.phase {
            SessionPhase::Reading(reader) => read = reader.push(bytes, &mut events),
            SessionPhase::Refused(_, body) => {
                let count = REFUSAL_BYTES.saturating_sub(body.len()).min(bytes.len());
                body.extend_from_slice(&bytes[..count]);
            }
            _ => {}
        }
        let mut outputs = self.deliver(events);
        // A run that ended the run within these events has no use for the error.
        if let Err(error) = read
            && matches!(self.phase, SessionPhase::Reading(_))
        {
            outputs.extend(self.failed(error));
        }
        outputs
    }

    /// The response is complete by the rules of HTTP: its length, its last chunk, or the end of its connection.
    pub fn end(&mut self) -> Vec<MachineOutput> {
        match std::mem::replace(&mut self.phase, SessionPhase::Waiting) {
            SessionPhase::Reading(reader) => {
                let mut events = Vec::new();
                let read = reader.finish(&mut events);
                // `deliver` requires an open response, so use an empty reader for the last events.
                self.phase = SessionPhase::Reading(UpstreamReader::new(ResponseFraming::Document));
                let mut outputs = self.deliver(events);
                if matches!(self.phase, SessionPhase::Reading(_)) {
                    let last = read.map_or_else(MachineInput::Failed, |()| MachineInput::Ended);
                    outputs.extend(self.give(last));
                }
                outputs
            }
            SessionPhase::Refused(head, body) => {
                let text = String::from_utf8_lossy(&body).into_owned();
                self.give(MachineInput::Refused(ErrorStatus { head, text }))
            }
            phase => {
                self.phase = phase;
                Vec::new()
            }
        }
    }

    /// The last call failed, or was silent for the idle timeout.
    pub fn failed(&mut self, error: TransportError) -> Vec<MachineOutput> {
        match std::mem::replace(&mut self.phase, SessionPhase::Waiting) {
            // The status is more specific than the broken body, so report the status.
            SessionPhase::Refused(head, body) => {
                self.phase = SessionPhase::Refused(head, body);
                self.end()
            }
            SessionPhase::Calling(_) | SessionPhase::Reading(_) => {
                self.give(MachineInput::Failed(error))
            }
            phase => {
                self.phase = phase;
                Vec::new()
            }
        }
    }

    /// The answer of [`MachineOutput::History`].
    pub fn history(&mut self, messages: Vec<HistoryMessage>) -> Vec<MachineOutput> {
        match self.phase {
            SessionPhase::Waiting => self.give(MachineInput::History(messages)),
            _ => Vec::new(),
        }
    }

    /// The answer of [`MachineOutput::Ask`].
    pub fn answered(&mut self, answer: AwaitedInteraction) -> Vec<MachineOutput> {
        match self.phase {
            // A late answer after cancellation is ignored.
            SessionPhase::Waiting => self.give(MachineInput::Answered(answer)),
            _ => Vec::new(),
        }
    }

    /// The run was cancelled.
    pub fn cancelled(&mut self) -> Vec<MachineOutput> {
        self.fail(ConnectorFailure::new(
            FailureKind::Cancelled,
            "the run was cancelled",
        ))
    }

    /// The run's deadline or its total timeout has passed.
    pub fn deadline(&mut self) -> Vec<MachineOutput> {
        let message = "the run reached its deadline before the platform's answer was complete";
        self.fail(ConnectorFailure::new(FailureKind::Timeout, message).retryable())
    }

    /// Ends the run with a failure of the driver, such as a file that cannot be read.
    pub fn fail(&mut self, failure: ConnectorFailure) -> Vec<MachineOutput> {
        // The first failure wins: a run has exactly one terminal event.
        if self.is_over() {
            return Vec::new();
        }
        // Before the first input nothing runs on the platform.
        let is_begun = !matches!(self.phase, SessionPhase::New);
        let stop = self.run.stop().filter(|_| is_begun);
        let stop = stop.map(MachineOutput::Notify);
        self.phase = SessionPhase::Over;
        let failed = MachineOutput::Fail(failure.redacted(&self.redactor));
        stop.into_iter().chain([failed]).collect()
    }

    fn deliver(&mut self, events: Vec<UpstreamEvent>) -> Vec<MachineOutput> {
        let mut outputs = Vec::new();
        for event in events {
            // The run may have left this response within the chunk: drop the remaining events.
            if !matches!(self.phase, SessionPhase::Reading(_)) {
                break;
            }
            if self.run.is_ping(&event) {
                continue;
            }
            self.has_progress = true;
            outputs.extend(self.give(MachineInput::Event(event)));
        }
        outputs
    }

    fn give(&mut self, input: MachineInput) -> Vec<MachineOutput> {
        let may_wait = matches!(input, MachineInput::Opened(_) | MachineInput::Event(_));
        let (mut outputs, handled) = self.run.on(input);
        let mut goes_on = may_wait;
        let mut end = None;
        for (at, output) in outputs.iter_mut().enumerate() {
            match output {
                MachineOutput::Call(request) => self.phase = SessionPhase::Calling(request.framing),
                MachineOutput::History(_) | MachineOutput::Ask(_) => {
                    self.phase = SessionPhase::Waiting;
                }
                MachineOutput::Finish(_) | MachineOutput::Fail(_) => {
                    self.phase = SessionPhase::Over;
                }
                MachineOutput::Tell(result) if result.kind == ResultType::ProcessorLog.as_str() => {
                    if let Some(Value::String(text)) = result.data.get_mut("text") {
                        *text = self.redactor.redact(text);
                    }
                    continue;
                }
                MachineOutput::Tell(_)
                | MachineOutput::Remember { .. }
                | MachineOutput::Save(_)
                | MachineOutput::Notify(_) => {
                    continue;
                }
            }
            goes_on = true;
            if self.is_over() {
                end = Some(at + 1);
                break;
            }
        }
        if let Some(end) = end {
            outputs.truncate(end);
            return outputs;
        }
        match handled {
            // Results before the failure stay; next steps do not.
            Err(failure) => {
                outputs.retain(|output| {
                    !matches!(
                        output,
                        MachineOutput::Call(_) | MachineOutput::History(_) | MachineOutput::Ask(_)
                    )
                });
                outputs.extend(self.fail(failure));
            }
            // A run without a next step would wait forever.
            Ok(()) if !goes_on => outputs.extend(self.fail(ConnectorFailure::ended_early())),
            Ok(()) => {}
        }
        outputs
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use url::Url;

    use super::*;
    use crate::mapping::{MappingStep, PlatformMapping};
    use crate::request::PlatformRequest;
    use crate::run::ConnectorRun;
    use crate::upstream::config::SecretHosts;

    /// Calls once, completes at an event `end`, and logs other events.
    struct Careless;

    impl PlatformMapping for Careless {
        fn request(&mut self, _run: &mut ConnectorRun) -> Mapped<PlatformRequest> {
            Ok(request("run").framed(ResponseFraming::Lines))
        }

        fn event(&mut self, event: &UpstreamEvent, run: &mut ConnectorRun) -> Mapped<MappingStep> {
            run.task = Some("t".to_owned());
            if event.text == "end" {
                run.answer.append("text");
                return Ok(MappingStep::Complete);
            }
            run.answer.out.log("info", &event.text);
            Ok(MappingStep::Read)
        }

        fn is_ping(&mut self, event: &UpstreamEvent) -> bool {
            event.text == "ping"
        }

        fn ended(&mut self, _run: &mut ConnectorRun) -> Mapped<MappingStep> {
            Ok(MappingStep::Read)
        }

        fn stop(&self, task: &str, _run: &ConnectorRun) -> Option<PlatformRequest> {
            Some(request(task))
        }
    }

    fn request(path: &str) -> PlatformRequest {
        let url: Url = format!("https://a.example/{path}").parse().unwrap();
        PlatformRequest::get(url)
    }

    fn session(status: u16) -> MachineSession {
        let platform = Platform {
            start: |_, _| Ok(Box::new(Careless)),
            ..crate::n8n_agent::PLATFORM
        };
        let source = SecretSource {
            prefix: String::new(),
            hosts: SecretHosts::Any,
            lookup: Arc::new(|_| None),
        };
        let config = JsonObject::new();
        let mut reader = ConfigReader::new(&config, &source);
        let run = RunLoop::new(&platform, ConnectorTurn::default(), &mut reader);
        let mut session = MachineSession {
            run: run.unwrap(),
            redactor: SecretRedactor::new(vec!["secret-key".into()]),
            limits: CallTimeouts {
                idle: std::time::Duration::ZERO,
                total: None,
            },
            phase: SessionPhase::New,
            has_progress: false,
        };
        session.begin();
        let head = PlatformResponseHead {
            status,
            headers: Vec::new(),
        };
        session.head(head);
        session
    }

    fn failure(outputs: &[MachineOutput]) -> &ConnectorFailure {
        match outputs {
            [.., MachineOutput::Fail(failure)] => failure,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn cancellation_stops_the_platform_once() {
        let mut session = session(200);
        session.bytes(b"text\n");
        let outputs = session.cancelled();
        assert!(matches!(outputs[0], MachineOutput::Notify(_)));
        assert_eq!(failure(&outputs).kind, FailureKind::Cancelled);
        assert!(session.is_over());
        assert!(session.deadline().is_empty() && session.bytes(b"end\n").is_empty());
    }

    #[test]
    fn runs_without_next_step_fail() {
        let outputs = session(200).end();
        assert_eq!(failure(&outputs).kind, FailureKind::ResponseInvalid);
    }

    #[test]
    fn nothing_follows_the_end() {
        let mut session = session(200);
        let outputs = session.bytes(b"end\nmore\nend\n");
        assert!(matches!(outputs[2..], [MachineOutput::Finish(_)]));
        assert!(session.end().is_empty());
    }

    #[test]
    fn pings_do_not_reset_idle_timeout() {
        let mut session = session(200);
        session.take_progress();
        assert!(session.bytes(b"ping\n").is_empty() && !session.take_progress());
        assert_eq!(session.bytes(b"text\n").len(), 1);
        assert!(session.take_progress());
    }

    #[test]
    fn statuses_survive_broken_bodies() {
        let mut session = session(429);
        session.bytes(b"{\"message\"");
        let outputs = session.failed(TransportError::Broken);
        assert_eq!(failure(&outputs).kind, FailureKind::RateLimited);
    }

    #[test]
    fn logs_are_redacted() {
        let outputs = session(200).bytes(b"it is secret-key\n");
        assert!(!format!("{outputs:?}").contains("secret-key"));
    }
}
