//! One run of a platform between its machine and its driver. Pure: the driver does the I/O.

use protocol::JsonObject;
use protocol::interaction::AwaitedInteraction;
use protocol::result::ResultType;
use secrecy::ExposeSecret as _;
use serde_json::Value;

use crate::catalogue::Platform;
use crate::machine::{Head, HistoryMessage, Input, Machine, Outbox, Output};
use crate::request::Framing;
use crate::turn::Turn;
use crate::upstream::config::{ConfigReader, Limits, SecretSource};
use crate::upstream::failure::{Failure, FailureKind, Refusal, TransportError};
use crate::upstream::reader::{Reader, UpstreamEvent};
use crate::upstream::redact::Redactor;

/// Bytes of a refusal's body.
pub(crate) const REFUSAL_BYTES: usize = 64 * 1024;

/// A run. Each method takes one input and gives the outputs that the driver handles in order.
pub struct Session {
    machine: Box<dyn Machine>,
    redactor: Redactor,
    limits: Limits,
    phase: Phase,
    has_progress: bool,
}

enum Phase {
    New,
    /// A call without a response head.
    Calling(Framing),
    Reading(Reader),
    Refused(Head, Vec<u8>),
    /// For the history, or for a person's answer.
    Waiting,
    Over,
}

impl Session {
    /// Reads the configuration; nothing is sent before it is valid.
    pub fn new(
        platform: &Platform,
        mut turn: Turn,
        config: &JsonObject,
        source: &SecretSource,
    ) -> Result<Self, Failure> {
        let mut reader = ConfigReader::new(config, source);
        let limits = reader.limits()?;
        turn.shows_thoughts = reader.flag("show-thoughts", false)?;
        let run_token = turn.run_token.clone();
        let machine = (platform.start)(turn, &mut reader)?;
        let mut secrets = reader.finish()?;
        secrets.extend(run_token.filter(|token| !token.expose_secret().is_empty()));
        Ok(Self {
            machine,
            redactor: Redactor::new(secrets),
            limits,
            phase: Phase::New,
            has_progress: false,
        })
    }

    /// The time limits of the run.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// True after the last output.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// True if content came since the last call of this method: the driver restarts its idle timer then.
    pub fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.has_progress)
    }

    /// Begins the run.
    pub fn begin(&mut self) -> Vec<Output> {
        match self.phase {
            Phase::New => self.give(Input::Begin),
            _ => Vec::new(),
        }
    }

    /// The head of the response to the last call.
    pub fn head(&mut self, head: Head) -> Vec<Output> {
        let Phase::Calling(framing) = self.phase else {
            return Vec::new();
        };
        self.has_progress = true;
        if !(200..300).contains(&head.status) {
            self.phase = Phase::Refused(head, Vec::new());
            return Vec::new();
        }
        self.phase = Phase::Reading(Reader::new(framing));
        self.give(Input::Opened(head))
    }

    /// Bytes of the response's body, decoded by its transfer encoding.
    pub fn bytes(&mut self, bytes: &[u8]) -> Vec<Output> {
        let (mut events, mut read) = (Vec::new(), Ok(()));
        match &mut self.phase {
            Phase::Reading(reader) => read = reader.push(bytes, &mut events),
            Phase::Refused(_, body) => {
                let room = REFUSAL_BYTES.saturating_sub(body.len()).min(bytes.len());
                body.extend_from_slice(&bytes[..room]);
            }
            _ => {}
        }
        let mut outputs = self.deliver(events);
        if let Err(error) = read
            && matches!(self.phase, Phase::Reading(_))
        {
            outputs.extend(self.failed(error));
        }
        outputs
    }

    /// The response is complete by the rules of HTTP: its length, its last chunk, or the end of its connection.
    pub fn end(&mut self) -> Vec<Output> {
        match std::mem::replace(&mut self.phase, Phase::Waiting) {
            Phase::Reading(reader) => {
                let mut events = Vec::new();
                let read = reader.finish(&mut events);
                // Events are delivered to a response that is open.
                self.phase = Phase::Reading(Reader::new(Framing::Document));
                let mut outputs = self.deliver(events);
                if matches!(self.phase, Phase::Reading(_)) {
                    let last = read.map_or_else(Input::Failed, |()| Input::Ended);
                    outputs.extend(self.give(last));
                }
                outputs
            }
            Phase::Refused(head, body) => {
                let text = String::from_utf8_lossy(&body).into_owned();
                self.give(Input::Refused(Refusal { head, text }))
            }
            phase => {
                self.phase = phase;
                Vec::new()
            }
        }
    }

    /// The last call failed, or was silent for the idle limit.
    pub fn failed(&mut self, error: TransportError) -> Vec<Output> {
        match std::mem::replace(&mut self.phase, Phase::Waiting) {
            // A status says more than the end of its body.
            Phase::Refused(head, body) => {
                self.phase = Phase::Refused(head, body);
                self.end()
            }
            Phase::Calling(_) | Phase::Reading(_) => self.give(Input::Failed(error)),
            phase => {
                self.phase = phase;
                Vec::new()
            }
        }
    }

    /// The answer of [`Output::History`].
    pub fn history(&mut self, messages: Vec<HistoryMessage>) -> Vec<Output> {
        match self.phase {
            Phase::Waiting => self.give(Input::History(messages)),
            _ => Vec::new(),
        }
    }

    /// The answer of [`Output::Ask`].
    pub fn answered(&mut self, answer: AwaitedInteraction) -> Vec<Output> {
        match self.phase {
            Phase::Waiting => self.give(Input::Answered(answer)),
            _ => Vec::new(),
        }
    }

    /// The run was cancelled.
    pub fn cancelled(&mut self) -> Vec<Output> {
        self.fail(Failure::new(
            FailureKind::Cancelled,
            "the run was cancelled",
        ))
    }

    /// The run's deadline or its total timeout has passed.
    pub fn deadline(&mut self) -> Vec<Output> {
        let message = "the run reached its deadline before the platform's answer was complete";
        self.fail(Failure::new(FailureKind::Timeout, message).retryable())
    }

    /// Ends the run with a failure of the driver, such as a file that cannot be read.
    pub fn fail(&mut self, failure: Failure) -> Vec<Output> {
        if self.is_over() {
            return Vec::new();
        }
        let is_begun = !matches!(self.phase, Phase::New);
        let stop = self.machine.stop().filter(|_| is_begun);
        let stop = stop.map(Output::Notify);
        self.phase = Phase::Over;
        let failed = Output::Fail(failure.redacted(&self.redactor));
        stop.into_iter().chain([failed]).collect()
    }

    fn deliver(&mut self, events: Vec<UpstreamEvent>) -> Vec<Output> {
        let mut outputs = Vec::new();
        for event in events {
            if !matches!(self.phase, Phase::Reading(_)) {
                break;
            }
            if self.machine.is_ping(&event) {
                continue;
            }
            self.has_progress = true;
            outputs.extend(self.give(Input::Event(event)));
        }
        outputs
    }

    fn give(&mut self, input: Input) -> Vec<Output> {
        let may_wait = matches!(input, Input::Opened(_) | Input::Event(_));
        let mut out = Outbox::default();
        let handled = self.machine.on(input, &mut out);
        let mut outputs = out.0;
        let mut goes_on = may_wait;
        let mut end = None;
        for (at, output) in outputs.iter_mut().enumerate() {
            match output {
                Output::Call(request) => self.phase = Phase::Calling(request.framing),
                Output::History(_) | Output::Ask(_) => self.phase = Phase::Waiting,
                Output::Finish(_) | Output::Fail(_) => self.phase = Phase::Over,
                Output::Tell(result) if result.kind == ResultType::ProcessorLog.as_str() => {
                    if let Some(Value::String(text)) = result.data.get_mut("text") {
                        *text = self.redactor.redact(text);
                    }
                    continue;
                }
                Output::Tell(_) | Output::Remember { .. } | Output::Save(_) | Output::Notify(_) => {
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
            Err(failure) => {
                outputs.retain(|output| {
                    !matches!(
                        output,
                        Output::Call(_) | Output::History(_) | Output::Ask(_)
                    )
                });
                outputs.extend(self.fail(failure));
            }
            // A machine must not leave its run without a next step.
            Ok(()) if !goes_on => outputs.extend(self.fail(Failure::ended_early())),
            Ok(()) => {}
        }
        outputs
    }
}

#[cfg(test)]
mod tests {
    use url::Url;

    use super::*;
    use crate::request::Request;

    /// Calls once, finishes at an event `end`, and does not care about the end of its response.
    struct Careless;

    impl Machine for Careless {
        fn on(&mut self, input: Input, out: &mut Outbox) -> Result<(), Failure> {
            match input {
                Input::Begin => out.call(request("run").framed(Framing::Lines)),
                Input::Event(event) if event.text == "end" => {
                    out.finish("stop", None);
                    out.finish("again", None);
                }
                Input::Event(event) => out.log("info", &event.text),
                Input::Refused(refusal) => return Err(refusal.into()),
                _ => {}
            }
            Ok(())
        }

        fn is_ping(&self, event: &UpstreamEvent) -> bool {
            event.text == "ping"
        }

        fn stop(&self) -> Option<Request> {
            Some(request("stop"))
        }
    }

    fn request(path: &str) -> Request {
        let url: Url = format!("https://a.example/{path}").parse().unwrap();
        Request::get(url)
    }

    fn session(status: u16) -> Session {
        let mut session = Session {
            machine: Box::new(Careless),
            redactor: Redactor::new(vec!["secret-key".into()]),
            limits: Limits {
                idle: std::time::Duration::ZERO,
                total: None,
            },
            phase: Phase::New,
            has_progress: false,
        };
        session.begin();
        let head = Head {
            status,
            headers: Vec::new(),
        };
        session.head(head);
        session
    }

    fn failure(outputs: &[Output]) -> &Failure {
        match outputs {
            [Output::Notify(_), Output::Fail(failure)] => failure,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn cancellation_stops_the_platform_once() {
        let mut session = session(200);
        assert_eq!(failure(&session.cancelled()).kind, FailureKind::Cancelled);
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
        assert_eq!(session.bytes(b"end\nmore\nend\n").len(), 1);
        assert!(session.end().is_empty());
    }

    #[test]
    fn pings_are_no_progress() {
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
