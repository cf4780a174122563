//! Recording of one run, read and validated like the gateway.

mod appended;
mod fault;
mod leak;
mod play;

use std::time::Duration;

use domain::normalize::{
    AcceptedResult, Reason, Rejection, ResultEffect, ResultValidator, Verdict,
};
use protocol::run::RunStatus;
use tokio::time::{Instant, timeout_at};

use super::check_harness::{
    CheckHarness, DispatchResult, PreparedRun, RefusedAnswer, says_terminal,
};
use super::report::counted;
use super::run_text::RunText;
pub(super) use fault::{FaultKind, RecordedFault};
use leak::TokenLeakDetector;
use runner_client::{ResultFormat, Started, TrailingBody};
use runs::reader::{Deviation, ReaderItem, ResultReader, TooLarge};

/// Maximum time that the body may stay open after the terminal result.
const LINGER: Duration = Duration::from_secs(2);

pub(super) struct RunRecording {
    pub(super) answer: RecordedResponse,
    pub(super) end: End,
    pub(super) faults: Vec<RecordedFault>,
    /// Number of accepted results.
    pub(super) taken: u64,
    pub(super) duplicates: u64,
    pub(super) gaps: u64,
    pub(super) run_text: RunText,
    /// Maximum time between two reads.
    pub(super) longest_silence: Duration,
    /// Time from the POST to the end.
    pub(super) lasted: Duration,
    /// The body ended soon after the terminal result.
    pub(super) closed: bool,
    /// The results contained the run's token.
    pub(super) leaked: bool,
    pub(super) deviations: Vec<Deviation>,
    pub(super) framing_fault: Option<&'static str>,
}

pub(super) enum RecordedResponse {
    Started(ResultFormat, Duration),
    /// `202`: the runner appends its results.
    Deferred(Duration),
    Refused(RefusedAnswer),
    BadContentType(String),
    Silent(Duration),
    Broken(String),
}

/// Outcome of the reading.
#[derive(Debug, PartialEq)]
pub(super) enum End {
    NotStarted,
    Completed,
    Failed {
        code: String,
        message: String,
    },
    /// A violation that ends the run.
    Violation,
    Truncated,
    /// The idle timeout expired.
    Idle,
    /// Still running when the test disconnected.
    Going,
}

impl RunRecording {
    /// The runner ended the run, and no result was rejected.
    pub(super) fn is_valid(&self) -> bool {
        let mut faults = self.faults.iter();
        let refused = faults.any(|fault| fault.kind != FaultKind::TruncatedPart);
        self.survives() && !refused
    }

    /// The runner ended the run. Results may have been rejected.
    pub(super) fn survives(&self) -> bool {
        self.has_ended() && !self.leaked
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.end, End::Completed | End::Failed { .. })
    }

    /// Retry delay of a runner at capacity.
    pub(super) fn asks_to_wait(&self) -> Option<Duration> {
        match &self.answer {
            RecordedResponse::Refused(refused) => refused.busy_wait(),
            _ => None,
        }
    }

    pub(super) fn is_deferred(&self) -> bool {
        matches!(self.answer, RecordedResponse::Deferred(_))
    }

    pub(super) fn in_words(&self) -> String {
        if let Some(fault) = self.faults.first() {
            return fault.seen.clone();
        }
        match (&self.answer, &self.end) {
            (RecordedResponse::Refused(refused), _) => refused.in_words(),
            (RecordedResponse::BadContentType(content_type), _) => {
                format!("the response has the type {content_type}")
            }
            (RecordedResponse::Silent(after), _) => {
                format!("no answer in {:.1} s", after.as_secs_f64())
            }
            (RecordedResponse::Broken(error), _) => error.clone(),
            (_, End::Completed) => format!("run.completed after {}", counted(self.taken, "result")),
            (_, End::Failed { code, message }) => format!("run.failed, {code}: {message}"),
            (_, End::Truncated) => {
                let ended = "the answer ended without run.completed or run.failed";
                match self.framing_fault {
                    Some(fault) => format!("{ended}: {fault}"),
                    None => ended.to_owned(),
                }
            }
            (_, End::Idle) => format!("silent for {:.1} s", self.longest_silence.as_secs_f64()),
            (_, End::Going) => format!("not over after {:.1} s", self.lasted.as_secs_f64()),
            (_, End::Violation | End::NotStarted) => "the run was not taken".to_owned(),
        }
    }
}

/// Reads the response to a posted run to its end, or to `until`.
pub(super) async fn read(
    check_harness: &CheckHarness,
    opened: &PreparedRun,
    posted: DispatchResult,
    until: Instant,
) -> RunRecording {
    let begun = Instant::now();
    let mut recording = RunRecording {
        answer: RecordedResponse::Broken(String::new()),
        end: End::NotStarted,
        faults: Vec::new(),
        taken: 0,
        duplicates: 0,
        gaps: 0,
        run_text: RunText::new(check_harness.options.delta_mode),
        longest_silence: Duration::ZERO,
        lasted: Duration::ZERO,
        closed: false,
        leaked: false,
        deviations: Vec::new(),
        framing_fault: None,
    };
    let (body, after) = match posted {
        DispatchResult::Started { started, after } => {
            recording.answer = RecordedResponse::Started(started.format, after);
            (ResultSource::Stream(started), after)
        }
        DispatchResult::Deferred { trailing, after } => {
            recording.answer = RecordedResponse::Deferred(after);
            (ResultSource::Appended(trailing), after)
        }
        DispatchResult::Refused(refused) => {
            recording.answer = RecordedResponse::Refused(refused);
            return recording;
        }
        DispatchResult::BadContentType(content_type) => {
            recording.answer = RecordedResponse::BadContentType(content_type);
            return recording;
        }
        DispatchResult::Silent(after) => {
            recording.answer = RecordedResponse::Silent(after);
            return recording;
        }
        DispatchResult::Broken(error) => {
            recording.answer = RecordedResponse::Broken(error);
            return recording;
        }
    };
    let reading = RunReader {
        check_harness,
        opened,
        validator: ResultValidator::new(
            &opened.snapshot,
            check_harness.limits.results,
            check_harness.options.delta_mode,
            opened.expected_output,
        ),
        leak: TokenLeakDetector::new(opened),
        recording,
    };
    let mut recording = match body {
        ResultSource::Stream(started) => reading.read(started, until).await,
        ResultSource::Appended(trailing) => reading.read_appended(trailing, until).await,
    };
    recording.lasted = after + begun.elapsed();
    if recording.end == End::Completed {
        check_harness.count_completed();
    }
    recording
}

enum ResultSource {
    Stream(Started),
    Appended(TrailingBody),
}

struct RunReader<'a> {
    check_harness: &'a CheckHarness,
    opened: &'a PreparedRun,
    validator: ResultValidator<'a>,
    leak: TokenLeakDetector,
    recording: RunRecording,
}

impl RunReader<'_> {
    async fn read(mut self, started: Started, mut until: Instant) -> RunRecording {
        let Started {
            mut response,
            format,
        } = started;
        let heads = response.headers().values();
        self.recording.leaked |= heads
            .into_iter()
            .any(|value| self.leak.is_in(value.as_bytes()));
        let limits = &self.check_harness.limits;
        let mut reader = ResultReader::new(format, limits.line_bytes, limits.results);
        loop {
            let waited = Instant::now();
            let silent_at = (waited + limits.silence).min(until);
            let chunk = timeout_at(silent_at, response.chunk()).await;
            self.recording.longest_silence = self.recording.longest_silence.max(waited.elapsed());
            let over = match chunk {
                Err(_) if self.recording.has_ended() => true,
                Err(_) => {
                    let idle = waited.elapsed() >= limits.silence;
                    self.recording.end = if idle { End::Idle } else { End::Going };
                    true
                }
                Ok(Ok(Some(chunk))) => self.take(&chunk, &mut reader),
                Ok(ended) => {
                    self.finish(&mut reader);
                    self.recording.closed = ended.is_ok();
                    if self.recording.end == End::NotStarted {
                        self.recording.end = End::Truncated;
                    }
                    true
                }
            };
            if over {
                return self.recording;
            }
            if self.recording.has_ended() {
                // The gateway waits as long for the body to close; longer waits would test nothing more.
                until = until.min(Instant::now() + LINGER);
            }
        }
    }

    /// Processes a chunk. True: the run must end.
    fn take(&mut self, chunk: &[u8], reader: &mut ResultReader) -> bool {
        self.recording.leaked |= self.leak.next(chunk);
        // Results before an oversized line count, as in the gateway.
        let mut items = Vec::new();
        let read = reader.push(chunk, &mut items);
        self.note_deviations(reader);
        if self.validate_all(items) {
            return true;
        }
        let Err(error) = read else {
            return false;
        };
        let limits = &self.check_harness.limits;
        let seen = match error {
            TooLarge::Line => format!("a line is longer than {} bytes", limits.line_bytes),
            TooLarge::Event => {
                format!(
                    "an event is larger than {} bytes",
                    limits.results.event_bytes
                )
            }
            TooLarge::Document => {
                "one JSON document is larger than 8 MiB: answer by lines of JSON".to_owned()
            }
            TooLarge::Other => {
                let max_bytes = limits.results.run_bytes;
                format!("text outside results is larger than twice {max_bytes} bytes")
            }
        };
        self.fault(FaultKind::Limit, seen);
        self.violated();
        true
    }

    fn finish(&mut self, reader: &mut ResultReader) {
        let mut items = Vec::new();
        reader.finish(&mut items);
        self.note_deviations(reader);
        self.recording.framing_fault = reader.fault();
        self.validate_all(items);
    }

    fn note_deviations(&mut self, reader: &mut ResultReader) {
        self.recording.deviations.extend(reader.take_deviations());
    }

    fn validate_all(&mut self, items: Vec<ReaderItem>) -> bool {
        for item in items {
            let ReaderItem::Result(raw) = item else {
                continue;
            };
            match self
                .validator
                .validate(&raw, self.check_harness.clock.now_seconds())
            {
                Verdict::Accept(accepted) => self.accept(accepted),
                Verdict::Duplicate => self.recording.duplicates += 1,
                Verdict::Reject(rejection) => self.reject(&rejection, None, &raw),
                Verdict::Fail(rejection, failure) => {
                    self.reject(&rejection, Some(&failure.message), &raw);
                    self.violated();
                    return true;
                }
            }
        }
        false
    }

    fn accept(&mut self, accepted: AcceptedResult<'_>) {
        self.recording.taken += 1;
        if accepted.is_repaired && !self.recording.deviations.contains(&Deviation::Text) {
            self.recording.deviations.push(Deviation::Text);
        }
        self.recording.gaps += u64::from(accepted.gap);
        if let Some(part) = accepted.shortened.first() {
            self.fault(FaultKind::TruncatedPart, part.message().to_owned());
        }
        self.recording
            .run_text
            .add(&accepted.kind, accepted.data.get());
        if let ResultEffect::SetState(update) = &accepted.effect {
            self.check_harness
                .host
                .set_state(&self.opened.token, update);
        }
        // A runner's own code is in the details when the gateway replaces it.
        if let ResultEffect::End(ending) = accepted.effect {
            let text = |name: &str| ending.error[name].as_str().unwrap_or_default().to_owned();
            let own = ending.error["details"]["code"].as_str().map(str::to_owned);
            self.recording.end = if ending.status == RunStatus::Completed {
                End::Completed
            } else {
                End::Failed {
                    code: own.unwrap_or_else(|| text("code")),
                    message: text("message"),
                }
            };
            // Calls after this moment are recorded as calls after the end.
            if !self.opened.lasting {
                self.check_harness.host.end(&self.opened.token);
            }
        }
    }

    fn reject(&mut self, rejection: &Rejection, failure: Option<&str>, raw: &[u8]) {
        let kind = match rejection.reason {
            Reason::LineTooLong | Reason::EventTooLarge | Reason::PartTooLarge => FaultKind::Limit,
            Reason::InvalidUtf8 | Reason::InvalidJson | Reason::InvalidEnvelope => {
                FaultKind::Result
            }
            Reason::SequenceConflict | Reason::SequenceBackward => FaultKind::Sequence,
            Reason::InvalidPayload | Reason::UnknownArtifact => FaultKind::Payload,
            Reason::Unauthorized => FaultKind::StateKey,
            Reason::WrongRunId => FaultKind::RunId,
            Reason::NoOutput | Reason::ErrorResponse => FaultKind::NoOutput,
            Reason::AfterTerminal if says_terminal(raw) => FaultKind::SecondTerminal,
            Reason::AfterTerminal => FaultKind::AfterTerminal,
        };
        let what = failure.unwrap_or(rejection.reason.as_str());
        self.fault(kind, format!("{what}: {}", rejection.excerpt));
    }

    fn fault(&mut self, kind: FaultKind, seen: String) {
        // The first fault of each kind suffices.
        if !self.recording.faults.iter().any(|fault| fault.kind == kind) {
            self.recording.faults.push(RecordedFault { kind, seen });
        }
    }

    fn violated(&mut self) {
        if !self.recording.has_ended() {
            self.recording.end = End::Violation;
        }
    }
}
